// Which rows are drawn of a group that is too large for a block's shared memory: what select_rows does, by a radix
// select. A block looks at the rows in global memory a handful of times; only what it draws is sorted, in shared
// memory.
#pragma once

#include "cuda/radix_select.cuh"

namespace torchrb {

// ByPreference, as a key.
struct PreferenceKey {
  __device__ RowKey operator()(const Candidate& row) const {
    return key_of(static_cast<uint32_t>(row.bits & (kUsed | kInvalid)), ~rising(row.score), row);
  }
};

// The smallest scores of one kind first.
struct SmallestKey {
  int32_t kind;
  __device__ RowKey operator()(const Candidate& row) const {
    return key_of((row.bits & (kUsed | kInvalid)) == kind ? 0 : 1, rising(row.score), row);
  }
};

// The subset of greatest variance first: of one kind the scores below `edge` and, where there is a `last` one of the
// largest, those of the largest up to it; then those that equal `edge`, the newest first. Kinds before are all in it.
struct WidestKey {
  int32_t kind;
  int64_t edge;
  bool has_last;
  Candidate last;

  __device__ RowKey operator()(const Candidate& row) const {
    const int32_t its = row.bits & (kUsed | kInvalid);
    const bool high = has_last && (row.score > last.score || (row.score == last.score && !precedes(last, row)));
    uint32_t first = 2;
    if (its < kind || (its == kind && (row.score < edge || (row.score > edge && high)))) {
      first = 0;
    } else if (its == kind && row.score == edge) {
      first = 1;
    }
    return key_of(first, 0, row);
  }
};

// Values by their scores, less the smallest's.
struct ScoreOffsets {
  const int64_t* scores;
  RewardCells cells;
  int64_t smallest;
  double scale;
  __device__ double operator[](int64_t i) const { return cells.offset(scores[i], smallest, scale); }
};

struct ByScore {
  __device__ bool operator()(int64_t a, int64_t b) const { return a < b; }
};

// Brings to the front, instead of the largest of the rows of `kind`, which stand there from `begin` to `chosen`, those
// with the greatest variance. `sums`: [2 * (chosen + 1)], shared.
__device__ inline void bring_widest(const SelectBlock& team, const RadixSpace& space, const RewardCells& cells,
                                    Candidate* rows, int64_t num, int64_t begin, int64_t chosen, int32_t kind,
                                    double* sums) {
  const int64_t wanted = chosen - begin;
  sort_near(team, space, rows, chosen, ByPreference{});
  const SmallestKey by_smallest{kind};
  const KeyPrefix smallest = find_first(team, space, rows, num, wanted, by_smallest);
  auto* const high = reinterpret_cast<int64_t*>(space.survivors);  // falling
  int64_t* const low = high + wanted;                              // rising
  if (team.rank() == 0) team.cells[0] = 0;
  team.sync();
  for (int64_t i = team.rank(); i < wanted; i += team.size()) high[i] = rows[begin + i].score;
  for (int64_t i = team.rank(); i < num; i += team.size()) {
    if (smallest.compare(by_smallest(rows[i])) > 0) continue;
    const int32_t place = atomicAdd(&team.cells[0], 1);
    if (place < wanted) low[place] = rows[i].score;
  }
  team.sync();
  sort_rows(team, low, wanted, ByScore{});
  if (team.rank() == 0) {
    const double scale = cells.scale(low[0], high[0]);
    const ScoreOffsets lows{low, cells, low[0], scale}, highs{high, cells, low[0], scale};
    team.cells[0] = static_cast<int32_t>(widest_split(lows, highs, wanted, sums, sums + wanted + 1));
  }
  team.sync();
  const int64_t num_low = team.cells[0], num_high = wanted - num_low;
  if (num_low == 0) return;
  const WidestKey widest{kind, low[num_low - 1], num_high > 0, rows[num_high > 0 ? begin + num_high - 1 : begin]};
  team.sync();
  bring_first(team, space, rows, num, chosen, widest);
}

// Brings `chosen` of the rows to the front, in the order of the batch. 0 < chosen < kSharedRows < num. `sums`:
// [2 * kSharedRows], shared, where the strategy is variance.
__device__ inline void select_large(const SelectBlock& team, const RadixSpace& space, const RewardCells& cells,
                                    int64_t strategy, Candidate* rows, int64_t num, int64_t chosen, double* sums) {
  bring_first(team, space, rows, num, chosen, PreferenceKey{});
  if (strategy == kVariance) {
    if (team.rank() < 4) team.cells[team.rank()] = 0;
    team.sync();
    for (int64_t i = team.rank(); i < num; i += team.size()) {
      atomicAdd(&team.cells[rows[i].bits & (kUsed | kInvalid)], 1);
    }
    team.sync();
    // The kind of which some are drawn and some are not.
    int64_t begin = 0;
    int32_t kind = 0;
    while (kind < 3 && begin + team.cells[kind] <= chosen) begin += team.cells[kind++];
    team.sync();
    if (begin < chosen && (kind & kInvalid) == 0) {
      bring_widest(team, space, cells, rows, num, begin, chosen, kind, sums);
    }
  }
  sort_near(team, space, rows, chosen, ByPlace{strategy == kRandom || strategy == kReward});
}

}  // namespace torchrb
