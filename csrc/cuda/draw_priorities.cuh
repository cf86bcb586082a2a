// Rows drawn in proportion to their weights, and their importance weights; kernel and launcher.
// A thread is a draw: it reads the root for the total, then goes down the tree. No draw waits for the host.
// Bound by the latency of memory, a miss or so at each of the lower levels.
#pragma once

#include "core/priority_tree.h"
#include "core/rng.h"
#include "cuda/launch.cuh"

namespace torchrb {

template <typename Weight>
__global__ void draw_priorities_kernel(const PriorityPlaces places,
                                       const double* tree,    // [places.size]
                                       const int64_t* seed,   // [1]
                                       const double* masses,  // [num], or null
                                       int64_t* slots,        // [num]
                                       Weight* weights,       // [num]
                                       int64_t num, double beta) {
  const int top = places.levels - 1;
  const double total = node_sum(tree + places.sums[top]);
  const double log2_least = total > 0.0 ? log2_of(node_least(tree + places.least[top])) : 0.0;
  const uint64_t key = stream_key(*seed, kPriorityStream);
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < num; i += step) {
    if (!(total > 0.0)) {
      slots[i] = -1;
      weights[i] = 0;
      continue;
    }
    const double mass = masses != nullptr ? masses[i] : fraction_of(random64(key, i)) * total;
    Descent at{0, mass > 0.0 ? mass : 0.0};
    for (int level = top; level >= 0; --level) at.step(tree + places.sums[level] + at.entry * PriorityPlaces::kFan);
    slots[i] = at.entry;
    weights[i] = static_cast<Weight>(importance(tree[places.sums[0] + at.entry], log2_least, beta));
  }
}

template <typename Weight>
inline cudaError_t draw_priorities_launch(const PriorityPlaces& places, const double* tree, const int64_t* seed,
                                          const double* masses, int64_t* slots, Weight* weights, int64_t num,
                                          double beta, cudaStream_t stream) {
  return launch(draw_priorities_kernel<Weight>, blocks_for(num, kDrawThreads), kDrawThreads, 0, stream, places, tree,
                seed, masses, slots, weights, num, beta);
}

}  // namespace torchrb
