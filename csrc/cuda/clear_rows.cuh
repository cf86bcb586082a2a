// Retires every live record; kernels and launcher.
// One thread looks up the length, beyond which nothing lives; then a thread is a slot and strides over the rest, and
// the last block notes, in order, what was retired. Bound by one cache line a row.
#pragma once

#include "cuda/note_rows.cuh"
#include "cuda/scratch.cuh"
#include "cuda/slot_lock.cuh"

namespace torchrb {

// What the first kernel tells the second.
struct ClearPlan {
  int64_t length, blocks_done;
};

static __global__ void clear_plan_kernel(const int64_t* control, ClearPlan* plan, int64_t capacity) {
  const int64_t length = load_acquire(&control[kControlLength]);
  *plan = {length < capacity ? length : capacity, 0};
}

static __global__ void clear_rows_kernel(Headers headers, Journal journal, ClearPlan* plan,
                                         uint8_t* retired,  // [capacity]
                                         bool reset_writes) {
  SharedMemory shared;
  int64_t* cells = shared.take<int64_t>(kNoteCells);
  const int64_t length = plan->length, step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t slot = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; slot < length; slot += step) {
    int64_t word;
    do {
      word = look(headers, slot).word;
    } while (word_live(word) && !take_if(headers, slot, word));
    if (word_live(word)) publish(headers, slot, word_cleared(word));
    retired[slot] = word_live(word);
  }

  if (!is_last_block(&plan->blocks_done, cells)) return;
  note_rows(
      journal, length, [=](int64_t slot) { return retired[slot] != 0; }, [](int64_t slot) { return slot; },
      [=](const ControlLock& lock) {
        lock.set(kControlCursor, 0);
        lock.set(kControlLength, 0);
        lock.claim(kControlClears, 1);
        if (reset_writes) lock.set(kControlWrites, 0);
      },
      cells);
}

struct ClearRowsScratch {
  ClearPlan* plan;
  uint8_t* retired;

  ClearRowsScratch(Carver& carver, int64_t capacity)
      : plan(carver.take<ClearPlan>(1)), retired(carver.take<uint8_t>(capacity)) {}
};

inline cudaError_t clear_rows_launch(const Headers& headers, const Journal& journal, bool reset_writes,
                                     const ClearRowsScratch& scratch, cudaStream_t stream) {
  const cudaError_t status =
      launch(clear_plan_kernel, 1, 1, 0, stream, journal.control, scratch.plan, headers.capacity);
  if (status != cudaSuccess) return status;
  return launch(clear_rows_kernel, slot_blocks(headers.capacity), kSlotThreads, shared_bytes<int64_t>(kNoteCells),
                stream, headers, journal, scratch.plan, scratch.retired, reset_writes);
}

}  // namespace torchrb
