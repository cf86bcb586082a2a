#include "bind_rows.h"
#include "cuda/update_priorities.cuh"

namespace torchrb::bound {

// `block_rows`: up to how many one block does alone; `threads`: of a block otherwise.
cudaError_t update(double* tree, int64_t* seen, int64_t* state, const int64_t* control, const int64_t* journal,
                   int64_t ring, unsigned char* headers, int64_t stride, int64_t capacity, const int64_t* slots,
                   const int64_t* generations, const unsigned char* values, Dtype dtype, int64_t num, double alpha,
                   double eps, bool rebuild, int64_t block_rows, int64_t threads, cudaStream_t stream) {
  const Scratchpad<UpdatePrioritiesScratch> scratch(capacity, num);
  const PriorityUpdate update{PriorityPlaces(capacity),
                              tree,
                              seen,
                              state,
                              control,
                              journal,
                              ring,
                              {headers, stride, capacity},
                              {slots, generations, values, dtype, num},
                              alpha,
                              eps,
                              rebuild,
                              *scratch,
                              block_rows};
  return update_priorities_launch(update, stream, static_cast<unsigned>(threads));
}

void size(int64_t* tree_size, int64_t capacity) { *tree_size = PriorityPlaces(capacity).size; }

SIMT_BIND("update", update);
SIMT_BIND("size", size);

}  // namespace torchrb::bound
