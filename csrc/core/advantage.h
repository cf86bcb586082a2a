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

// What the first pass over a row finds, of its finite returns and after scaling.
struct ReturnSums {
  double first = 0, total = 0, count = 0;  // the first, the sum of offsets from it, how many
  double largest = 0;                      // magnitude, before scaling
};

template <typename T>
TORCHRB_HOST_DEVICE inline ReturnSums return_sums(const T* returns, int64_t n, double scale) {
  ReturnSums sums;
  for (int64_t i = 0; i < n; ++i) {
    const double value = static_cast<double>(returns[i]), scaled = value * scale;
    if (is_finite(value)) {
      const double magnitude = value < 0 ? -value : value;
      sums.first = sums.count == 0 ? scaled : sums.first;
      sums.largest = magnitude > sums.largest ? magnitude : sums.largest;
      sums.total += scaled - sums.first;
      sums.count += 1;
    }
  }
  return sums;
}

// A power of two that keeps sums and squares of offsets within float64's range; 1 for all but extreme returns.
TORCHRB_HOST_DEVICE inline double advantage_scale(double largest) {
  constexpr double kLarge = 0x1p480, kDown = 0x1p-600, kSmall = 0x1p-450, kUp = 0x1p900;
  return largest > kLarge ? kDown : largest < kSmall && largest > 0 ? kUp : 1.0;
}

// Of returns: [n], into advantages: [n]. Three passes over one row, four where it has to be scaled.
template <typename T>
TORCHRB_HOST_DEVICE inline void group_advantage_row(const T* returns, T* advantages, int64_t n, AdvantageKind kind,
                                                    double epsilon) {
  // Offsets from the first finite return: those of a constant group are exactly 0, and so is their mean.
  ReturnSums sums = return_sums(returns, n, 1.0);
  const double scale = advantage_scale(sums.largest);
  if (scale != 1) sums = return_sums(returns, n, scale);
  const double first = sums.first, count = sums.count, mean = sums.total / count, unscale = 1 / scale;
  double divisor = 1;
  if (kind == AdvantageKind::kStd) {
    double squares = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double value = static_cast<double>(returns[i]);
      if (is_finite(value)) {
        const double deviation = (value * scale - first) - mean;
        squares += deviation * deviation;
      }
    }
    divisor = std::sqrt(squares / (count - 1)) + epsilon * scale;
  }
  for (int64_t i = 0; i < n; ++i) {
    const double value = static_cast<double>(returns[i]);
    double advantage = 0;
    if (is_finite(value) && count > 1) {
      const double deviation = (value * scale - first) - mean;
      if (deviation != 0) {  // a constant group with epsilon 0 would be 0 / 0
        advantage = kind == AdvantageKind::kLeaveOneOut ? deviation * count / (count - 1) * unscale
                    : kind == AdvantageKind::kStd       ? deviation / divisor
                                                        : deviation * unscale;
      }
    }
    advantages[i] = static_cast<T>(advantage);
  }
}

}  // namespace torchrb
