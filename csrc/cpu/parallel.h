// How the CPU kernels share their rows among threads.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cstdint>

namespace torchrb {

// Calls `body(begin, end)` over [0, num), on several threads if more than `kLeastBytes` are moved by each. `body` must not
// throw: what it throws loses its text on the way back.
template <typename Body>
inline void parallel_rows(int64_t num, int64_t row_bytes, const Body& body) {
  constexpr int64_t kLeastBytes = 256 << 10;
  const int64_t grain = std::max<int64_t>(1, kLeastBytes / std::max<int64_t>(row_bytes, 1));
  if (num <= grain) {
    body(int64_t{0}, num);
  } else {
    torch::stable::parallel_for(0, num, grain, body);
  }
}

}  // namespace torchrb
