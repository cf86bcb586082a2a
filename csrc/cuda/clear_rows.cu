// Binds the kernels of clear_rows.cuh: check, device, stream, launch, status.
#include "cuda/clear_rows.cuh"

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>

#include "cuda/scratch.h"
#include "cuda/stream.h"
#include "tables.h"

namespace torchrb {
namespace {

constexpr const char* kOp = "clear_rows_";

void clear_rows(std::vector<Tensor> tables, Tensor control, Tensor journal, bool reset_writes) {
  const Headers headers = headers_of(tables, kOp);
  const Ledger ledger = ledger_of(control, journal, tables, kOp);

  const torch::stable::accelerator::DeviceGuard guard(control.get_device_index());
  const cudaStream_t stream = current_stream(control, kOp);
  const ScratchOn<ClearRowsScratch> scratch(control, headers.capacity);
  check_launch(
      clear_rows_launch(headers, {ledger.control, ledger.journal, ledger.journal_size}, reset_writes, *scratch, stream),
      kOp);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(torchrb, CUDA, m) { m.impl("clear_rows_", TORCH_BOX(&clear_rows)); }

}  // namespace torchrb
