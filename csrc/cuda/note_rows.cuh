// The end of an op that writes: one block, the last to be done, notes the slots in the journal and moves `control`.
#pragma once

#include "cuda/control_lock.cuh"
#include "cuda/shared_memory.cuh"

namespace torchrb {

inline constexpr int64_t kNoteCells = 33;  // int64 of shared memory that these functions take: a warp each, and one

struct Journal {
  int64_t* control;  // [kControlSize]
  int64_t* entries;  // [size], a ring
  int64_t size;
};

// True for all threads of the block that comes last to this point, false for those of the others. What any block wrote
// before it, the last one sees behind it. `ticket` was 0 before the launch.
__device__ inline bool is_last_block(int64_t* ticket, int64_t* cells) {
  __syncthreads();
  if (threadIdx.x == 0) {
    device_fence();
    cells[0] = fetch_add_relaxed(ticket, int64_t{1}) == static_cast<int64_t>(gridDim.x) - 1;
    device_fence();
  }
  __syncthreads();
  const bool last = cells[0] != 0;
  __syncthreads();
  return last;
}

// The sum of `mine` over the threads before this one; `total` over all of the block.
__device__ inline int64_t block_prefix(int64_t mine, int64_t* cells, int64_t& total) {
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  long long sum = mine;
  for (unsigned step = 1; step < 32; step *= 2) {
    const long long below = __shfl_up_sync(0xFFFFFFFFu, sum, step);
    if (lane >= step) sum += below;
  }
  if (lane == 31) cells[warp] = sum;
  __syncthreads();
  int64_t before = sum - mine;
  total = 0;
  for (unsigned i = 0; i < blockDim.x / 32; ++i) {
    if (i < warp) before += cells[i];
    total += cells[i];
  }
  __syncthreads();
  return before;
}

// The greatest `mine` of the block; 0 at least.
__device__ inline int64_t block_max(int64_t mine, int64_t* cells) {
  if (threadIdx.x == 0) cells[0] = 0;
  __syncthreads();
  fetch_max_relaxed(&cells[0], mine);
  __syncthreads();
  const int64_t most = load_relaxed(&cells[0]);
  __syncthreads();
  return most;
}

// The entries of one note, `num` of them from the present head on; of more than fit, the last. Others wait from here to
// `end_note`.
struct Note {
  int64_t head, num;
  int64_t first;  // the first that is kept
  int64_t place;  // where it goes
};

__device__ inline Note begin_note(const Journal& journal, int64_t num, int64_t* cells) {
  if (threadIdx.x == 0) {
    const ControlLock lock(journal.control);
    lock.lock();
    cells[0] = lock.get(kControlJournal);
  }
  __syncthreads();
  const int64_t head = cells[0], first = num > journal.size ? num - journal.size : 0;
  __syncthreads();
  // Unsigned: inside the ring whatever the head is.
  const uint64_t place = journal.size > 0 ? static_cast<uint64_t>(head + first) % journal.size : 0;
  return {head, num, first, static_cast<int64_t>(place)};
}

__device__ inline void put_note(const Journal& journal, const Note& note, int64_t i, int64_t slot) {
  if (i < note.first) return;
  const int64_t place = note.place + (i - note.first);
  store_relaxed(&journal.entries[place < journal.size ? place : place - journal.size], slot);
}

// `finish(lock)` moves the other numbers; one thread.
template <typename Finish>
__device__ inline void end_note(const Journal& journal, const Note& note, const Finish& finish) {
  device_fence();
  __syncthreads();
  if (threadIdx.x != 0) return;
  const ControlLock lock(journal.control);
  lock.set(kControlJournal, note.head + note.num);
  finish(lock);
  lock.unlock();
}

// Notes `slot_of(i)` for those i of [0, num) that `written(i)` holds for, ascending. One block.
template <typename Written, typename SlotOf, typename Finish>
__device__ inline void note_rows(const Journal& journal, int64_t num, const Written& written, const SlotOf& slot_of,
                                 const Finish& finish, int64_t* cells) {
  constexpr int64_t kRowsAThread = 16;
  const int64_t step = kRowsAThread * static_cast<int64_t>(blockDim.x);
  // Which of a thread's rows were written, as bits.
  const auto mine = [&](int64_t begin) {
    unsigned bits = 0;
    for (int64_t i = 0; i < kRowsAThread && begin + i < num; ++i) bits |= (written(begin + i) ? 1u : 0u) << i;
    return bits;
  };
  int64_t total = 0;
  for (int64_t begin = kRowsAThread * static_cast<int64_t>(threadIdx.x); begin < num; begin += step) {
    total += __popc(mine(begin));
  }
  int64_t all;
  block_prefix(total, cells, all);

  const Note note = begin_note(journal, all, cells);
  int64_t done = 0;
  for (int64_t chunk = 0; chunk < num; chunk += step) {
    const int64_t begin = chunk + kRowsAThread * static_cast<int64_t>(threadIdx.x);
    const unsigned bits = mine(begin);
    int64_t of_chunk;
    int64_t at = done + block_prefix(__popc(bits), cells, of_chunk);
    for (int64_t i = 0; i < kRowsAThread; ++i) {
      if ((bits >> i & 1u) != 0) put_note(journal, note, at++, slot_of(begin + i));
    }
    done += of_chunk;
  }
  end_note(journal, note, finish);
}

}  // namespace torchrb
