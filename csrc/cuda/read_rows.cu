// Binds the kernel of read_rows.cuh: check, device, stream, launch, status.
#include "cuda/read_rows.cuh"

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>

#include <tuple>

#include "cuda/scratch.h"
#include "cuda/stream.h"
#include "tables.h"

namespace torchrb {
namespace {

constexpr const char* kOp = "read_rows";

std::tuple<std::vector<Tensor>, Tensor> read_rows(std::vector<Tensor> tables, std::vector<int64_t> layout,
                                                  std::vector<Tensor> templates, Tensor slots_in) {
  check(!tables.empty(), kOp, "tables must not be empty; the first one holds the headers.");
  check_same_device(slots_in, tables[0], kOp, "slots");
  const int64_t* slots = int64_data(slots_in, kOp, "slots");
  const int64_t num_rows = slots_in.numel();

  const torch::stable::accelerator::DeviceGuard guard(slots_in.get_device_index());
  const cudaStream_t stream = current_stream(slots_in, kOp);
  std::vector<Tensor> leaves = empty_rows(templates, num_rows, slots_in, kOp);
  const Rows rows = rows_of(tables, layout, leaves, num_rows, kOp, "templates");
  const Tensor generations = empty_int64({num_rows}, slots_in);
  const ScratchOn<ReadRowsScratch> scratch(slots_in, rows.leaves.size());
  check_launch(read_rows_launch(rows.headers, rows.leaves, slots, static_cast<int64_t*>(generations.data_ptr()),
                                num_rows, *scratch, stream),
               kOp);
  return {std::move(leaves), generations};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(torchrb, CUDA, m) { m.impl("read_rows", TORCH_BOX(&read_rows)); }

}  // namespace torchrb
