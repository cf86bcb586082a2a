// Binds the kernel of draw_uniform.cuh: check, device, stream, launch, status.
#include "cuda/draw_uniform.cuh"

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>

#include "cuda/stream.h"
#include "tables.h"

namespace torchrb {
namespace {

constexpr const char* kOp = "draw_uniform";

Tensor draw_uniform(Tensor seed, Tensor control, int64_t num) {
  check(num >= 0, kOp, "num must not be negative, got ", num, ".");
  check_same_device(control, seed, kOp, "control");
  const int64_t* seed_data = int64_data(seed, 1, kOp, "seed");
  const int64_t* control_data = int64_data(control, kControlSize, kOp, "control");

  const torch::stable::accelerator::DeviceGuard guard(control.get_device_index());
  const cudaStream_t stream = current_stream(control, kOp);
  const Tensor slots = empty_int64({num}, control);
  check_launch(draw_uniform_launch(seed_data, control_data, static_cast<int64_t*>(slots.data_ptr()), num, stream), kOp);
  return slots;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(torchrb, CUDA, m) { m.impl("draw_uniform", TORCH_BOX(&draw_uniform)); }

}  // namespace torchrb
