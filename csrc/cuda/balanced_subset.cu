// Binds the kernel of balanced_subset.cuh: check, device, stream, scratch, launch, status.
#include "cuda/balanced_subset.cuh"

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>

#include <tuple>

#include "cuda/stream.h"
#include "tables.h"

namespace torchrb {
namespace {

constexpr const char* kOp = "balanced_subset";

std::tuple<Tensor, Tensor> balanced_subset(const Tensor& returns, int64_t group_size, double low, double high,
                                           int64_t max_combinations, double rounding) {
  check_tensor(returns, ScalarType::Double, 2, kOp, "returns");
  check(group_size >= 1, kOp, "group_size must be at least 1, got ", group_size, ".");
  const int64_t groups = returns.size(0), n = returns.size(1);
  check(n < INT32_MAX && group_size < INT32_MAX, kOp, "a group must have fewer than 2**31 - 1 candidates, got ", n,
        ".");

  const torch::stable::accelerator::DeviceGuard guard(returns.get_device_index());
  const cudaStream_t stream = current_stream(returns, kOp);
  const Tensor index = empty_int64({groups, group_size}, returns);
  const int64_t sizes[] = {groups};
  const Tensor found = empty({sizes, 1}, ScalarType::Bool, returns);
  const BalancedShape first = balanced_first_shape(groups, n, group_size, max_combinations);
  const BalancedShape last = balanced_last_shape(groups, n, group_size, max_combinations);
  const int64_t memory = std::max(first.bytes * first.blocks, last.bytes * last.blocks);
  const int64_t bytes[] = {memory + groups};
  const Tensor scratch = empty({bytes, 1}, ScalarType::Byte, returns);
  auto* data = static_cast<unsigned char*>(scratch.data_ptr());
  const BalancedSubset task{returns.const_data_ptr<double>(),
                            groups,
                            n,
                            group_size,
                            low,
                            high,
                            max_combinations,
                            rounding,
                            static_cast<int64_t*>(index.data_ptr()),
                            static_cast<bool*>(found.data_ptr()),
                            data + memory,
                            data,
                            0,
                            0};
  check_launch(balanced_subset_launch(task, stream), kOp);
  return {index, found};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(torchrb, CUDA, m) { m.impl("balanced_subset", TORCH_BOX(&balanced_subset)); }

}  // namespace torchrb
