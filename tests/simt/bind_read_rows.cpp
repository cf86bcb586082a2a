#include "bind_rows.h"
#include "cuda/read_rows.cuh"

namespace torchrb::bound {

cudaError_t read_rows(const Pointers& tables, const Numbers& strides, int64_t capacity, const Numbers& layout,
                      const Pointers& batch, const int64_t* slots, int64_t* generations, int64_t num_rows,
                      cudaStream_t stream) {
  const std::vector<Leaf> leaves = leaves_of(tables, strides, layout, batch);
  const Scratchpad<ReadRowsScratch> scratch(leaves.size());
  return read_rows_launch(headers_of(tables, strides, capacity), leaves, slots, generations, num_rows, *scratch,
                          stream);
}

SIMT_BIND("read_rows", read_rows);

}  // namespace torchrb::bound
