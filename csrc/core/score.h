// A value of any dtype as an int64 that orders like it, exactly: integers are themselves, floating-point values go
// through float64, where -0.0 equals 0.0, and NaN stands below -inf. The score gives the value back, so a row carries
// nothing else.
#pragma once

#include <bit>
#include <cstdint>

#include "core/host_device.h"
#include "core/rows.h"

namespace torchrb {

enum class Dtype : uint8_t {
  kBool,
  kUInt8,
  kInt8,
  kUInt16,
  kInt16,
  kUInt32,
  kInt32,
  kInt64,
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64
};

TORCHRB_HOST_DEVICE inline bool is_real(Dtype dtype) { return dtype >= Dtype::kFloat16; }

TORCHRB_HOST_DEVICE inline int64_t element_bytes(Dtype dtype) {
  switch (dtype) {
    case Dtype::kBool:
    case Dtype::kUInt8:
    case Dtype::kInt8:
      return 1;
    case Dtype::kUInt16:
    case Dtype::kInt16:
    case Dtype::kFloat16:
    case Dtype::kBFloat16:
      return 2;
    case Dtype::kUInt32:
    case Dtype::kInt32:
    case Dtype::kFloat32:
      return 4;
    default:
      return 8;
  }
}

TORCHRB_HOST_DEVICE inline int64_t read_integer(const unsigned char* at, Dtype dtype) {
  switch (dtype) {
    case Dtype::kBool:
      return load<uint8_t>(at) != 0;
    case Dtype::kUInt8:
      return load<uint8_t>(at);
    case Dtype::kInt8:
      return load<int8_t>(at);
    case Dtype::kUInt16:
      return load<uint16_t>(at);
    case Dtype::kInt16:
      return load<int16_t>(at);
    case Dtype::kUInt32:
      return load<uint32_t>(at);
    case Dtype::kInt32:
      return load<int32_t>(at);
    default:
      return load<int64_t>(at);
  }
}

TORCHRB_HOST_DEVICE inline double real_of_half(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1Fu, fraction = bits & 0x3FFu;
  if (exponent == 0) {
    const double magnitude = static_cast<double>(fraction) * 0x1p-24;
    return sign != 0 ? -magnitude : magnitude;
  }
  const uint32_t wide = exponent == 0x1Fu ? 0xFFu : exponent + 112;
  return static_cast<double>(std::bit_cast<float>(sign | (wide << 23) | (fraction << 13)));
}

TORCHRB_HOST_DEVICE inline double read_real(const unsigned char* at, Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat16:
      return real_of_half(load<uint16_t>(at));
    case Dtype::kBFloat16:
      return static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(load<uint16_t>(at)) << 16));
    case Dtype::kFloat32:
      return static_cast<double>(load<float>(at));
    case Dtype::kFloat64:
      return load<double>(at);
    default:
      return static_cast<double>(read_integer(at, dtype));
  }
}

constexpr int64_t kNanScore = INT64_MIN;
constexpr int64_t kInfinityScore = 0x7FF0000000000000;
constexpr int64_t kMinusInfinityScore = ~kInfinityScore;

TORCHRB_HOST_DEVICE inline int64_t score_of_real(double value) {
  if (value != value) return kNanScore;
  const int64_t bits = std::bit_cast<int64_t>(value == 0.0 ? 0.0 : value);
  return bits < 0 ? bits ^ INT64_MAX : bits;
}

TORCHRB_HOST_DEVICE inline double real_of_score(int64_t score) {
  return std::bit_cast<double>(score < 0 ? score ^ INT64_MAX : score);
}

// A row's reward as a score: its own value when it is one element, else the float64 mean, summed in index order.
struct RewardCells {
  Dtype dtype = Dtype::kFloat32;
  int64_t elements = 1;

  // Whether scores are those of floating-point values.
  TORCHRB_HOST_DEVICE bool real() const { return elements != 1 || is_real(dtype); }

  TORCHRB_HOST_DEVICE int64_t score(const unsigned char* cell) const {
    if (!real()) return read_integer(cell, dtype);
    if (elements == 1) return score_of_real(read_real(cell, dtype));
    double total = 0.0;
    const int64_t step = element_bytes(dtype);
    for (int64_t i = 0; i < elements; ++i) total += read_real(cell + i * step, dtype);
    return score_of_real(total / static_cast<double>(elements));
  }

  TORCHRB_HOST_DEVICE bool is_number(int64_t score) const { return !real() || score != kNanScore; }

  TORCHRB_HOST_DEVICE bool is_finite(int64_t score) const {
    return !real() || (score > kMinusInfinityScore && score < kInfinityScore);
  }

  // A power of two that keeps the squares of offsets finite; 1 for all but the largest floating-point values.
  TORCHRB_HOST_DEVICE double scale(int64_t smallest, int64_t largest) const {
    constexpr double kLarge = 0x1p500, kDown = 0x1p-600;
    if (!real()) return 1.0;
    const double low = real_of_score(smallest), high = real_of_score(largest);
    return low < -kLarge || low > kLarge || high < -kLarge || high > kLarge ? kDown : 1.0;
  }

  // `score`'s value less `smallest`'s, as float64 and scaled; for integers exact before it is rounded.
  TORCHRB_HOST_DEVICE double offset(int64_t score, int64_t smallest, double scale) const {
    if (real()) return real_of_score(score) * scale - real_of_score(smallest) * scale;
    return static_cast<double>(static_cast<uint64_t>(score) - static_cast<uint64_t>(smallest));
  }
};

}  // namespace torchrb
