#include "bind_rows.h"
#include "cuda/update_rows_if.cuh"

namespace torchrb::bound {

// `version`: null, or of dtype `dtype`, a place in `Dtype`.
cudaError_t update_rows_if(const Pointers& tables, const Numbers& strides, int64_t capacity, int64_t* control,
                           int64_t* journal, int64_t journal_size, const Numbers& layout, const Pointers& batch,
                           const int64_t* slots, const int64_t* generations, const Numbers& version_leaf, void* version,
                           Dtype dtype, bool require_newer, uint8_t* status, int64_t num_rows, cudaStream_t stream) {
  const std::vector<Leaf> leaves = leaves_of(tables, strides, layout, batch);
  const Scratchpad<UpdateRowsScratch> scratch(num_rows, leaves.size());
  RowVersions versions{};
  if (version != nullptr) versions = {leaf_of(tables, strides, version_leaf, 0, version), {dtype, 1}, require_newer};
  return update_rows_if_launch(headers_of(tables, strides, capacity), leaves, {control, journal, journal_size}, slots,
                               generations, versions, status, num_rows, *scratch, stream);
}

SIMT_BIND("update_rows_if", update_rows_if);

}  // namespace torchrb::bound
