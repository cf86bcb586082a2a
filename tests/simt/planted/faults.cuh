// Kernels that reach beyond their memory or do not meet, and that behave where `sound`.
#pragma once

#include "cuda/device_atomics.cuh"
#include "cuda/shared_memory.cuh"

namespace planted {

using namespace torchrb;

// Puts values one place too far, the last of them past its piece.
template <bool sound>
__global__ void shared_out_of_bounds(const int* values, int* out) {
  SharedMemory shared;
  int* kept = shared.take<int>(blockDim.x);
  int* others = shared.take<int>(blockDim.x);
  kept[threadIdx.x + (sound ? 0 : 1)] = values[threadIdx.x];
  others[threadIdx.x] = 0;
  __syncthreads();
  out[threadIdx.x] = kept[threadIdx.x] + others[threadIdx.x];
}

// Rows of 21 bytes by 16 bytes and the rest: the second row is aligned to nothing.
template <bool sound>
__global__ void misaligned_copy(const unsigned char* rows, unsigned char* out, int64_t bytes) {
  const unsigned char* from = rows + threadIdx.x * bytes;
  unsigned char* to = out + threadIdx.x * bytes;
  int64_t done = 0;
  const bool aligned = (reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to)) % 16 == 0;
  if (!sound || aligned) {
    for (; done + 16 <= bytes; done += 16) {
      copy_word(reinterpret_cast<uint4*>(to + done), reinterpret_cast<const uint4*>(from + done));
    }
  }
  for (; done < bytes; ++done) copy_word(to + done, from + done);
}

// Threads beyond the last value copy all the same.
template <bool sound>
__global__ void global_out_of_bounds(const int* values, int* out, int n) {
  const int i = static_cast<int>(threadIdx.x);
  if (!sound || i < n) out[i] = values[i];
}

// Takes more shared memory than the launch has.
template <bool sound>
__global__ void carved_too_much(int* out) {
  SharedMemory shared;
  int* kept = shared.take<int>(blockDim.x);
  if (!sound) kept = shared.take<int>(1);
  kept[sound ? threadIdx.x : 0] = 1;
  out[threadIdx.x] = kept[sound ? threadIdx.x : 0];
}

// A barrier that half of the block passes by on its way to another one.
template <bool sound>
__global__ void divergent_barrier(int* out) {
  out[threadIdx.x] = 0;
  if (!sound && threadIdx.x % 2 == 0) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  out[threadIdx.x] += 1;
}

// Even lanes vote among themselves, and odd ones come along.
template <bool sound>
__global__ void not_in_the_mask(unsigned* out) {
  const bool even = threadIdx.x % 2 == 0;
  out[threadIdx.x] = 0;
  if (even || !sound) out[threadIdx.x] = __ballot_sync(0x55555555u, 1);
}

// All lanes are waited for, and half of them wait at the barrier behind.
template <bool sound>
__global__ void lanes_that_never_come(int* out) {
  int value = 1;
  if (threadIdx.x < 16) value = __shfl_sync(sound ? 0x0000ffffu : 0xffffffffu, value, 0);
  __syncthreads();
  out[threadIdx.x] = value;
}

// A sum over a warp whose upper lanes have returned: what they would have added is not there to be read.
template <bool sound>
__global__ void reads_a_lane_that_left(int* out, int n) {
  const int i = static_cast<int>(threadIdx.x);
  if (!sound && i >= n) return;
  int sum = i < n ? i : 0;
  for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(0xffffffffu, sum, static_cast<unsigned>(step));
  if (i == 0) *out = sum;
}

// Waits for a word that nobody writes.
template <bool sound>
__global__ void naps_for_ever(int* word) {
  if (sound && threadIdx.x == 1) store_release(word, 1);
  while (load_acquire(word) == 0) __nanosleep(100);
}

}  // namespace planted
