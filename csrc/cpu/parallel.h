// How the CPU kernels share their rows among threads.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cstdint>

#include "tables.h"

namespace torchrb {

// Calls `body(begin, end)` over [0, num), on several threads if more than `kLeastBytes` are moved by each. `body` must
// not throw: what it throws loses its text on the way back.
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

// Calls `visit(row)` for each row of a batch while the memory of later rows' slots is on its way.
template <typename Visit>
inline void visit_rows(const Rows& rows, const int64_t* slots, int64_t num, const Visit& visit) {
  const int64_t row_bytes = rows.bytes + kHeaderBytes, ahead = prefetch_distance(row_bytes);
  parallel_rows(num, row_bytes, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < std::min(begin + ahead, end); ++row) rows.prefetch_row(slots[row]);
    for (int64_t row = begin; row < end; ++row) {
      if (row + ahead < end) rows.prefetch_row(slots[row + ahead]);
      visit(row);
    }
  });
}

}  // namespace torchrb
