#include "bind_rows.h"
#include "cuda/append_rows.cuh"

namespace torchrb::bound {

cudaError_t append_rows(const Pointers& tables, const Numbers& strides, int64_t capacity, int64_t* control,
                        int64_t* journal, int64_t journal_size, const Numbers& layout, const Pointers& batch,
                        int64_t* slots, int64_t* generations, int64_t num_rows, cudaStream_t stream) {
  const std::vector<Leaf> leaves = leaves_of(tables, strides, layout, batch);
  const Scratchpad<AppendRowsScratch> scratch(leaves.size());
  return append_rows_launch(headers_of(tables, strides, capacity), leaves, {control, journal, journal_size}, slots,
                            generations, num_rows, *scratch, stream);
}

SIMT_BIND("append_rows", append_rows);

}  // namespace torchrb::bound
