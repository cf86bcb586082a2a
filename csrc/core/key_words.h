// A group key as canonical words: integers sign-extended, floating-point values as the bits of their float64.
// Keys are equal where their words are; groups are ordered by this hash of the words, then by the words, both signed.
#pragma once

#include <bit>
#include <cstdint>

#include "core/host_device.h"
#include "core/rng.h"
#include "core/rows.h"
#include "core/score.h"

namespace torchrb {

struct KeyCells {
  Leaf cell;
  Dtype dtype;
  int64_t num_words;

  // The word of one element; `numbers` becomes false when it is NaN.
  TORCHRB_HOST_DEVICE int64_t word(const unsigned char* at, bool& numbers) const {
    if (!is_real(dtype)) return read_integer(at, dtype);
    const double value = read_real(at, dtype);
    numbers &= value == value;
    return std::bit_cast<int64_t>(value == 0.0 ? 0.0 : value);
  }

  // False when an element is NaN.
  TORCHRB_HOST_DEVICE bool read(int64_t slot, int64_t* words) const {
    const unsigned char* at = cell.in_table(slot);
    const int64_t step = element_bytes(dtype);
    bool numbers = true;
    for (int64_t i = 0; i < num_words; ++i, at += step) words[i] = word(at, numbers);
    return numbers;
  }
};

TORCHRB_HOST_DEVICE inline uint64_t hash_of_key(const int64_t* key, int64_t num_words) {
  uint64_t mixed = 0;
  for (int64_t word = 0; word < num_words; ++word) mixed = mix64(mixed ^ static_cast<uint64_t>(key[word]));
  return mixed;
}

}  // namespace torchrb
