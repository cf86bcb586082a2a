// Binds the kernels of update_priorities.cuh: check, device, stream, launch, status.
#include "cuda/update_priorities.cuh"

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>

#include "cuda/scratch.h"
#include "cuda/stream.h"
#include "priorities.h"

namespace torchrb {
namespace {

constexpr const char* kOp = "update_priorities_";

void update_priorities_(Tensor tree, Tensor seen, Tensor state, Tensor control, Tensor journal,
                        std::vector<Tensor> tables, Tensor slots, Tensor generations, Tensor priorities, double alpha,
                        double eps, bool rebuild) {
  const Headers headers = headers_of(tables, kOp);
  const PriorityPlaces places = priority_places_of(tree, headers.capacity, kOp);
  for (const Tensor* tensor : {&seen, &state, &control, &journal, &tables[0], &slots, &generations, &priorities}) {
    check_same_device(*tensor, tree, kOp, "every tensor");
  }
  const GivenPriorities given = given_priorities_of(slots, generations, priorities, kOp);
  check(journal.numel() > 0, kOp, "the journal must have an entry.");
  int64_t* seen_data = int64_data(seen, headers.capacity, kOp, "seen");
  int64_t* state_data = int64_data(state, kPriorityStateSize, kOp, "state");
  const int64_t* control_data = int64_data(control, kControlSize, kOp, "control");
  const int64_t* journal_data = int64_data(journal, kOp, "journal");

  const torch::stable::accelerator::DeviceGuard guard(tree.get_device_index());
  const cudaStream_t stream = current_stream(tree, kOp);
  const ScratchOn<UpdatePrioritiesScratch> scratch(tree, headers.capacity, given.num);
  const PriorityUpdate update{places,
                              static_cast<double*>(tree.data_ptr()),
                              seen_data,
                              state_data,
                              control_data,
                              journal_data,
                              journal.numel(),
                              headers,
                              given,
                              alpha,
                              eps,
                              rebuild,
                              *scratch};
  check_launch(update_priorities_launch(update, stream), kOp);
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(torchrb, CUDA, m) { m.impl("update_priorities_", TORCH_BOX(&update_priorities_)); }

}  // namespace torchrb
