// Binds the kernels of write_rows.cuh: check, device, stream, launch, status.
#include "cuda/write_rows.cuh"

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>

#include "cuda/scratch.h"
#include "cuda/stream.h"
#include "tables.h"

namespace torchrb {
namespace {

constexpr const char* kOp = "write_rows_";

Tensor write_rows(std::vector<Tensor> tables, Tensor control, Tensor journal, std::vector<int64_t> layout,
                  Tensor slots_in, std::vector<Tensor> values, bool renew) {
  const int64_t* slots = int64_data(slots_in, kOp, "slots");
  const int64_t num_rows = slots_in.numel();
  const Rows rows = rows_of(tables, layout, values, num_rows, kOp, "values");
  const Ledger ledger = ledger_of(control, journal, tables, kOp);
  check_same_device(slots_in, tables[0], kOp, "slots");

  const torch::stable::accelerator::DeviceGuard guard(control.get_device_index());
  const cudaStream_t stream = current_stream(control, kOp);
  const Tensor generations = empty_int64({num_rows}, slots_in);
  const ScratchOn<WriteRowsScratch> scratch(control, num_rows, rows.leaves.size());
  check_launch(
      write_rows_launch(rows.headers, rows.leaves, {ledger.control, ledger.journal, ledger.journal_size}, slots,
                        static_cast<int64_t*>(generations.data_ptr()), num_rows, renew, *scratch, stream),
      kOp);
  return generations;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(torchrb, CUDA, m) { m.impl("write_rows_", TORCH_BOX(&write_rows)); }

}  // namespace torchrb
