// Powers of 2 and logarithms of float64 by multiplications, additions and one division, which every processor rounds
// alike: they decide which rows are drawn. The twin is torchrb/ops/reference_priorities.py; results agree bit for bit.
#pragma once

#include <bit>
#include <cstdint>

#include "core/host_device.h"

namespace torchrb {

// The exponents that a power may have: all of 2**32 such numbers together are finite.
constexpr double kMostExponent = 960.0;
constexpr double kLargestPower = 0x1p960, kSmallestPower = 0x1p-960;

// Of x from 2**-960 to 2**960; exact for powers of 2.
TORCHRB_HOST_DEVICE inline double log2_of(double x) {
  constexpr uint64_t kSqrtHalf = 0x3FE6A09E667F3BCDu, kBias = uint64_t{1024} << 52, kTwo52 = 0x4330000000000000u;
  constexpr double kTwiceLog2E = 2.8853900817779268;
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  const uint64_t exponent = (bits - kSqrtHalf + kBias) >> 52;                       // 1024 is 0
  const double fraction = std::bit_cast<double>(bits - ((exponent - 1024) << 52));  // sqrt(1/2) to sqrt(2)
  const double whole = std::bit_cast<double>(exponent | kTwo52) - (4503599627370496.0 + 1024.0);
  const double s = (fraction - 1.0) / (fraction + 1.0);
  const double z = s * s;
  double p = 1.0 / 21;
  p = p * z + 1.0 / 19;
  p = p * z + 1.0 / 17;
  p = p * z + 1.0 / 15;
  p = p * z + 1.0 / 13;
  p = p * z + 1.0 / 11;
  p = p * z + 1.0 / 9;
  p = p * z + 1.0 / 7;
  p = p * z + 1.0 / 5;
  p = p * z + 1.0 / 3;
  p = p * z + 1.0;
  return whole + (s * p) * kTwiceLog2E;
}

// 2 to the power of y, which is taken as one from -960 to 960.
TORCHRB_HOST_DEVICE inline double exp2_of(double y) {
  constexpr double kRounder = 6755399441055744.0;  // 1.5 * 2**52: a double plus this has no room for a fraction
  constexpr double kLn2 = 0.6931471805599453;
  y = y < -kMostExponent ? -kMostExponent : y > kMostExponent ? kMostExponent : y;
  const double rounded = y + kRounder;
  const double r = (y - (rounded - kRounder)) * kLn2;
  double p = 1.0 / 6227020800;
  p = p * r + 1.0 / 479001600;
  p = p * r + 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 1.0 / 2;
  p = p * r + 1.0;
  p = p * r + 1.0;
  return std::bit_cast<double>(std::bit_cast<uint64_t>(p) + (std::bit_cast<uint64_t>(rounded) << 52));
}

// x ** exponent of x >= 0, within 2**-960 and 2**960; 0 for 0.
TORCHRB_HOST_DEVICE inline double power_of(double x, double exponent) {
  if (!(x > 0.0)) return 0.0;
  const double safe = x < kSmallestPower ? kSmallestPower : x > kLargestPower ? kLargestPower : x;
  return exponent == 1.0 ? safe : exp2_of(log2_of(safe) * exponent);
}

}  // namespace torchrb
