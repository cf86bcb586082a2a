// A stretch of the permutation of [0, size) that a seed selects.
// Each image is computed from the seed and its place alone; a block's walks advance side by side, those that have
// arrived step aside.
// Bound by arithmetic: twelve mixes a step, and fewer than two steps an image.
#include <torch/csrc/stable/library.h>

#include <algorithm>

#include "core/permutation.h"
#include "tables.h"

namespace torchrb {
namespace {

constexpr const char* kOp = "draw_permuted";
constexpr int64_t kBlock = 64;

Tensor draw_permuted(Tensor seed_in, int64_t size, int64_t first, int64_t num) {
  const int64_t seed = *int64_data(seed_in, 1, kOp, "seed");
  check(size >= 0 && first >= 0 && num >= 0 && first <= size && num <= size - first, kOp,
        "the stretch must lie within the set, got size=", size, ", first=", first, ", num=", num, ".");
  const Tensor slots_out = empty_int64({num}, seed_in);
  auto* slots = static_cast<int64_t*>(slots_out.data_ptr());
  const Permutation permutation(seed, size);
  for (int64_t begin = 0; begin < num; begin += kBlock) {
    const int64_t count = std::min(kBlock, num - begin);
    int64_t images[kBlock];
    uint8_t walking[kBlock];
    for (int64_t i = 0; i < count; ++i) {
      images[i] = first + begin + i;
      walking[i] = static_cast<uint8_t>(i);
    }
    for (int64_t left = count; left > 0;) {
      for (int64_t i = 0; i < left; ++i) images[walking[i]] = permutation.step(images[walking[i]]);
      int64_t still = 0;
      for (int64_t i = 0; i < left; ++i) {
        const uint8_t at = walking[i];
        walking[still] = at;
        still += images[at] >= size;
      }
      left = still;
    }
    std::copy_n(images, count, slots + begin);
  }
  return slots_out;
}

STABLE_TORCH_LIBRARY_IMPL(torchrb, CPU, m) { m.impl("draw_permuted", TORCH_BOX(&draw_permuted)); }

}  // namespace
}  // namespace torchrb
