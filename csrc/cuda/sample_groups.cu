// Binds the kernels of sample_groups.cuh: check, device, stream, scratch, launch, status.
#include "cuda/sample_groups.cuh"

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>

#include <tuple>

#include "cells.h"
#include "cuda/group_tensors.h"
#include "cuda/stream.h"

namespace torchrb {
namespace {

constexpr const char* kOp = "sample_groups";

std::tuple<Tensor, Tensor, Tensor> sample_groups(Tensor seed, Tensor keys, Tensor links, std::vector<Tensor> tables,
                                                 std::vector<int64_t> reward_leaf, Tensor reward_template,
                                                 int64_t groups, int64_t per_group, int64_t strategy) {
  check(groups >= 0 && per_group >= 0, kOp, "groups and per_group must not be negative, got ", groups, " and ",
        per_group, ".");
  constexpr int64_t kMostRows = int64_t{1} << 48;  // so that no size below overflows
  check(groups < INT32_MAX && (groups == 0 || per_group < kMostRows / groups), kOp, "a batch of ", groups,
        " groups of ", per_group, " rows is too large.");
  check(strategy >= 0 && strategy < kNumStrategies, kOp, "strategy must be below ", kNumStrategies, ", got ", strategy,
        ".");
  const Headers headers = headers_of(tables, kOp);
  SampleGroups draw{group_links_of(keys, links, headers.capacity, kOp), headers, {}, {}};
  draw.seed = int64_data(seed, 1, kOp, "seed");
  draw.groups = groups;
  draw.per_group = per_group;
  draw.strategy = strategy;
  if (strategy == kReward || strategy == kVariance) {
    const auto [leaf, cells] = reward_of(tables, reward_leaf, reward_template, kOp);
    draw.reward = leaf;
    draw.cells = cells;
  }
  for (const Tensor* tensor : {&seed, &links, &tables[0]}) check_same_device(*tensor, keys, kOp, "every tensor");

  const torch::stable::accelerator::DeviceGuard guard(keys.get_device_index());
  const cudaStream_t stream = current_stream(keys, kOp);
  const Tensor slots = empty_int64({groups * per_group}, keys), drawn = empty_int64({groups, 3}, keys);
  const Tensor flags = empty_int64({1}, keys);
  draw.slots = static_cast<int64_t*>(slots.data_ptr());
  draw.drawn = static_cast<int64_t*>(drawn.data_ptr());
  draw.flags = static_cast<int64_t*>(flags.data_ptr());
  const int64_t rows = headers.capacity > kSharedRows ? headers.capacity : 0;
  const int64_t sums = strategy == kVariance ? 2 * rows : 0;
  const int64_t bytes[] = {static_cast<int64_t>(sizeof(Candidate)) * rows + 8 * sums + 4 * (4 * groups + 2)};
  const Tensor scratch = empty({bytes, 1}, ScalarType::Byte, keys);
  auto* free_bytes = static_cast<unsigned char*>(scratch.data_ptr());
  draw.rows = reinterpret_cast<Candidate*>(free_bytes);
  draw.sums = reinterpret_cast<double*>(draw.rows + rows);
  draw.heads = reinterpret_cast<int32_t*>(draw.sums + sums);
  draw.last = draw.heads + groups;
  draw.another = draw.last + groups;
  draw.repeats = draw.another + groups;
  draw.claimed = draw.repeats + groups;
  check_launch(sample_groups_launch(draw, stream), kOp);
  return {slots, drawn, flags};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(torchrb, CUDA, m) { m.impl("sample_groups", TORCH_BOX(&sample_groups)); }

}  // namespace torchrb
