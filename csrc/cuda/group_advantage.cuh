// Advantages within each group, kernel and launcher.
// A thread is a group and strides over the rest; its sums run in the order of the row, as on the CPU.
// Bound by memory: a row is read three times, but the lines it lies on stay in L1 between the passes for rows of
// training size.
#pragma once

#include "core/advantage.h"
#include "cuda/launch.cuh"

namespace torchrb {

template <typename T>
__global__ void group_advantage_kernel(const T* returns,  // [groups, n]
                                       T* advantages,     // [groups, n]
                                       int64_t groups, int64_t n, AdvantageKind kind, double epsilon) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t group = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; group < groups; group += step) {
    group_advantage_row(returns + group * n, advantages + group * n, n, kind, epsilon);
  }
}

template <typename T>
inline cudaError_t group_advantage_launch(const T* returns, T* advantages, int64_t groups, int64_t n,
                                          AdvantageKind kind, double epsilon, cudaStream_t stream) {
  return launch(group_advantage_kernel<T>, blocks_for(groups, kAdvantageThreads), kAdvantageThreads, 0, stream, returns,
                advantages, groups, n, kind, epsilon);
}

template __global__ void group_advantage_kernel<float>(const float*, float*, int64_t, int64_t, AdvantageKind, double);
template __global__ void group_advantage_kernel<double>(const double*, double*, int64_t, int64_t, AdvantageKind,
                                                        double);

}  // namespace torchrb
