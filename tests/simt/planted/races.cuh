// Kernels that race, and that do not where `sound`.
#pragma once

#include "cuda/device_atomics.cuh"
#include "cuda/shared_memory.cuh"

namespace planted {

using namespace torchrb;

// Turns a block's values around. Without the barrier a thread reads what another may not have written.
template <bool sound>
__global__ void missing_syncthreads(const int* values, int* turned) {
  SharedMemory shared;
  int* kept = shared.take<int>(blockDim.x);
  const unsigned base = blockIdx.x * blockDim.x;
  kept[threadIdx.x] = values[base + threadIdx.x];
  if (sound) __syncthreads();
  turned[base + threadIdx.x] = kept[blockDim.x - 1 - threadIdx.x];
}

// The same in each warp: lanes are in step with nobody.
template <bool sound>
__global__ void missing_syncwarp(const int* values, int* turned) {
  SharedMemory shared;
  int* kept = shared.take<int>(blockDim.x);
  const unsigned base = blockIdx.x * blockDim.x;
  kept[threadIdx.x] = values[base + threadIdx.x];
  if (sound) __syncwarp();
  turned[base + threadIdx.x] = kept[threadIdx.x ^ 31u];
}

// A shuffle moves a register. It does not order memory.
template <bool sound>
__global__ void shuffle_as_barrier(const int* values, int* turned) {
  SharedMemory shared;
  int* kept = shared.take<int>(blockDim.x);
  const unsigned base = blockIdx.x * blockDim.x;
  kept[threadIdx.x] = values[base + threadIdx.x];
  int zero = __shfl_xor_sync(0xffffffffu, 0, 31);
  if (sound) __syncwarp();
  turned[base + threadIdx.x] = kept[threadIdx.x ^ 31u] + zero;
}

// Each block leaves a sum, and the last one to take a ticket adds them up. Without the fence before the ticket, the sum
// may come after it.
template <bool sound>
__global__ void missing_fence(const int* values, int* sums, unsigned* tickets, int* total) {
  if (threadIdx.x != 0) return;
  int sum = 0;
  for (unsigned i = 0; i < blockDim.x; ++i) sum += values[blockIdx.x * blockDim.x + i];
  sums[blockIdx.x] = sum;
  if (sound) __threadfence();
  if (atomicAdd(tickets, 1u) != gridDim.x - 1) return;
  __threadfence();
  *total = 0;
  for (unsigned block = 0; block < gridDim.x; ++block) *total += sums[block];
}

// The same, and the fence is missing where the sums are read.
template <bool sound>
__global__ void missing_fence_of_the_reader(const int* values, int* sums, unsigned* tickets, int* total) {
  if (threadIdx.x != 0) return;
  int sum = 0;
  for (unsigned i = 0; i < blockDim.x; ++i) sum += values[blockIdx.x * blockDim.x + i];
  sums[blockIdx.x] = sum;
  __threadfence();
  if (atomicAdd(tickets, 1u) != gridDim.x - 1) return;
  if (sound) __threadfence();
  *total = 0;
  for (unsigned block = 0; block < gridDim.x; ++block) *total += sums[block];
}

// Counts the blocks.
template <bool sound>
__global__ void plain_counter(int* count) {
  if (threadIdx.x != 0) return;
  if (sound) {
    atomicAdd(count, 1);
  } else {
    *count += 1;
  }
}

// Every block wants every word, and each word must go to one. A look and a store are not one step.
template <bool sound>
__global__ void check_then_act(int* words, int* won) {
  const int block = static_cast<int>(blockIdx.x) + 1;
  bool mine = false;
  if (sound) {
    int expected = 0;
    mine = compare_exchange(words + threadIdx.x, expected, block);
  } else if (load_acquire(words + threadIdx.x) == 0) {
    store_release(words + threadIdx.x, block);
    mine = true;
  }
  if (mine) atomicAdd(won + threadIdx.x, 1);
}

// A lock around a plain number. Given back by a relaxed store, it does not say what was done while it was held.
template <bool sound>
__global__ void lock_given_back_too_early(int* lock, int* guarded) {
  if (threadIdx.x != 0) return;
  for (int expected = 0; !compare_exchange(lock, expected, 1); expected = 0) __nanosleep(100);
  *guarded += 1;
  if (sound) {
    store_release(lock, 0);
  } else {
    store_relaxed(lock, 0);
  }
}

// One kernel reads what another wrote. On one stream, where `sound`, it comes after it.
__global__ inline void write_values(int* values) { values[threadIdx.x] = static_cast<int>(threadIdx.x); }
__global__ inline void double_values(const int* values, int* doubled) {
  doubled[threadIdx.x] = 2 * values[blockDim.x - 1 - threadIdx.x];
}

// Writer and reader of one row, on two streams: the sequence lock of the slot word, or plain sight.
inline constexpr int kRowWords = 4, kWrites = 6;
__global__ inline void write_row(int* word, ulonglong2* row) {
  if (threadIdx.x != 0) return;
  for (unsigned long long turn = 1; turn <= kWrites; ++turn) {
    const int seen = load_relaxed(word);
    int expected = seen;
    compare_exchange(word, expected, seen + 1);
    __threadfence();
    const ulonglong2 value{turn, turn};
    for (int i = 0; i < kRowWords; ++i) copy_word(row + i, &value);
    store_release(word, seen + 2);
  }
}
template <bool sound>
__global__ void torn_read(const int* word, const ulonglong2* row, ulonglong2* read) {
  for (;; __nanosleep(100)) {
    const int before = load_acquire(word);
    for (int i = 0; i < kRowWords; ++i) copy_word(read + threadIdx.x * kRowWords + i, row + i);
    __threadfence();
    if (!sound || (before % 2 == 0 && load_relaxed(word) == before)) return;
  }
}

}  // namespace planted
