// Binds the kernel of group_advantage.cuh: check, device, stream, launch, status.
#include "cuda/group_advantage.cuh"

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "check.h"
#include "cuda/stream.h"

namespace torchrb {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr const char* kOp = "group_advantage";

template <typename T>
cudaError_t launch_on(const Tensor& returns, Tensor& advantages, AdvantageKind kind, double epsilon,
                      cudaStream_t stream) {
  return group_advantage_launch(returns.const_data_ptr<T>(), advantages.mutable_data_ptr<T>(), returns.size(0),
                                returns.size(1), kind, epsilon, stream);
}

Tensor group_advantage(const Tensor& returns, int64_t kind, double epsilon) {
  check_dim(returns, 2, kOp, "returns");
  check_contiguous(returns, kOp, "returns");
  check(kind >= 0 && kind <= 2, kOp, "kind must be 0, 1 or 2, got ", kind, ".");
  const bool is_float = returns.scalar_type() == ScalarType::Float;
  if (!is_float) check_dtype(returns, ScalarType::Double, kOp, "returns (where not Float)");

  const torch::stable::accelerator::DeviceGuard guard(returns.get_device_index());
  const cudaStream_t stream = current_stream(returns, kOp);
  Tensor advantages = torch::stable::empty_like(returns);
  const auto advantage_kind = static_cast<AdvantageKind>(kind);
  check_launch(is_float ? launch_on<float>(returns, advantages, advantage_kind, epsilon, stream)
                        : launch_on<double>(returns, advantages, advantage_kind, epsilon, stream),
               kOp);
  return advantages;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(torchrb, CUDA, m) { m.impl("group_advantage", TORCH_BOX(&group_advantage)); }

}  // namespace torchrb
