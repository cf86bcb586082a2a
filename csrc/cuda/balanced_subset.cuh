// Which candidates of each oversampled group to keep.
// A block is a group. Where all subsets may be scored its threads share the tree of choices; else they share the
// sorting and matching of two halves, or the swaps of a greedy choice. A second launch is for the groups whose halves
// need more room than each block of the first one has. Bound by arithmetic and by the latency of one thread's steps.
#pragma once

#include "cuda/balanced_exact.cuh"
#include "cuda/balanced_large.cuh"

namespace torchrb {

struct BalancedSubset {
  const double* returns;  // [groups, n]
  int64_t groups, n, k;
  double low, high;
  int64_t max_combinations;
  double rounding;
  int64_t* index;  // [groups, k]
  bool* found;     // [groups]
  // Scratch.
  uint8_t* waits;         // [groups]: needs the second launch
  unsigned char* memory;  // [blocks, bytes]
  int64_t bytes, max_entries;
};

// How a launch is cut: how many blocks there are, and what each may hold.
struct BalancedShape {
  int64_t max_entries = 0, bytes = 0;
  unsigned blocks = 0;
};

inline BalancedShape balanced_shape(int64_t groups, int64_t n, int64_t k, double entries) {
  BalancedShape shape;
  shape.max_entries = static_cast<int64_t>(entries);
  balanced::Space measure{};
  shape.bytes = measure.carve(nullptr, n, std::min(k, n), kBalancedThreads, shape.max_entries);
  const int64_t most = std::max<int64_t>(1, kBalancedMemory / shape.bytes);
  shape.blocks = static_cast<unsigned>(std::min<int64_t>({groups, most, kMostBalancedBlocks}));
  return shape;
}

// A half of n values has no more choices than this, cut as it is: 2^(n/2), and half as many again where values tie.
inline double most_in_half(int64_t n) { return std::ceil(1.5 * std::exp2(0.5 * static_cast<double>(n))) + 2; }

inline BalancedShape balanced_first_shape(int64_t groups, int64_t n, int64_t k, int64_t max_combinations) {
  return balanced_shape(groups, n, k, std::min(static_cast<double>(max_combinations), 2 * most_in_half(n)));
}

// No blocks where the first launch can hold everything.
inline BalancedShape balanced_last_shape(int64_t groups, int64_t n, int64_t k, int64_t max_combinations) {
  const double entries = 2 * std::min(balanced::kHalfLimit, most_in_half(n));
  return entries <= static_cast<double>(max_combinations) ? BalancedShape{} : balanced_shape(groups, n, k, entries);
}

// `last`: the second launch.
template <bool last>
__global__ void balanced_subset_kernel(const BalancedSubset task) {
  SharedMemory shared;
  const balanced::Board board{shared.take<double>(blockDim.x),  shared.take<int64_t>(blockDim.x),
                              shared.take<int64_t>(blockDim.x), shared.take<unsigned long long>(2),
                              shared.take<double>(2),           shared.take<int32_t>(4)};
  balanced::Space space{};
  space.carve(task.memory + blockIdx.x * task.bytes, task.n, min(task.k, task.n), blockDim.x, task.max_entries);
  balanced::Problem problem{{board.cells}, board, space, balanced::Bounds(task.k, 0, 0, 0, 0, 0)};
  for (int64_t group = blockIdx.x; group < task.groups; group += gridDim.x) {
    if (last && task.waits[group] == 0) continue;
    int64_t* const index = task.index + group * task.k;
    bool found = false, sorted = false, waits = false;
    if (balanced::set_up(problem, task.returns + group * task.n, task.n, task.k, task.low, task.high, task.rounding)) {
      const auto budget = static_cast<double>(task.max_combinations);
      balanced::count_multisets(problem, 0, problem.num_classes, space.first_ways);
      const double subsets = space.first_ways[task.k];
      problem.team.sync();
      if (subsets <= budget) {
        found = sorted = balanced::exact(problem, task.n, index);
      } else {
        const balanced::Cut cut = balanced::cut_in_two(problem);
        const double entries = cut.first_entries + cut.second_entries;
        const bool fits = entries <= static_cast<double>(task.max_entries);
        const bool halves = entries <= budget || max(cut.first_entries, cut.second_entries) <= balanced::kHalfLimit;
        found = entries > budget && !last && balanced::greedy(problem);
        waits = !found && halves && !fits;
        if (!found && halves && fits) found = balanced::meet(problem, cut);
      }
    }
    problem.team.sync();
    if (threadIdx.x == 0) {
      task.waits[group] = waits ? 1 : 0;
      task.found[group] = found;
      for (int64_t i = 0; i < task.k && !sorted; ++i) index[i] = found ? space.order[space.chosen[i]] : 0;
      // Few, and nearly sorted: positions ascend by value, candidates by place.
      for (int64_t i = 1; i < task.k && found && !sorted; ++i) {
        const int64_t candidate = index[i];
        int64_t at = i;
        for (; at > 0 && index[at - 1] > candidate; --at) index[at] = index[at - 1];
        index[at] = candidate;
      }
    }
    problem.team.sync();
  }
}

// `task.memory`: for the larger of both shapes, blocks * bytes.
inline cudaError_t balanced_subset_launch(BalancedSubset task, cudaStream_t stream) {
  const size_t shared = shared_bytes<double>(kBalancedThreads) + 2 * shared_bytes<int64_t>(kBalancedThreads) +
                        shared_bytes<unsigned long long>(2) + shared_bytes<double>(2) + shared_bytes<int32_t>(4);
  const BalancedShape first = balanced_first_shape(task.groups, task.n, task.k, task.max_combinations);
  task.bytes = first.bytes;
  task.max_entries = first.max_entries;
  const cudaError_t status =
      launch(balanced_subset_kernel<false>, first.blocks, kBalancedThreads, shared, stream, task);
  const BalancedShape last = balanced_last_shape(task.groups, task.n, task.k, task.max_combinations);
  if (status != cudaSuccess || last.blocks == 0) return status;
  task.bytes = last.bytes;
  task.max_entries = last.max_entries;
  return launch(balanced_subset_kernel<true>, last.blocks, kBalancedThreads, shared, stream, task);
}

}  // namespace torchrb
