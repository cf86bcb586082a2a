// The subset of k values with the greatest variance is always some of the smallest and the rest of the largest; what is
// left to find is how many of each.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace torchrb {

// How good a subset of k values is: first the spread, k * sum(x^2) - (sum x)^2, then the total.
struct Merit {
  double spread;
  double total;
};

TORCHRB_HOST_DEVICE inline Merit merit_of(int64_t k, double low_sum, double low_squares, double high_sum,
                                          double high_squares) {
  const double total = low_sum + high_sum;
  return {static_cast<double>(k) * (low_squares + high_squares) - total * total, total};
}

TORCHRB_HOST_DEVICE inline bool better(const Merit& a, const Merit& b) {
  return a.spread > b.spread || (a.spread == b.spread && a.total > b.total);
}

// How many of the k values come from the low end. `low`: the k smallest, ascending; `high`: the k largest, descending;
// both less the smallest of all. `sums`, `squares`: scratch of k + 1. Sums run in this order, so that every backend
// rounds alike; among equals the fewest low ones, that is, the most of the largest.
template <typename Values>
TORCHRB_HOST_DEVICE inline int64_t widest_split(const Values& low, const Values& high, int64_t k, double* sums,
                                                double* squares) {
  sums[0] = squares[0] = 0.0;
  for (int64_t i = 0; i < k; ++i) {
    const double value = high[i];
    sums[i + 1] = sums[i] + value;
    squares[i + 1] = squares[i] + value * value;
  }
  double low_sum = 0.0, low_squares = 0.0;
  Merit best = merit_of(k, low_sum, low_squares, sums[k], squares[k]);
  int64_t num_low = 0;
  for (int64_t i = 1; i <= k; ++i) {
    const double value = low[i - 1];
    low_sum += value;
    low_squares += value * value;
    const Merit merit = merit_of(k, low_sum, low_squares, sums[k - i], squares[k - i]);
    if (better(merit, best)) {
      best = merit;
      num_low = i;
    }
  }
  return num_low;
}

}  // namespace torchrb
