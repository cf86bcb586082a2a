#include "bind_rows.h"
#include "cuda/write_rows.cuh"

namespace torchrb::bound {

cudaError_t write_rows(const Pointers& tables, const Numbers& strides, int64_t capacity, int64_t* control,
                       int64_t* journal, int64_t journal_size, const Numbers& layout, const Pointers& batch,
                       const int64_t* slots, int64_t* generations, int64_t num_rows, bool renew, cudaStream_t stream) {
  const std::vector<Leaf> leaves = leaves_of(tables, strides, layout, batch);
  const Scratchpad<WriteRowsScratch> scratch(num_rows, leaves.size());
  return write_rows_launch(headers_of(tables, strides, capacity), leaves, {control, journal, journal_size}, slots,
                           generations, num_rows, renew, *scratch, stream);
}

SIMT_BIND("write_rows", write_rows);

}  // namespace torchrb::bound
