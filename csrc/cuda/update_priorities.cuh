// Brings priorities up to the journal and sets some; kernels and launcher.
// A thread is an entry of the journal, a row that is set, or a node. The work goes in phases: rows that changed give up
// their priorities, nodes above them are computed, new rows get the greatest priority that is left, given ones are set,
// nodes are computed again. A short update is one block's, with barriers between the phases; of a longer one the rows
// and the nodes right above them are the grid's, and the levels above, a 256th of the rows, one block's.
// Bound by the latency of memory.
#pragma once

#include "core/priority_tree.h"
#include "cuda/batch_table.cuh"
#include "cuda/scratch.cuh"
#include "cuda/slot_lock.cuh"

namespace torchrb {

// What there is to do, fixed for all that follows.
struct PriorityPlan {
  int64_t begin, end, num;  // entries of the journal, or all rows
  int64_t all, rebuild;
  int64_t noted;    // rows on the list
  int64_t refused;  // the first given row that cannot be set; INT64_MAX if all can
  int64_t alone;    // one block did it all
};

// A slot that rows of the update name.
struct NamedSlot {
  int64_t owner;  // the first row that came, -1 if none has
  int64_t last;   // the last row that may be set
};

struct UpdatePrioritiesScratch {
  PriorityPlan* plan;
  int64_t* noted;  // [capacity]: rows that changed, 2 * slot + whether they live
  NamedSlot* entries;
  int64_t num_entries;
  int64_t* place;  // [num]: each given row's entry, -1 where it is left out

