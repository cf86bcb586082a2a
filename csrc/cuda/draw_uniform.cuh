// Slots drawn uniformly, with replacement, below the current length; kernel and launcher.
// A thread is a draw and strides over the rest; it reads the length itself, so nothing waits for the host.
// Bound by the launch.
#pragma once

#include "core/control.h"
#include "core/rng.h"
#include "cuda/device_atomics.cuh"

namespace torchrb {

static __global__ void draw_uniform_kernel(const int64_t* seed,     // [1]
                                           const int64_t* control,  // [kControlSize]
                                           int64_t* slots,          // [num]
                                           int64_t num) {
  const uint64_t key = stream_key(*seed, kUniformStream);
  const int64_t length = load_acquire(&control[kControlLength]);
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < num; i += step) {
    slots[i] = below(random64(key, i), length);
  }
}

inline cudaError_t draw_uniform_launch(const int64_t* seed, const int64_t* control, int64_t* slots, int64_t num,
                                       cudaStream_t stream) {
  return launch(draw_uniform_kernel, blocks_for(num, kDrawThreads), kDrawThreads, 0, stream, seed, control, slots, num);
}

}  // namespace torchrb
