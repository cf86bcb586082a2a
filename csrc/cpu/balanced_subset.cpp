// Which candidates of each oversampled group to keep.
// A thread takes whole groups, which share nothing. Bound by arithmetic: the subsets that the search cannot rule out.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <tuple>

#include "check.h"
#include "core/balanced_large.h"

namespace torchrb {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr const char* kOp = "balanced_subset";
constexpr int64_t kSerialCandidates = 64;  // fewer than this in all are not worth waking a thread for

std::tuple<Tensor, Tensor> balanced_subset(const Tensor& returns, int64_t group_size, double low, double high,
                                           int64_t max_combinations, double rounding) {
  check_tensor(returns, ScalarType::Double, 2, kOp, "returns");
  check(group_size >= 1, kOp, "group_size must be at least 1, got ", group_size, ".");
  const int64_t groups = returns.size(0), n = returns.size(1);
  Tensor index = torch::stable::new_empty(returns, {groups, group_size}, ScalarType::Long);
  Tensor found = torch::stable::new_empty(returns, {groups}, ScalarType::Bool);

  const double* rows = returns.const_data_ptr<double>();  // [groups, n]
  int64_t* chosen = index.mutable_data_ptr<int64_t>();    // [groups, group_size]
  bool* any = found.mutable_data_ptr<bool>();             // [groups]
  const int64_t grain = std::max<int64_t>(1, kSerialCandidates / std::max<int64_t>(1, n));
  torch::stable::parallel_for(0, groups, grain, [&](int64_t begin, int64_t end) {
    for (int64_t group = begin; group < end; ++group) {
      int64_t* out = chosen + group * group_size;
      any[group] = balanced::choose(rows + group * n, n, group_size, low, high, max_combinations, rounding, out);
      if (!any[group]) {
        std::fill(out, out + group_size, 0);
      }
    }
  });
  return {index, found};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(torchrb, CPU, m) { m.impl("balanced_subset", TORCH_BOX(&balanced_subset)); }

}  // namespace torchrb
