// What makes one subset of candidates better than another, and which are accepted at all: see `balanced_subset` in
// torchrb/ops/schemas.py. Subsets are known here by the sum of their values.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/host_device.h"

namespace torchrb::balanced {

inline constexpr double kHalfLimit = 8388608;  // entries of a half that the last resort may hold

struct Bounds {
  int64_t k = 0;
  double lower = 0, upper = 0;  // sums between them, both exclusive, are accepted
  double middle = 0, target = 0, rounding = 0;

  TORCHRB_HOST_DEVICE Bounds(int64_t size, double low, double high, double relative, double smallest, double largest)
      : k(size), rounding(relative) {
    const double count = static_cast<double>(k);
    const bool from_low = low - low == 0, to_high = high - high == 0;  // finite ends
    lower = from_low ? count * (low + rounding * std::fabs(low)) : low;
    upper = to_high ? count * (high - rounding * std::fabs(high)) : high;
    // An interval that is open to one side ends, when its middle is taken, at the outermost return.
    middle = 0.5 * (from_low ? low : smallest) + 0.5 * (to_high ? high : largest);
    target = count * middle;
  }

  // Among equal sums their sum orders subsets by their spread.
  TORCHRB_HOST_DEVICE double square(double value) const { return (value - middle) * (value - middle); }

  TORCHRB_HOST_DEVICE bool inside(double sum) const { return sum > lower && sum < upper; }
  TORCHRB_HOST_DEVICE double distance(double sum) const { return std::fabs(sum - target); }

  // The sums that count as no farther from the target than `nearest`.
  TORCHRB_HOST_DEVICE double near_begin(double nearest) const {
    const double below = target - nearest;
    return below - rounding * std::fabs(below);
  }
  TORCHRB_HOST_DEVICE double near_end(double nearest) const {
    const double above = target + nearest;
    return above + rounding * std::fabs(above);
  }
  // The least sum of squares that counts as no less than `widest`.
  TORCHRB_HOST_DEVICE double wide(double widest) const {
    const double count = static_cast<double>(k);
    return widest - 2 * rounding * (widest + std::fabs(middle) * std::sqrt(count * widest));
  }
};

}  // namespace torchrb::balanced
