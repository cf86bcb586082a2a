// A permutation of [0, n) chosen by a seed, each image computed on its own: O(1), no table.
// A Feistel network of alternating halves on the next power of two, walked until the image falls below n
// (Black, Rogaway: Ciphers with Arbitrary Finite Domains, 2002). The twin is torchrb/ops/rng.py.
#pragma once

#include <cstdint>

#include "core/host_device.h"
#include "core/rng.h"

namespace torchrb {

class Permutation {
 public:
  static constexpr int kRounds = 12;
  static constexpr int kMinBits = 6;  // a tiny set is walked inside one of 64 elements, where twelve rounds mix well

  TORCHRB_HOST_DEVICE Permutation(int64_t seed, int64_t n) : n_(n) {
    int bits = kMinBits;
    while (bits < 63 && ((n - 1) >> bits) != 0) ++bits;
    low_bits_ = bits / 2;
    low_mask_ = (uint64_t{1} << low_bits_) - 1;
    high_mask_ = (uint64_t{1} << (bits - low_bits_)) - 1;
    const uint64_t key = stream_key(seed, kPermutationStream);
    for (int round = 0; round < kRounds; ++round) keys_[round] = random64(key, round);
  }

  // One step of a walk, within the power of two.
  TORCHRB_HOST_DEVICE int64_t step(int64_t x) const {
    uint64_t low = static_cast<uint64_t>(x) & low_mask_;
    uint64_t high = static_cast<uint64_t>(x) >> low_bits_;
    for (int round = 0; round < kRounds; round += 2) {
      low ^= mix64(high + keys_[round]) & low_mask_;
      high ^= mix64(low + keys_[round + 1]) & high_mask_;
    }
    return static_cast<int64_t>((high << low_bits_) | low);
  }

  // The image of x, 0 <= x < n.
  TORCHRB_HOST_DEVICE int64_t operator()(int64_t x) const {
    if (n_ <= 1) return 0;
    do x = step(x);
    while (x >= n_);
    return x;
  }

 private:
  int64_t n_;
  int low_bits_;
  uint64_t low_mask_, high_mask_;
  uint64_t keys_[kRounds];
};

}  // namespace torchrb
