// Draws groups by a keyed permutation of their ranks, and rows in each by a strategy.
// A warp finds the group of a place in the batch. A group of up to 32 rows is then a warp's, a larger one a block's: up
// to kSharedRows rows are sorted in shared memory, more are left in scratch and selected from by the digits of their
// scores; which it is, is decided here and not on the host. Draws of a group that repeat it come one after another, as
// each takes what the ones before have left. Bound by the latency of memory: the way down to the group, then the rows
// of its list one by one, then their rewards.
#pragma once

#include "core/control.h"
#include "core/permutation.h"
#include "cuda/group_links.cuh"
#include "cuda/select_large.cuh"
#include "cuda/slot_lock.cuh"

namespace torchrb {

struct SampleGroups {
  GroupLinks links;
  Headers headers;
  Leaf reward;
  RewardCells cells;
  const int64_t* seed;  // [1]
  int64_t groups, per_group, strategy;
  int64_t* slots;  // [groups * per_group]
  int64_t* drawn;  // [groups, 3]
  int64_t* flags;  // [1]
  // Scratch.
  int32_t* heads;    // [groups]: of the group of each place
  int32_t* last;     // [groups]: by rank, the place, + 1, of one draw that repeats the group; 0 if there is none
  int32_t* another;  // [groups]: by place, the same for the next such draw
  int32_t* repeats;  // [groups]: where the places of a group's repeats are put in order
  int32_t* claimed;  // [2]: of `repeats`; of `rows`
  Candidate* rows;   // [capacity], where a group may be larger than a block's shared memory
  double* sums;      // [2 * capacity], where the strategy is variance besides

  __device__ bool by_reward() const { return strategy == kReward || strategy == kVariance; }
  __device__ int64_t available() const { return links.head->groups; }
};

__device__ inline int64_t flag(bool raised, int64_t bit) { return raised ? bit : 0; }

// Empties what the next kernel fills. A thread is a place.
static __global__ void sample_begin_kernel(const SampleGroups draw) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (int64_t place = first; place < draw.groups; place += step) draw.last[place] = 0;
  if (first != 0) return;
  draw.claimed[0] = draw.claimed[1] = 0;
  const int64_t available = draw.available();
  *draw.flags = flag(draw.groups > available, kFewGroups) | flag(available == 0, kNoGroup) |
                flag(draw.links.rows[draw.links.capacity].next != 0, kNanKey);
}

// Finds each place's group. A warp is a place.
static __global__ void sample_find_kernel(const SampleGroups draw) {
  const int64_t lane = threadIdx.x % 32, warps = static_cast<int64_t>(gridDim.x) * (blockDim.x / 32);
  const int64_t available = draw.available(), distinct = draw.groups < available ? draw.groups : available;
  const Permutation permutation(*draw.seed, available);
  const uint64_t extra_key = stream_key(*draw.seed, kExtraGroupsStream);
  for (int64_t place = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32; place < draw.groups;
       place += warps) {
    if (available == 0) {
      for (int64_t i = lane; i < draw.per_group; i += 32) draw.slots[place * draw.per_group + i] = -1;
      if (lane < 3) draw.drawn[3 * place + lane] = 0;
    } else if (place < distinct) {
      const int64_t rank = permutation(place), group = draw.links.group_at(rank);
      if (lane > 0) continue;
      draw.heads[place] = static_cast<int32_t>(group);
      draw.drawn[3 * place] = rank;
      draw.drawn[3 * place + 1] = group < 0 ? 0 : draw.links.rows[group].size;
    } else if (lane == 0) {
      const int64_t rank = below(random64(extra_key, place - distinct), available);
      draw.another[place] = atomicExch(&draw.last[rank], static_cast<int32_t>(place + 1));
    }
  }
}

// The slots of a group, in any order. A list can only be walked; where the group is no small part of all rows, they are
// all looked at instead, side by side.
template <typename Team>
__device__ inline void gather_rows(const SampleGroups& draw, const Team& team, int64_t head, int64_t size,
                                   Candidate* rows) {
  const GroupLinks& links = draw.links;
  if (size < kScanRows || links.capacity / kScanShare > size) {
    if (team.rank() == 0) {
      int64_t row = head;
      for (int64_t i = 0; i < size && row >= 0; ++i) {
        rows[i].slot = static_cast<int32_t>(row);
        row = static_cast<int64_t>(links.rows[row].next) - 1;
      }
    }
    team.sync();
    return;
  }
  if (team.rank() == 0) team.cells[0] = 0;
  team.sync();
  const int64_t* key = links.key(head);
  for (int64_t row = team.rank(); row < links.capacity; row += team.size()) {
    const GroupLinks::Row& link = links.rows[row];
    bool same = link.previous != GroupLinks::kNowhere && link.size != GroupLinks::kOutcast;
    for (int64_t word = 0; same && word < links.num_words; ++word) same = links.key(row)[word] == key[word];
    if (!same) continue;
    const int32_t place = atomicAdd(&team.cells[0], 1);
    if (place < size) rows[place].slot = static_cast<int32_t>(row);
  }
  team.sync();
}

