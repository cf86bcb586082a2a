#include "bind.h"
#include "cuda/balanced_subset.cuh"

namespace {

using namespace torchrb;

void bytes(int64_t* needed, int64_t groups, int64_t n, int64_t k, int64_t max_combinations) {
  const BalancedShape first = balanced_first_shape(groups, n, k, max_combinations);
  const BalancedShape last = balanced_last_shape(groups, n, k, max_combinations);
  *needed = std::max(first.bytes * first.blocks, last.bytes * last.blocks);
}

cudaError_t choose(const double* returns, int64_t groups, int64_t n, int64_t k, double low, double high,
                   int64_t max_combinations, double rounding, int64_t* index, bool* found, uint8_t* waits,
                   unsigned char* memory, cudaStream_t stream) {
  return balanced_subset_launch(
      {returns, groups, n, k, low, high, max_combinations, rounding, index, found, waits, memory, 0, 0}, stream);
}

}  // namespace

SIMT_BIND("bytes", bytes);
SIMT_BIND("choose", choose);
