// Binds the kernels of group_index_update.cuh: check, device, stream, launch, status.
#include "cuda/group_index_update.cuh"

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>

#include "cells.h"
#include "cuda/group_tensors.h"
#include "cuda/stream.h"

namespace torchrb {
namespace {

constexpr const char* kOp = "group_index_update_";

void group_index_update_(Tensor keys, Tensor links, Tensor state, Tensor control, Tensor journal,
                         std::vector<Tensor> tables, std::vector<int64_t> key_leaf, Tensor key_template, bool rebuild) {
  const Headers headers = headers_of(tables, kOp);
  const KeyCells cells = key_cells_of(tables, key_leaf, key_template, keys, kOp);
  const GroupLinks index = group_links_of(keys, links, headers.capacity, kOp);
  for (const Tensor* tensor : {&links, &state, &control, &journal, &tables[0], &tables[key_leaf[0]]}) {
    check_same_device(*tensor, keys, kOp, "every tensor");
  }
  const IndexUpdate update{index,
                           headers,
                           cells,
                           int64_data(state, kIndexStateSize, kOp, "state"),
                           int64_data(control, kControlSize, kOp, "control"),
                           int64_data(journal, kOp, "journal"),
                           journal.numel(),
                           rebuild};
  check(update.ring > 0 && update.ring < INT32_MAX, kOp, "the journal must have 1 to 2**31 - 2 entries, got ",
        update.ring, ".");

  const torch::stable::accelerator::DeviceGuard guard(keys.get_device_index());
  const cudaStream_t stream = current_stream(keys, kOp);
  check_launch(group_index_update_launch(update, stream), kOp);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(torchrb, CUDA, m) { m.impl("group_index_update_", TORCH_BOX(&group_index_update_)); }

}  // namespace torchrb