// A row as a candidate, seen between two looks at its word. Random scores are a bijection of the slot: they never tie,
// and the row is not looked at.
__device__ inline Candidate candidate_of(const SampleGroups& draw, int32_t slot, uint64_t key) {
  if (draw.strategy == kRandom) return {static_cast<int64_t>(random64(key, slot)), 0, slot, 0};
  for (;;) {
    const Look seen = look(draw.headers, slot);
    if (draw.strategy == kRecency) return {seen.stamp, seen.stamp, slot, 0};
    const int64_t score = draw.cells.score(draw.reward.in_table(slot));
    __threadfence();
    if (!unmoved(draw.headers, slot, seen)) continue;
    const bool valid = draw.strategy == kReward ? draw.cells.is_number(score) : draw.cells.is_finite(score);
    return {valid ? score : kNanScore, seen.stamp, slot, valid ? 0 : kInvalid};
  }
}

// How a group's rows are brought to the front: by sorting them all. `sums`: [2 * size], where the strategy is variance.
template <typename Team>
struct SelectSorted {
  Team team;
  double* sums;
  __device__ void operator()(const SampleGroups& draw, Candidate* rows, int64_t size) const {
    select_rows(team, draw.cells, draw.strategy, rows, size, draw.per_group, sums);
  }
};

// By their digits, of more than kSharedRows rows. Where shared memory does not hold what is drawn, they are sorted.
struct SelectByDigits {
  SelectBlock team;
  RadixSpace space;
  double *near_sums, *sums;
  __device__ void operator()(const SampleGroups& draw, Candidate* rows, int64_t size) const {
    if (draw.per_group >= kSharedRows) {
      select_rows(team, draw.cells, draw.strategy, rows, size, draw.per_group, sums);
    } else if (draw.per_group > 0) {
      select_large(team, space, draw.cells, draw.strategy, rows, size, draw.per_group, near_sums);
    }
  }
};

// Draws from a group for one place of the batch, and marks what was drawn as used.
template <typename Team, typename Select>
__device__ inline void draw_rows(const SampleGroups& draw, const Team& team, int64_t place, int64_t rank,
                                 Candidate* rows, int64_t size, int64_t num_valid, const Select& select) {
  const int64_t wanted = draw.per_group, chosen = wanted < size ? wanted : size;
  select(draw, rows, size);
  team.sync();
  int64_t* const out = draw.slots + place * wanted;
  for (int64_t i = team.rank(); i < chosen; i += team.size()) {
    out[i] = rows[i].slot;
    rows[i].bits |= kUsed;
  }
  // A short group: its valid rows again, or all when none is.
  team.sync();
  const uint64_t extra_key = stream_key(*draw.seed, kExtraRowsStream);
  const int64_t pool = num_valid > 0 ? num_valid : size;
  for (int64_t i = size + team.rank(); i < wanted; i += team.size()) {
    out[i] = rows[below(random64(extra_key, place * wanted + i), pool)].slot;
  }
  if (team.rank() == 0) {
    draw.drawn[3 * place] = rank;
    draw.drawn[3 * place + 1] = size;
    draw.drawn[3 * place + 2] = num_valid;
    const int64_t bits = flag(size < wanted, kShortGroup) | flag(num_valid < chosen, kNanDrawn);
    if (bits != 0) {
      atomicOr(reinterpret_cast<unsigned long long*>(draw.flags), static_cast<unsigned long long>(bits));
    }
  }
  team.sync();
}

// The places that repeat a group's draw, ascending: `repeats + begin`, and how many.
struct Repeats {
  int64_t begin, num;
};
template <typename Team>
__device__ inline Repeats repeats_of(const SampleGroups& draw, const Team& team, int64_t rank) {
  if (draw.groups <= draw.available() || draw.last[rank] == 0) return {0, 0};
  if (team.rank() == 0) {
    int32_t num = 0;
    for (int32_t place = draw.last[rank]; place != 0; place = draw.another[place - 1]) ++num;
    int32_t at = atomicAdd(&draw.claimed[0], num);
    team.cells[0] = at;
    team.cells[1] = num;
    for (int32_t place = draw.last[rank]; place != 0; place = draw.another[place - 1]) draw.repeats[at++] = place - 1;
  }
  team.sync();
  const Repeats found{team.cells[0], team.cells[1]};
  team.sync();
  sort_rows(team, draw.repeats + found.begin, found.num, ByNumber{});
  return found;
}

