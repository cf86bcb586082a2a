// Binds the kernels of update_rows_if.cuh: check, device, stream, launch, status.
#include "cuda/update_rows_if.cuh"

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>

#include <optional>

#include "cells.h"
#include "cuda/scratch.h"
#include "cuda/stream.h"
#include "tables.h"

namespace torchrb {
namespace {

constexpr const char* kOp = "update_rows_if_";

RowVersions versions_of(const std::vector<Tensor>& tables, const std::vector<int64_t>& version_leaf,
                        const std::optional<Tensor>& version, int64_t num_rows, bool require_newer) {
  if (!version.has_value()) return {};
  const auto [leaf, cells] = version_of(tables, version_leaf, *version, num_rows, kOp);
  return {leaf, cells, require_newer};
}

Tensor update_rows_if(std::vector<Tensor> tables, Tensor control, Tensor journal, std::vector<int64_t> layout,
                      Tensor slots_in, Tensor generations_in, std::vector<Tensor> values,
                      std::vector<int64_t> version_leaf, std::optional<Tensor> version, bool require_newer) {
  const int64_t* slots = int64_data(slots_in, kOp, "slots");
  const int64_t num_rows = slots_in.numel();
  const int64_t* generations = int64_data(generations_in, num_rows, kOp, "generations");
  const Rows rows = rows_of(tables, layout, values, num_rows, kOp, "values");
  const Ledger ledger = ledger_of(control, journal, tables, kOp);
  check_same_device(slots_in, tables[0], kOp, "slots");
  check_same_device(generations_in, tables[0], kOp, "generations");
  const RowVersions versions = versions_of(tables, version_leaf, version, num_rows, require_newer);

  const torch::stable::accelerator::DeviceGuard guard(control.get_device_index());
  const cudaStream_t stream = current_stream(control, kOp);
  const Tensor status = empty({&num_rows, 1}, ScalarType::Byte, slots_in);
  const ScratchOn<UpdateRowsScratch> scratch(control, num_rows, rows.leaves.size());
  check_launch(update_rows_if_launch(rows.headers, rows.leaves, {ledger.control, ledger.journal, ledger.journal_size},
                                     slots, generations, versions, static_cast<uint8_t*>(status.data_ptr()), num_rows,
                                     *scratch, stream),
               kOp);
  return status;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(torchrb, CUDA, m) { m.impl("update_rows_if_", TORCH_BOX(&update_rows_if)); }

}  // namespace torchrb
