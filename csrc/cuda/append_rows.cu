// Binds the kernels of append_rows.cuh: check, device, stream, launch, status.
#include "cuda/append_rows.cuh"

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>

#include <tuple>

#include "cuda/scratch.h"
#include "cuda/stream.h"
#include "tables.h"

namespace torchrb {
namespace {

constexpr const char* kOp = "append_rows_";

std::tuple<Tensor, Tensor> append_rows(std::vector<Tensor> tables, Tensor control, Tensor journal,
                                       std::vector<int64_t> layout, std::vector<Tensor> values, int64_t num_rows) {
  check(num_rows >= 0, kOp, "num_rows must not be negative, got ", num_rows, ".");
  const Rows rows = rows_of(tables, layout, values, num_rows, kOp, "values");
  const Ledger ledger = ledger_of(control, journal, tables, kOp);
  check(rows.headers.capacity > 0 || num_rows == 0, kOp, "tables have no rows to write to.");

  const torch::stable::accelerator::DeviceGuard guard(control.get_device_index());
  const cudaStream_t stream = current_stream(control, kOp);
  const Tensor slots = empty_int64({num_rows}, control), generations = empty_int64({num_rows}, control);
  const ScratchOn<AppendRowsScratch> scratch(control, rows.leaves.size());
  check_launch(append_rows_launch(rows.headers, rows.leaves, {ledger.control, ledger.journal, ledger.journal_size},
                                  static_cast<int64_t*>(slots.data_ptr()),
                                  static_cast<int64_t*>(generations.data_ptr()), num_rows, *scratch, stream),
               kOp);
  return {slots, generations};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(torchrb, CUDA, m) { m.impl("append_rows_", TORCH_BOX(&append_rows)); }

}  // namespace torchrb
