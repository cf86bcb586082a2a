// Slots drawn uniformly, with replacement, below the current length.
// Each is computed from the seed and its place alone; one loop that the compiler vectorizes where it can.
// Bound by arithmetic.
#include <torch/csrc/stable/library.h>

#include <atomic>

#include "core/rng.h"
#include "tables.h"

namespace torchrb {
namespace {

constexpr const char* kOp = "draw_uniform";

Tensor draw_uniform(Tensor seed_in, Tensor control, int64_t num) {
  check(num >= 0, kOp, "num must not be negative, got ", num, ".");
  const int64_t seed = *int64_data(seed_in, 1, kOp, "seed");
  int64_t* numbers = int64_data(control, kControlSize, kOp, "control");
  const int64_t length = std::atomic_ref<int64_t>(numbers[kControlLength]).load(std::memory_order_acquire);
  const Tensor slots_out = empty_int64({num}, control);
  auto* slots = static_cast<int64_t*>(slots_out.data_ptr());
  const uint64_t key = stream_key(seed, kUniformStream);
  for (int64_t i = 0; i < num; ++i) slots[i] = below(random64(key, i), length);
  return slots_out;
}

STABLE_TORCH_LIBRARY_IMPL(torchrb, CPU, m) { m.impl("draw_uniform", TORCH_BOX(&draw_uniform)); }

}  // namespace
}  // namespace torchrb
