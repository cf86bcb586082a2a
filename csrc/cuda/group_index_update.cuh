// Brings the group index up to the journal: every slot written since is put under its present key, or taken out.
// A thread is an entry of the journal. The work goes in phases, each a few dependent loads and stores a thread; no
// phase needs a lock: rows leave in runs that one thread cuts out, and enter through compare-and-swap. A short stretch
// of the journal is one block's, with barriers between the phases; a longer one goes through a kernel a phase.
// Bound by the latency of memory, some ten misses one after another; of what was written, never of what is stored.
#pragma once

#include "core/control.h"
#include "cuda/group_links.cuh"
#include "cuda/slot_lock.cuh"

namespace torchrb {

struct IndexUpdate {
  GroupLinks links;
  Headers headers;
  KeyCells cells;
  int64_t* state;          // [kIndexStateSize]
  const int64_t* control;  // [kControlSize]
  const int64_t* journal;  // [ring]
  int64_t ring;
  bool rebuild;
  int64_t block_entries = kBlockEntries;  // what one block does alone
};

// Which entries a thread has: first, first + step, ...
struct Stride {
  int64_t first, step;
};

__device__ inline Stride stride_of_grid() {
  return {static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x, static_cast<int64_t>(gridDim.x) * blockDim.x};
}

// A row's mark: kNoted from when the journal named it, so that a row named twice is handled once; kMoving while it is
// on its way from one group to another; else 0.
enum : int32_t { kNoted = 1, kMoving = -1 };

// Visits the rows that the journal named, or all. The entries themselves are read only once: a writer may overwrite
// them meanwhile.
template <typename Visit>
__device__ inline void for_noted(const IndexUpdate& update, const Stride& stride, const Visit& visit) {
  const IndexHead& head = *update.links.head;
  const int64_t num = head.all != 0 ? update.links.capacity : load_relaxed(&head.noted);
  for (int64_t i = stride.first; i < num; i += stride.step) visit(head.all != 0 ? i : update.links.noted[i]);
}

// As above, for the rows on their way.
template <typename Visit>
__device__ inline void for_moving(const IndexUpdate& update, const Stride& stride, const Visit& visit) {
  for_noted(update, stride, [&](int64_t slot) {
    if (load_relaxed(&update.links.marks[slot]) == kMoving) visit(slot);
  });
}

// What there is to do, fixed for all that follows. One thread.
__device__ inline void begin_update(const IndexUpdate& update) {
  IndexHead& head = *update.links.head;
  const int64_t position = update.state[kIndexPosition];
  head.end = load_acquire(update.control + kControlJournal);
  head.all = update.rebuild || position < 0 || head.end - position > update.ring ? 1 : 0;
  head.begin = position;
  head.num = head.all != 0 ? update.links.capacity : head.end - position;
  store_relaxed(&head.noted, 0);
}

// Lists the rows that the journal names. Not where all rows are looked at: each is there once.
__device__ inline void list_rows(const IndexUpdate& update, const Stride& stride) {
  const GroupLinks& links = update.links;
  const IndexHead& head = *links.head;
  if (head.all != 0) return;
  for (int64_t entry = stride.first; entry < head.num; entry += stride.step) {
    const auto place = static_cast<uint64_t>(head.begin + entry) % static_cast<uint64_t>(update.ring);
    const int64_t slot = load_relaxed(update.journal + place);
    if (!links.holds(slot) || atomicExch(&links.marks[slot], kNoted) != 0) continue;
    links.noted[atomicAdd(&links.head->noted, 1)] = static_cast<int32_t>(slot);
  }
}

// What a row is now.
struct Present {
  bool live, numbers;
};

// Looks at a row between two looks at its word. `visit(word's place, word)` is given its key, perhaps several times.
template <typename Visit>
__device__ inline Present look_at_key(const IndexUpdate& update, int64_t slot, const Visit& visit) {
  const int64_t step = element_bytes(update.cells.dtype);
  for (;;) {
    const Look seen = look(update.headers, slot);
    Present now{word_live(seen.word), true};
    if (now.live) {
      const unsigned char* at = update.cells.cell.in_table(slot);
      for (int64_t i = 0; i < update.cells.num_words; ++i, at += step) visit(i, update.cells.word(at, now.numbers));
    }
    __threadfence();
    if (unmoved(update.headers, slot, seen)) return now;
  }
}

// The head of the group that a row is in.
__device__ inline int64_t head_of(const GroupLinks& links, int64_t row) {
  if (links.rows[row].previous == GroupLinks::kIsHead) return row;
  const uint64_t hash = links.hash_of(row);
  int32_t group = links.bucket_of(hash).first;
  while (links.compare(hash, row, group - 1) != 0) group = links.rows[group - 1].chain;
  return group - 1;
}

// Decides which rows have to move, and counts them out of where they are. Lists and chains stay as they are.
__device__ inline void look_at_rows(const IndexUpdate& update, const Stride& stride) {
  const GroupLinks& links = update.links;
  for_noted(update, stride, [&](int64_t slot) {
    GroupLinks::Row& row = links.rows[slot];
    const bool inside = row.previous != GroupLinks::kNowhere;
    const bool outcast = inside && load_relaxed(&row.size) == GroupLinks::kOutcast;
    bool same = true;
    const Present now = look_at_key(update, slot, [&](int64_t place, int64_t word) {
      same = (place == 0 || same) && links.key(slot)[place] == word;
    });
    const bool stays = !inside ? !now.live : outcast ? now.live && !now.numbers : now.live && now.numbers && same;
    store_relaxed(&links.marks[slot], static_cast<int32_t>(stays ? 0 : kMoving));
    if (stays || !inside) return;
    if (outcast) {
      atomicAdd(&links.rows[links.capacity].size, -1);
      return;
    }
    const int64_t group = head_of(links, slot);
    GroupLinks::Bucket& bucket = links.bucket_of(links.hash_of(slot));
    if (group == slot) atomicCAS(&bucket.owner, 0, static_cast<int32_t>(slot + 1));
    const int32_t size = atomicAdd(&links.rows[group].size, -1);
    if (size <= 2) atomicAdd(&links.head->singletons, size == 2 ? 1 : -1);
    if (size == 1) links.count(bucket, -1);
  });
}

// Cuts the leaving rows out of their lists: each run of neighbours by the thread of its first one. Where a group's head
// leaves, its `next` becomes the new head.
__device__ inline void cut_runs(const IndexUpdate& update, const Stride& stride) {
  const GroupLinks& links = update.links;
  const auto leaves = [&](int32_t row) { return load_relaxed(&links.marks[row]) == kMoving; };
  for_moving(update, stride, [&](int64_t slot) {
    GroupLinks::Row& row = links.rows[slot];
    const int32_t previous = load_relaxed(&row.previous);
    if (previous == GroupLinks::kNowhere) return;
    const bool heads = previous == GroupLinks::kIsHead;
    if (!heads && leaves(previous - GroupLinks::kFirstPrevious)) return;
    int32_t next = load_relaxed(&row.next);
    while (next != 0 && leaves(next - 1)) next = load_relaxed(&links.rows[next - 1].next);
    store_relaxed(heads ? &row.next : &links.rows[previous - GroupLinks::kFirstPrevious].next, next);
    if (next != 0) store_relaxed(&links.rows[next - 1].previous, previous);
  });
}

// Puts the new heads into the chains in place of those that leave; groups that became empty drop out.
__device__ inline void mend_chains(const IndexUpdate& update, const Stride& stride) {
  const GroupLinks& links = update.links;
  for_moving(update, stride, [&](int64_t slot) {
    if (load_relaxed(&links.rows[slot].previous) != GroupLinks::kIsHead) return;
    GroupLinks::Bucket& bucket = links.bucket_of(links.hash_of(slot));
    if (load_relaxed(&bucket.owner) != slot + 1) return;
    int32_t* link = &bucket.first;
    for (int32_t group = *link; group != 0;) {
      GroupLinks::Row& old = links.rows[group - 1];
      const int32_t after = old.chain;
      if (load_relaxed(&links.marks[group - 1]) == kMoving) {
        group = load_relaxed(&old.next);
        if (group != 0) links.rows[group - 1].size = load_relaxed(&old.size);
      }
      if (group != 0) {
        *link = group;
        link = &links.rows[group - 1].chain;
      }
      group = after;
    }
    *link = 0;
    store_relaxed(&bucket.owner, 0);
  });
}

// Makes a row the first member after a head.
__device__ inline int32_t join(const GroupLinks& links, int64_t head, int64_t slot, int32_t size) {
  GroupLinks::Row& row = links.rows[slot];
  const auto me = static_cast<int32_t>(slot);
  store_relaxed(&row.size, size);
  store_relaxed(&row.previous, static_cast<int32_t>(head) + GroupLinks::kFirstPrevious);
  __threadfence();  // whoever joins next writes `previous` again
  const int32_t next = atomicExch(&links.rows[head].next, me + 1);
  store_relaxed(&row.next, next);
  if (next != 0) store_relaxed(&links.rows[next - 1].previous, me + GroupLinks::kFirstPrevious);
  return atomicAdd(&links.rows[head].size, 1);
}

// Puts a row, whose key lies in `keys`, into the group of that key; where there is none, the row becomes its head.
__device__ inline void enter_group(const GroupLinks& links, int64_t slot) {
  const uint64_t hash = links.hash_of(slot);
  GroupLinks::Bucket& bucket = links.bucket_of(hash);
  GroupLinks::Row& row = links.rows[slot];
  const auto me = static_cast<int32_t>(slot + 1);
  store_relaxed(&row.size, 1);
  store_relaxed(&row.previous, static_cast<int32_t>(GroupLinks::kIsHead));
  for (int32_t* link = &bucket.first;;) {
    const int32_t group = load_acquire(link);
    const int order = group == 0 ? -1 : links.compare(hash, slot, group - 1);
    if (order > 0) {
      link = &links.rows[group - 1].chain;
    } else if (order == 0) {
      if (join(links, group - 1, slot, GroupLinks::kMember) == 1) atomicAdd(&links.head->singletons, -1);
      return;
    } else {
      store_relaxed(&row.chain, group);
      __threadfence();  // who finds the head finds its key
      if (atomicCAS(link, group, me) != group) continue;
      atomicAdd(&links.head->singletons, 1);
      links.count(bucket, 1);
      return;
    }
  }
}

__device__ inline void enter_rows(const IndexUpdate& update, const Stride& stride) {
  const GroupLinks& links = update.links;
  for_moving(update, stride, [&](int64_t slot) {
    GroupLinks::Row& row = links.rows[slot];
    store_relaxed(&row.next, 0);
    store_relaxed(&row.previous, static_cast<int32_t>(GroupLinks::kNowhere));
    store_relaxed(&row.size, 0);
    const Present now = look_at_key(update, slot, [&](int64_t place, int64_t word) { links.key(slot)[place] = word; });
    if (now.live && now.numbers) enter_group(links, slot);
    if (now.live && !now.numbers) join(links, links.capacity, slot, GroupLinks::kOutcast);
    store_relaxed(&links.marks[slot], 0);
  });
}

// What the update came to. One thread, after all others.
__device__ inline void end_update(const IndexUpdate& update) {
  const IndexHead& head = *update.links.head;
  // Writers on other streams may have overwritten entries that were still to be read: then all rows, next time. Who
  // writes entries holds the lock until the journal's position has moved.
  while (load_acquire(update.control + kControlLock) != 0) __nanosleep(kSpinNanoseconds);
  const bool overrun = head.all == 0 && load_acquire(update.control + kControlJournal) - head.begin > update.ring;
  update.state[kIndexPosition] = overrun ? head.begin - update.ring : head.end;
  update.state[kIndexGroups] = load_relaxed(&head.groups);
  update.state[kIndexSingletons] = load_relaxed(&head.singletons);
  update.state[kIndexOutcast] = static_cast<int64_t>(load_relaxed(&update.links.rows[update.links.capacity].next)) - 1;
  update.state[kIndexVisited] += head.num;
}

// Fixes what there is to do, and does it where that is little. One block.
static __global__ void group_index_begin_kernel(const IndexUpdate update) {
  IndexHead& head = *update.links.head;
  const Stride stride{threadIdx.x, blockDim.x};
  if (threadIdx.x == 0) begin_update(update);
  __syncthreads();
  const int64_t num = head.num;
  if (num > update.block_entries) return;
  if (num > 0) {
    list_rows(update, stride);
    __syncthreads();
    look_at_rows(update, stride);
    __syncthreads();
    cut_runs(update, stride);
    __syncthreads();
    mend_chains(update, stride);
    __syncthreads();
    enter_rows(update, stride);
    __syncthreads();
  }
  if (threadIdx.x != 0) return;
  end_update(update);
  if (num > 0) head.num = 0;  // nothing is left for the kernels that follow
}

enum class IndexPhase { kNote, kLook, kCut, kMend };

// One phase of a long update.
template <IndexPhase phase>
__global__ void group_index_phase_kernel(const IndexUpdate update) {
  if (update.links.head->num == 0) return;
  const Stride stride = stride_of_grid();
  if (phase == IndexPhase::kNote) list_rows(update, stride);
  if (phase == IndexPhase::kLook) look_at_rows(update, stride);
  if (phase == IndexPhase::kCut) cut_runs(update, stride);
  if (phase == IndexPhase::kMend) mend_chains(update, stride);
}

// The last phase of a long update. The block that ends last closes it.
static __global__ void group_index_enter_kernel(const IndexUpdate update) {
  IndexHead& head = *update.links.head;
  if (head.num == 0) return;
  enter_rows(update, stride_of_grid());
  __threadfence();
  __syncthreads();
  if (threadIdx.x != 0 || atomicAdd(&head.done, 1) != static_cast<int32_t>(gridDim.x) - 1) return;
  __threadfence();
  end_update(update);
  store_relaxed(&head.done, 0);
}

// `threads`: of a block of the longer updates; the block that works alone has twice as many.
inline cudaError_t group_index_update_launch(const IndexUpdate& update, cudaStream_t stream,
                                             unsigned threads = kIndexThreads) {
  cudaError_t status = launch(group_index_begin_kernel, 1, 2 * threads, 0, stream, update);
  const int64_t most = std::max(update.links.capacity, update.ring);
  if (most <= update.block_entries) return status;
  const unsigned grid = std::min(blocks_for(most, threads), kMostIndexBlocks);
  for (const auto kernel : {group_index_phase_kernel<IndexPhase::kNote>, group_index_phase_kernel<IndexPhase::kLook>,
                            group_index_phase_kernel<IndexPhase::kCut>, group_index_phase_kernel<IndexPhase::kMend>,
                            group_index_enter_kernel}) {
    if (status == cudaSuccess) status = launch(kernel, grid, threads, 0, stream, update);
  }
  return status;
}

}  // namespace torchrb
