// Binds the kernel of draw_permuted.cuh: check, device, stream, launch, status.
#include "cuda/draw_permuted.cuh"

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>

#include "cuda/stream.h"
#include "tables.h"

namespace torchrb {
namespace {

constexpr const char* kOp = "draw_permuted";

Tensor draw_permuted(Tensor seed, int64_t size, int64_t first, int64_t num) {
  const int64_t* seed_data = int64_data(seed, 1, kOp, "seed");
  check(size >= 0 && first >= 0 && num >= 0 && first <= size && num <= size - first, kOp,
        "the stretch must lie within the set, got size=", size, ", first=", first, ", num=", num, ".");

  const torch::stable::accelerator::DeviceGuard guard(seed.get_device_index());
  const cudaStream_t stream = current_stream(seed, kOp);
  const Tensor slots = empty_int64({num}, seed);
  auto* out = static_cast<int64_t*>(slots.data_ptr());
  check_launch(draw_permuted_launch(seed_data, out, size, first, num, stream), kOp);
  return slots;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(torchrb, CUDA, m) { m.impl("draw_permuted", TORCH_BOX(&draw_permuted)); }

}  // namespace torchrb
