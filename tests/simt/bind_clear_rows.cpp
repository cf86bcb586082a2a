#include "bind_rows.h"
#include "cuda/clear_rows.cuh"

namespace torchrb::bound {

cudaError_t clear_rows(const Pointers& tables, const Numbers& strides, int64_t capacity, int64_t* control,
                       int64_t* journal, int64_t journal_size, bool reset_writes, cudaStream_t stream) {
  const Scratchpad<ClearRowsScratch> scratch(capacity);
  return clear_rows_launch(headers_of(tables, strides, capacity), {control, journal, journal_size}, reset_writes,
                           *scratch, stream);
}

SIMT_BIND("clear_rows", clear_rows);

}  // namespace torchrb::bound
