// Counter-based random numbers: a value is a pure function of (seed, stream, counter), whoever computes it.
// The twin is torchrb/ops/rng.py. The mixer is the finalizer of SplitMix64 (Steele, Lea, Flood 2014).
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace torchrb {

enum : int64_t {
  kPermutationStream,
  kExtraGroupsStream,
  kExtraRowsStream,
  kUniformStream,
  kPriorityStream,
  kFirstRowStream = 16,
};

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;

// A bijection of 64 bits that scatters its input.
TORCHRB_HOST_DEVICE inline uint64_t mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// What all counters of one stream share; worth keeping outside a loop.
TORCHRB_HOST_DEVICE inline uint64_t stream_key(int64_t seed, int64_t stream) {
  return mix64(static_cast<uint64_t>(seed) + kGolden * static_cast<uint64_t>(stream + 1));
}

TORCHRB_HOST_DEVICE inline uint64_t random64(uint64_t key, int64_t counter) {
  return mix64(key + kGolden * static_cast<uint64_t>(counter));
}

// Maps 64 random bits to [0, 1), using the upper 53 of them.
TORCHRB_HOST_DEVICE inline double fraction_of(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

// Maps 64 random bits to [0, n), n < 2**32, using the upper 62 of them as a fraction.
TORCHRB_HOST_DEVICE inline int64_t below(uint64_t bits, int64_t n) {
  constexpr int kHalfBits = 31;
  const uint64_t range = static_cast<uint64_t>(n);
  const uint64_t high = bits >> (64 - kHalfBits);
  const uint64_t low = (bits >> 2) & ((uint64_t{1} << kHalfBits) - 1);
  return static_cast<int64_t>((high * range + ((low * range) >> kHalfBits)) >> kHalfBits);
}

}  // namespace torchrb