// Everything that the batch draws from the group of a place. `rows`: [size].
template <typename Team, typename Select>
__device__ inline void draw_group(const SampleGroups& draw, const Team& team, int64_t place, Candidate* rows,
                                  const Select& select) {
  const int64_t rank = draw.drawn[3 * place], size = draw.drawn[3 * place + 1];
  team.sync();
  gather_rows(draw, team, draw.heads[place], size, rows);
  if (team.rank() == 0) team.cells[0] = 0;
  team.sync();
  uint64_t key = stream_key(*draw.seed, kFirstRowStream);
  for (int64_t i = team.rank(); i < size; i += team.size()) {
    rows[i] = candidate_of(draw, rows[i].slot, key);
    if (rows[i].bits == 0) atomicAdd(&team.cells[0], 1);
  }
  team.sync();
  const int64_t num_valid = team.cells[0];
  team.sync();
  draw_rows(draw, team, place, rank, rows, size, num_valid, select);
  const Repeats repeats = repeats_of(draw, team, rank);
  for (int64_t i = 0; i < repeats.num; ++i) {
    if (draw.strategy == kRandom) {
      key = stream_key(*draw.seed, kFirstRowStream + i + 1);
      for (int64_t row = team.rank(); row < size; row += team.size()) {
        rows[row].score = static_cast<int64_t>(random64(key, rows[row].slot));
      }
      team.sync();
    }
    draw_rows(draw, team, draw.repeats[repeats.begin + i], rank, rows, size, num_valid, select);
  }
}

// Groups of up to 32 rows: a warp each.
static __global__ void sample_small_kernel(const SampleGroups draw) {
  SharedMemory shared;
  const int64_t warps = blockDim.x / 32, warp = threadIdx.x / 32;
  Candidate* rows = shared.take<Candidate>(32 * warps) + 32 * warp;
  double* sums = draw.strategy == kVariance ? shared.take<double>(64 * warps) + 64 * warp : nullptr;
  const SelectWarp team{shared.take<int32_t>(4 * warps) + 4 * warp};
  const int64_t available = draw.available(), distinct = draw.groups < available ? draw.groups : available;
  for (int64_t place = blockIdx.x * warps + warp; place < distinct; place += gridDim.x * warps) {
    const int64_t size = draw.drawn[3 * place + 1];
    if (size <= 32 && draw.heads[place] >= 0) draw_group(draw, team, place, rows, SelectSorted<SelectWarp>{team, sums});
  }
}

// Larger groups: a block each.
static __global__ void sample_large_kernel(const SampleGroups draw) {
  SharedMemory shared;
  Candidate* near_rows = shared.take<Candidate>(kSharedRows);
  double* near_sums = draw.strategy == kVariance ? shared.take<double>(2 * kSharedRows) : nullptr;
  const RadixSpace space{shared.take<uint32_t>(kRadixWords), near_rows};
  const SelectBlock team{shared.take<int32_t>(4)};
  const int64_t available = draw.available(), distinct = draw.groups < available ? draw.groups : available;
  for (int64_t place = blockIdx.x; place < distinct; place += gridDim.x) {
    const int64_t size = draw.drawn[3 * place + 1];
    if (size <= 32) continue;
    if (size <= kSharedRows) {
      draw_group(draw, team, place, near_rows, SelectSorted<SelectBlock>{team, near_sums});
      continue;
    }
    if (threadIdx.x == 0) team.cells[0] = atomicAdd(&draw.claimed[1], static_cast<int32_t>(size));
    __syncthreads();
    const int64_t begin = team.cells[0];
    __syncthreads();
    double* sums = draw.strategy == kVariance ? draw.sums + 2 * begin : nullptr;
    draw_group(draw, team, place, draw.rows + begin, SelectByDigits{team, space, near_sums, sums});
  }
}

inline cudaError_t sample_groups_launch(const SampleGroups& draw, cudaStream_t stream,
                                        unsigned most_blocks = kMostSampleBlocks) {
  const unsigned begin_grid = std::max(1u, std::min(blocks_for(draw.groups, kSampleThreads), most_blocks));
  const unsigned warp_grid = std::min(blocks_for(32 * draw.groups, kSampleThreads), most_blocks);
  const size_t warps = kSampleThreads / 32;
  const bool sums = draw.strategy == kVariance;
  cudaError_t status = launch(sample_begin_kernel, begin_grid, kSampleThreads, 0, stream, draw);
  if (status == cudaSuccess) status = launch(sample_find_kernel, warp_grid, kSampleThreads, 0, stream, draw);
  if (status == cudaSuccess) {
    const size_t bytes = shared_bytes<Candidate>(32 * warps) + (sums ? shared_bytes<double>(64 * warps) : 0) +
                         shared_bytes<int32_t>(4 * warps);
    status = launch(sample_small_kernel, warp_grid, kSampleThreads, bytes, stream, draw);
  }
  if (status != cudaSuccess || draw.links.capacity <= 32) return status;
  const size_t bytes = shared_bytes<Candidate>(kSharedRows) + (sums ? shared_bytes<double>(2 * kSharedRows) : 0) +
                       shared_bytes<uint32_t>(kRadixWords) + shared_bytes<int32_t>(4);
  const auto grid = static_cast<unsigned>(std::min<int64_t>(draw.groups, most_blocks));
  return launch(sample_large_kernel, grid, kLargeGroupThreads, bytes, stream, draw);
}

}  // namespace torchrb
