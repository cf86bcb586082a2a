#include "bind.h"
#include "cuda/draw_priorities.cuh"

namespace {

using namespace torchrb;

template <typename Weight>
cudaError_t draw(const double* tree, int64_t capacity, const int64_t* seed, const double* masses, int64_t* slots,
                 Weight* weights, int64_t num, double beta, cudaStream_t stream) {
  return draw_priorities_launch(PriorityPlaces(capacity), tree, seed, masses, slots, weights, num, beta, stream);
}

}  // namespace

SIMT_BIND("float32", draw<float>);
SIMT_BIND("float64", draw<double>);
