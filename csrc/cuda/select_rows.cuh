// Which rows of one group are drawn, by strategy, by a team of threads: a warp or a block. The contract stands in
// torchrb/ops/schemas.py, `sample_groups`; the CPU's way is cpu/select_rows.h.
#pragma once

#include "core/control.h"
#include "core/score.h"
#include "core/variance.h"
#include "cuda/shared_memory.cuh"

namespace torchrb {

struct Candidate {
  int64_t score, stamp;
  int32_t slot;
  int32_t bits;
};

// What speaks against a candidate; those without come first.
enum : int32_t { kUsed = 1, kInvalid = 2, kUnchosen = 4 };

// Threads that select together. `cells`: four shared numbers of theirs.
struct SelectWarp {
  int32_t* cells;
  __device__ int64_t rank() const { return threadIdx.x % 32; }
  __device__ int64_t size() const { return 32; }
  __device__ void sync() const { __syncwarp(0xFFFFFFFFu); }
};

struct SelectBlock {
  int32_t* cells;
  __device__ int64_t rank() const { return threadIdx.x; }
  __device__ int64_t size() const { return blockDim.x; }
  __device__ void sync() const { __syncthreads(); }
};

// Newer first, then lower slot: how equal scores are told apart, whatever the direction.
__device__ inline bool precedes(const Candidate& a, const Candidate& b) {
  return a.stamp > b.stamp || (a.stamp == b.stamp && a.slot < b.slot);
}

// Valid before invalid, unused before used, then the strategy's favourites.
struct ByPreference {
  __device__ bool operator()(const Candidate& a, const Candidate& b) const {
    const int32_t mine = a.bits & (kUsed | kInvalid), its = b.bits & (kUsed | kInvalid);
    if (mine != its) return mine < its;
    return a.score > b.score || (a.score == b.score && precedes(a, b));
  }
};

// What was chosen, in the order of the batch; then the rest.
struct ByPlace {
  bool falls;
  __device__ bool operator()(const Candidate& a, const Candidate& b) const {
    const int32_t mine = a.bits & (kUnchosen | kInvalid), its = b.bits & (kUnchosen | kInvalid);
    if (mine != its) return mine < its;
    if (a.score != b.score) return falls == (a.score > b.score);
    return precedes(a, b);
  }
};

struct ByNumber {
  __device__ bool operator()(int32_t a, int32_t b) const { return a < b; }
};

template <typename T, typename Before>
__device__ inline void order_pair(T* rows, int64_t low, int64_t high, int64_t num, const Before& before) {
  if (high >= num || !before(rows[high], rows[low])) return;
  const T held = rows[low];
  rows[low] = rows[high];
  rows[high] = held;
}

// Sorts `rows`, [num], in shared or global memory: a bitonic network in which every comparator puts the lesser first,
// so that what would lie beyond the end never moves. Orders are total, so equal input gives equal output.
template <typename Team, typename T, typename Before>
__device__ inline void sort_rows(const Team& team, T* rows, int64_t num, const Before& before) {
  int64_t pairs = 1;
  while (2 * pairs < num) pairs *= 2;
  for (int64_t half = 1; half <= pairs && num > 1; half *= 2) {
    for (int64_t pair = team.rank(); pair < pairs; pair += team.size()) {
      const int64_t begin = pair / half * 2 * half, place = pair % half;
      order_pair(rows, begin + place, begin + 2 * half - 1 - place, num, before);
    }
    team.sync();
    for (int64_t step = half / 2; step > 0; step /= 2) {
      for (int64_t pair = team.rank(); pair < pairs; pair += team.size()) {
        const int64_t low = pair / step * 2 * step + pair % step;
        order_pair(rows, low, low + step, num, before);
      }
      team.sync();
    }
  }
}

// The first of [begin, end) for which `holds` is false; it is true up to there and false from there on.
template <typename Holds>
__device__ inline int64_t first_not(int64_t begin, int64_t end, const Holds& holds) {
  while (begin < end) {
    const int64_t middle = begin + (end - begin) / 2;
    if (holds(middle)) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

// The values of rows that fall by score, less the smallest: `values[i]` is the i-th from the `end` or the beginning.
struct Offsets {
  const Candidate* rows;
  int64_t first, step;
  RewardCells cells;
  int64_t smallest;
  double scale;
  __device__ double operator[](int64_t i) const { return cells.offset(rows[first + step * i].score, smallest, scale); }
};

// Which of the rows [0, num), falling by score, make the subset of `wanted` with the greatest variance: some of the
// smallest and the rest of the largest, that is, those below `high`, in [middle_begin, middle_end), and from `low` on.
struct WidestRows {
  int64_t high, middle_begin, middle_end, low;
  __device__ bool has(int64_t i) const { return i < high || (i >= middle_begin && i < middle_end) || i >= low; }
};

// `sums`: [2 * (wanted + 1)]. One thread: the sums are added up in order.
__device__ inline WidestRows widest_rows(const RewardCells& cells, const Candidate* rows, int64_t num, int64_t wanted,
                                         double* sums) {
  const int64_t smallest = rows[num - 1].score;
  const double scale = cells.scale(smallest, rows[0].score);
  const Offsets low{rows, num - 1, -1, cells, smallest, scale}, high{rows, 0, 1, cells, smallest, scale};
  const int64_t num_low = widest_split(low, high, wanted, sums, sums + wanted + 1);
  const int64_t num_high = wanted - num_low;
  if (num_low == 0) return {num_high, num, num, num};
  // The smallest values end inside a run of equal ones. Of a run the newest rows are taken from either side.
  const int64_t edge = rows[num - num_low].score;
  const int64_t begin = first_not(0, num, [&](int64_t i) { return rows[i].score > edge; });
  const int64_t end = first_not(begin, num, [&](int64_t i) { return rows[i].score == edge; });
  const int64_t from_low = num_low - (num - end), from_high = num_high > begin ? num_high - begin : 0;
  return {num_high < begin ? num_high : begin, begin, begin + from_low + from_high, end};
}

// Brings min(wanted, num) of the rows to the front, in the order of the batch. `sums`: [2 * num], where the strategy is
// variance.
template <typename Team>
__device__ inline void select_rows(const Team& team, const RewardCells& cells, int64_t strategy, Candidate* rows,
                                   int64_t num, int64_t wanted, double* sums) {
  sort_rows(team, rows, num, ByPreference{});
  const int64_t chosen = wanted < num ? wanted : num;
  const bool falls = strategy == kRandom || strategy == kReward;
  const auto kind = [&](int64_t i) { return rows[i].bits & (kUsed | kInvalid); };
  if (chosen == 0) return;
  const int32_t last_kind = kind(chosen - 1);
  if (strategy != kVariance || chosen == num || kind(chosen) != last_kind || (last_kind & kInvalid) != 0) {
    if (falls && last_kind == 0) return;
    team.sync();
    sort_rows(team, rows, chosen, ByPlace{falls});
    return;
  }
  // All of the kinds before, and of this one those with the greatest variance.
  const int64_t begin = first_not(0, chosen, [&](int64_t i) { return kind(i) < last_kind; });
  const int64_t end = first_not(chosen, num, [&](int64_t i) { return kind(i) <= last_kind; });
  team.sync();
  if (team.rank() == 0) {
    const WidestRows widest = widest_rows(cells, rows + begin, end - begin, chosen - begin, sums);
    team.cells[0] = static_cast<int32_t>(begin + widest.high);
    team.cells[1] = static_cast<int32_t>(begin + widest.middle_begin);
    team.cells[2] = static_cast<int32_t>(begin + widest.middle_end);
    team.cells[3] = static_cast<int32_t>(begin + widest.low);
  }
  team.sync();
  const WidestRows widest{team.cells[0], team.cells[1], team.cells[2], team.cells[3]};
  for (int64_t i = begin + team.rank(); i < num; i += team.size()) {
    if (i >= end || !widest.has(i)) rows[i].bits |= kUnchosen;
  }
  team.sync();
  sort_rows(team, rows, num, ByPlace{falls});
  for (int64_t i = chosen + team.rank(); i < num; i += team.size()) rows[i].bits &= ~kUnchosen;
  team.sync();
}

}  // namespace torchrb
