// A stretch of the permutation of [0, size) that a seed selects; kernel and launcher.
// A thread is a place in the stretch and strides over the rest; it walks until its image falls into the set.
// Bound by the launch.
#pragma once

#include "core/permutation.h"
#include "cuda/device_atomics.cuh"

namespace torchrb {

static __global__ void draw_permuted_kernel(const int64_t* seed,  // [1]
                                            int64_t* slots,       // [num]
                                            int64_t size, int64_t first, int64_t num) {
  const Permutation permutation(*seed, size);
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < num; i += step) {
    slots[i] = permutation(first + i);
  }
}

inline cudaError_t draw_permuted_launch(const int64_t* seed, int64_t* slots, int64_t size, int64_t first, int64_t num,
                                        cudaStream_t stream) {
  return launch(draw_permuted_kernel, blocks_for(num, kDrawThreads), kDrawThreads, 0, stream, seed, slots, size, first,
                num);
}

}  // namespace torchrb
