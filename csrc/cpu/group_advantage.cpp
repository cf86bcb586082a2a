// Advantages within each group.
// A thread takes whole groups. Bound by memory: a row is read three times, but once from beyond the cache.
#include "core/advantage.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>

#include "check.h"

namespace torchrb {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr const char* kOp = "group_advantage";
constexpr int64_t kSerialReturns = 32768;  // a task this small costs less than waking a thread

template <typename T>
void rows(const Tensor& returns, Tensor& advantages, AdvantageKind kind, double epsilon) {
  const int64_t groups = returns.size(0), n = returns.size(1);
  const T* in = returns.const_data_ptr<T>();  // [groups, n]
  T* out = advantages.mutable_data_ptr<T>();  // [groups, n]
  const int64_t grain = std::max<int64_t>(1, kSerialReturns / std::max<int64_t>(1, n));
  torch::stable::parallel_for(0, groups, grain, [&](int64_t begin, int64_t end) {
    for (int64_t group = begin; group < end; ++group) {
      group_advantage_row(in + group * n, out + group * n, n, kind, epsilon);
    }
  });
}

Tensor group_advantage(const Tensor& returns, int64_t kind, double epsilon) {
  check_dim(returns, 2, kOp, "returns");
  check_contiguous(returns, kOp, "returns");
  check(kind >= 0 && kind <= 2, kOp, "kind must be 0, 1 or 2, got ", kind, ".");
  Tensor advantages = torch::stable::empty_like(returns);
  const auto advantage_kind = static_cast<AdvantageKind>(kind);
  if (returns.scalar_type() == ScalarType::Float) {
    rows<float>(returns, advantages, advantage_kind, epsilon);
  } else {
    check_dtype(returns, ScalarType::Double, kOp, "returns (where not Float)");
    rows<double>(returns, advantages, advantage_kind, epsilon);
  }
  return advantages;
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(torchrb, CPU, m) { m.impl("group_advantage", TORCH_BOX(&group_advantage)); }

}  // namespace torchrb