  UpdatePrioritiesScratch(Carver& carver, int64_t capacity, int64_t num)
      : plan(carver.take<PriorityPlan>(1)),
        noted(carver.take<int64_t>(capacity)),
        entries(carver.take<NamedSlot>(batch_entries(num))),
        num_entries(batch_entries(num)),
        place(carver.take<int64_t>(num)) {}
};

struct PriorityUpdate {
  PriorityPlaces places;
  double* tree;            // [places.size]
  int64_t* seen;           // [capacity]
  int64_t* state;          // [kPriorityStateSize]
  const int64_t* control;  // [kControlSize]
  const int64_t* journal;  // [ring]
  int64_t ring;
  Headers headers;
  GivenPriorities given;
  double alpha, eps;
  bool rebuild;
  UpdatePrioritiesScratch scratch;
  int64_t block_rows = kPriorityBlockRows;  // what one block does alone
};

struct PriorityThreads {
  int64_t first, step;
};
__device__ inline PriorityThreads threads_of_block() { return {threadIdx.x, blockDim.x}; }
__device__ inline PriorityThreads threads_of_grid() {
  return {static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x, static_cast<int64_t>(gridDim.x) * blockDim.x};
}

// Nodes above several rows are written by several threads, all with the same bits.
__device__ inline double load_real(const double* at) {
  return std::bit_cast<double>(load_relaxed(reinterpret_cast<const int64_t*>(at)));
}
__device__ inline void store_real(double* at, double value) {
  store_relaxed(reinterpret_cast<int64_t*>(at), std::bit_cast<int64_t>(value));
}

__device__ inline double priority_at(const PriorityUpdate& update, int64_t slot) {
  return load_real(update.tree + update.places.most[0] + slot);
}
__device__ inline void put_priority(const PriorityUpdate& update, int64_t slot, double priority) {
  store_real(update.tree + update.places.most[0] + slot, priority);
  store_real(update.tree + update.places.sums[0] + slot, weight_of(priority, update.alpha, update.eps));
}

// The 16 entries of a node's children, or of the root.
struct Family {
  double c[PriorityPlaces::kFan];
  __device__ explicit Family(const double* first) {
    for (int i = 0; i < PriorityPlaces::kFan; ++i) c[i] = load_real(first + i);
  }
};

__device__ inline void mend_node(const PriorityUpdate& update, int level, int64_t node) {
  const PriorityPlaces& places = update.places;
  const int64_t first = node * PriorityPlaces::kFan;
  store_real(update.tree + places.sums[level] + node, node_sum(Family(update.tree + places.sums[level - 1] + first).c));
  store_real(update.tree + places.most[level] + node,
             node_most(Family(update.tree + places.most[level - 1] + first).c));
  store_real(update.tree + places.least[level] + node,
             node_least(Family(update.tree + places.least[level - 1] + first).c));
}

// One thread.
__device__ inline void begin_priorities(const PriorityUpdate& update) {
  const int64_t position = update.state[kPriorityPosition];
  const int64_t end = load_acquire(update.control + kControlJournal);
  const bool rebuild = update.rebuild || position < 0, all = rebuild || end - position > update.ring;
  const int64_t num = all ? update.places.capacity : end - position;
  const bool alone = num + update.given.num <= update.block_rows;
  *update.scratch.plan = {position, end, num, all, rebuild, 0, INT64_MAX, alone};
}

// Rows that are gone, or another record than they were, lose their priority and go onto the list. Meanwhile the table
// of the slots that are named is emptied, and a given row that cannot be set is looked for.
__device__ inline void note_priorities(const PriorityUpdate& update, const PriorityThreads& mine) {
  PriorityPlan& plan = *update.scratch.plan;
  for (int64_t i = mine.first; i < plan.num; i += mine.step) {
    int64_t slot = i;
    if (plan.all == 0) {
      const auto entry = static_cast<uint64_t>(plan.begin + i) % static_cast<uint64_t>(update.ring);
      slot = load_relaxed(update.journal + entry);
      if (!update.headers.holds(slot)) continue;
    }
    const int64_t word = look(update.headers, slot).word;
    int64_t seen = load_relaxed(update.seen + slot);
    if (seen == priority_mark(word)) {
      if (plan.rebuild != 0) put_priority(update, slot, priority_at(update, slot));
      continue;
    }
    if (!compare_exchange(update.seen + slot, seen, priority_mark(word))) continue;  // named twice
    put_priority(update, slot, -1.0);
    const int64_t place = fetch_add_relaxed(&plan.noted, int64_t{1});
    update.scratch.noted[place] = 2 * slot + (word_live(word) ? 1 : 0);
  }
  for (int64_t i = mine.first; i < update.scratch.num_entries; i += mine.step) update.scratch.entries[i] = {-1, -1};
  for (int64_t row = mine.first; row < update.given.num; row += mine.step) {
    if (update.given.good(row, update.places.capacity)) continue;
    for (int64_t first = load_relaxed(&plan.refused); row < first && !compare_exchange(&plan.refused, first, row);) {
    }
  }
}

// Calls `visit(slot)` for each row that changed, and with `given` each that was set.
template <typename Visit>
__device__ inline void for_touched(const PriorityUpdate& update, const PriorityThreads& mine, bool given,
                                   const Visit& visit) {
  const int64_t noted = load_relaxed(&update.scratch.plan->noted);
  for (int64_t i = mine.first; i < noted; i += mine.step) visit(update.scratch.noted[i] / 2);
  for (int64_t row = mine.first; given && row < update.given.num; row += mine.step) {
    if (update.scratch.place[row] >= 0) visit(update.given.slots[row]);
  }
}

// The nodes of a level that are above rows touched.
__device__ inline void mend_touched(const PriorityUpdate& update, const PriorityThreads& mine, int level, bool given) {
  for_touched(update, mine, given, [&](int64_t slot) { mend_node(update, level, slot >> (4 * level)); });
}

// All nodes of a level.
__device__ inline void mend_level(const PriorityUpdate& update, const PriorityThreads& mine, int level) {
  const int64_t num = update.places.entries[level - 1] / PriorityPlaces::kFan;
  for (int64_t node = mine.first; node < num; node += mine.step) mend_node(update, level, node);
}

// Those nodes of a level that may have changed.
__device__ inline void mend(const PriorityUpdate& update, const PriorityThreads& mine, int level, bool given) {
  if (update.scratch.plan->rebuild != 0) {
    mend_level(update, mine, level);
  } else {
    mend_touched(update, mine, level, given);
  }
}

// New rows get the greatest priority of those that still have one; given rows find the entry of their slot. A row that
// names no record, or another one than it thinks, has none.
__device__ inline void admit_priorities(const PriorityUpdate& update, const PriorityThreads& mine) {
  const PriorityPlan& plan = *update.scratch.plan;
  const double most = node_most(Family(update.tree + update.places.most[update.places.levels - 1]).c);
  const double first = most < 0.0 ? 1.0 : most;
  const int64_t noted = load_relaxed(&plan.noted);
  const bool refused = load_relaxed(&plan.refused) != INT64_MAX;
  for (int64_t row = mine.first; row < update.given.num; row += mine.step) {
    update.scratch.place[row] = -1;
    if (refused) continue;
    const int64_t slot = update.given.slots[row], word = look(update.headers, slot).word;
    if (!word_live(word) || load_relaxed(update.seen + slot) != word_count(word)) continue;
    if (update.given.generations != nullptr && update.given.generations[row] != word_generation(word)) continue;
    const int64_t place =
        find_entry(update.scratch.entries, update.scratch.num_entries, {update.given.slots, nullptr}, row);
    fetch_max_relaxed(&update.scratch.entries[place].last, row);
    update.scratch.place[row] = place;
  }
  for (int64_t i = mine.first; i < noted; i += mine.step) {
    const int64_t entry = update.scratch.noted[i];
    if (entry % 2 != 0) put_priority(update, entry / 2, first);
  }
}

// Of the given rows that name one slot the last is set.
__device__ inline void set_priorities(const PriorityUpdate& update, const PriorityThreads& mine) {
  for (int64_t row = mine.first; row < update.given.num; row += mine.step) {
    const int64_t place = update.scratch.place[row];
    if (place < 0 || load_relaxed(&update.scratch.entries[place].last) != row) continue;
    put_priority(update, update.given.slots[row], update.given.value(row));
  }
}

// One thread, after all others.
__device__ inline void end_priorities(const PriorityUpdate& update) {
  const PriorityPlan& plan = *update.scratch.plan;
  const int64_t refused = load_relaxed(&plan.refused);
  update.state[kPriorityPosition] = plan.end;
  if (refused != INT64_MAX) update.state[kPriorityRefused] = refused + 1;
  update.state[kPriorityDrawable] =
      node_sum(Family(update.tree + update.places.sums[update.places.levels - 1]).c) > 0.0 ? 1 : 0;
  update.state[kPriorityVisited] += plan.num;
  if (refused == INT64_MAX && update.given.num > 0) ++update.state[kPrioritySet];
}

// Fixes what there is to do, and does it where that is little. One block.
static __global__ void priorities_begin_kernel(const PriorityUpdate update) {
  if (threadIdx.x == 0) begin_priorities(update);
  __syncthreads();
  const PriorityPlan& plan = *update.scratch.plan;
  if (plan.alone == 0) return;
  const PriorityThreads mine = threads_of_block();
  note_priorities(update, mine);
  __syncthreads();
  const bool some = plan.rebuild != 0 || load_relaxed(&plan.noted) > 0;
  for (int level = 1; some && level < update.places.levels; ++level) {
    mend(update, mine, level, false);
    __syncthreads();
  }
  admit_priorities(update, mine);
  __syncthreads();
  set_priorities(update, mine);
  __syncthreads();
  for (int level = 1; level < update.places.levels; ++level) {
    mend(update, mine, level, true);
    __syncthreads();
  }
  if (threadIdx.x == 0) end_priorities(update);
}

enum class PriorityPhase { kNote, kMend, kAdmit, kSet, kMendGiven };

// One phase of a long update, as far as it is the grid's.
template <PriorityPhase phase>
__global__ void priorities_phase_kernel(const PriorityUpdate update) {
  if (update.scratch.plan->alone != 0) return;
  const PriorityThreads mine = threads_of_grid();
  if (phase == PriorityPhase::kNote) note_priorities(update, mine);
  if (phase == PriorityPhase::kMend && update.places.levels > 1) mend(update, mine, 1, false);
  if (phase == PriorityPhase::kAdmit) admit_priorities(update, mine);
  if (phase == PriorityPhase::kSet) set_priorities(update, mine);
  if (phase == PriorityPhase::kMendGiven && update.places.levels > 1) mend(update, mine, 1, true);
}

// The upper levels of a long update, all nodes of them. One block, which closes the update when it is the last.
static __global__ void priorities_top_kernel(const PriorityUpdate update, bool last) {
  if (update.scratch.plan->alone != 0) return;
  for (int level = 2; level < update.places.levels; ++level) {
    mend_level(update, threads_of_block(), level);
    __syncthreads();
  }
  if (last && threadIdx.x == 0) end_priorities(update);
}

// `threads`: of a block of the longer updates; a block that works alone has twice as many.
inline cudaError_t update_priorities_launch(const PriorityUpdate& update, cudaStream_t stream,
                                            unsigned threads = kPriorityThreads) {
  cudaError_t status = launch(priorities_begin_kernel, 1, 2 * threads, 0, stream, update);
  const int64_t most = std::max({update.places.capacity, update.ring, update.scratch.num_entries});
  if (std::max(update.places.capacity, update.ring) + update.given.num <= update.block_rows) return status;
  const unsigned grid = std::min(blocks_for(most, threads), kMostPriorityBlocks);
  const auto phase = [&](auto kernel) {
    if (status == cudaSuccess) status = launch(kernel, grid, threads, 0, stream, update);
  };
  const auto top = [&](bool last) {
    if (status == cudaSuccess) status = launch(priorities_top_kernel, 1, 2 * threads, 0, stream, update, last);
  };
  phase(priorities_phase_kernel<PriorityPhase::kNote>);
  phase(priorities_phase_kernel<PriorityPhase::kMend>);
  top(false);
  phase(priorities_phase_kernel<PriorityPhase::kAdmit>);
  phase(priorities_phase_kernel<PriorityPhase::kSet>);
  phase(priorities_phase_kernel<PriorityPhase::kMendGiven>);
  top(true);
  return status;
}

}  // namespace torchrb
