// Advantages of one group: the contract of `group_advantage` stands in torchrb/ops/schemas.py.
//
// Host and device run these very lines, in this order, without contraction into fused multiply-adds (-ffp-contract=off,
// --fmad=false): that makes their results the same bits.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/host_device.h"

namespace torchrb {

// Places in ADVANTAGE_KINDS of torchrb/ops/schemas.py.
enum class AdvantageKind : int { kStd = 0, kMean = 1, kLeaveOneOut = 2 };

TORCHRB_HOST_DEVICE inline bool is_finite(double value) { return value - value == 0; }

// Of returns: [n], into advantages: [n]. Three passes over one row.
template <typename T>
TORCHRB_HOST_DEVICE inline void group_advantage_row(const T* returns, T* advantages, int64_t n, AdvantageKind kind,
                                                    double epsilon) {
  // Offsets from the first finite return: those of a constant group are exactly 0, and so is their mean.
  double first = 0, total = 0, count = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double value = static_cast<double>(returns[i]);
    if (is_finite(value)) {
      first = count == 0 ? value : first;
      total += value - first;
      count += 1;
    }
  }
  const double mean = total / count;
  double scale = 1;
  if (kind == AdvantageKind::kStd) {
    double squares = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double value = static_cast<double>(returns[i]);
      if (is_finite(value)) {
        const double deviation = (value - first) - mean;
        squares += deviation * deviation;
      }
    }
    scale = std::sqrt(squares / (count - 1)) + epsilon;
  }
  for (int64_t i = 0; i < n; ++i) {
    const double value = static_cast<double>(returns[i]);
    double advantage = 0;
    if (is_finite(value) && count > 1) {
      const double deviation = (value - first) - mean;
      if (deviation != 0) {  // a constant group with epsilon 0 would be 0 / 0
        advantage = kind == AdvantageKind::kLeaveOneOut ? deviation * count / (count - 1)
                    : kind == AdvantageKind::kStd       ? deviation / scale
                                                        : deviation;
      }
    }
    advantages[i] = static_cast<T>(advantage);
  }
}

}  // namespace torchrb
