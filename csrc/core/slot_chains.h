// Which rows of one batch address the same slot.
#pragma once

#include <cstdint>
#include <vector>

#include "core/rng.h"

namespace torchrb {

// Rows of equal slots as chains from the last one backwards. A batch of distinct slots has no chains and costs a pass
// over it: slots that ascend are distinct, others are marked in a bitmap of all rows of the storage where that is small
// beside the batch, else in a hash set. Only where slots repeat are they linked.
class SlotChains {
 public:
  SlotChains(const int64_t* slots, int64_t num, int64_t capacity) {
    if (!ascends(slots, num) && !distinct(slots, num, capacity)) link(slots, num);
  }

  // Whether no later row has this row's slot.
  bool is_last(int64_t row) const { return next_.empty() || next_[row] < 0; }
  // The nearest earlier row of the same slot, -1 if there is none.
  int64_t previous(int64_t row) const { return previous_.empty() ? -1 : previous_[row]; }
  // How many rows from this one backwards have its slot, itself counted.
  int64_t length(int64_t row) const {
    int64_t rows = 0;
    for (; row >= 0; row = previous(row)) ++rows;
    return rows;
  }

 private:
  static constexpr int64_t kWord = 64;

  static bool ascends(const int64_t* slots, int64_t num) {
    for (int64_t row = 1; row < num; ++row) {
      if (slots[row - 1] >= slots[row]) return false;
    }
    return true;
  }

  static bool distinct(const int64_t* slots, int64_t num, int64_t capacity) {
    return capacity / kWord <= num ? distinct_in_bitmap(slots, num, capacity) : distinct_in_set(slots, num);
  }

  // False also where a slot is out of range.
  static bool distinct_in_bitmap(const int64_t* slots, int64_t num, int64_t capacity) {
    std::vector<uint64_t> seen(capacity / kWord + 1, 0);
    for (int64_t row = 0; row < num; ++row) {
      const auto slot = static_cast<uint64_t>(slots[row]);
      if (slot >= static_cast<uint64_t>(capacity)) return false;
      const uint64_t bit = uint64_t{1} << (slot % kWord);
      if ((seen[slot / kWord] & bit) != 0) return false;
      seen[slot / kWord] |= bit;
    }
    return true;
  }

  // A quarter full at most, so that nearly every slot finds its place free.
  static bool distinct_in_set(const int64_t* slots, int64_t num) {
    if (num >= int64_t{1} << 31) return false;
    int bits = 4;
    while ((int64_t{1} << bits) < 4 * num) ++bits;
    const uint64_t mask = (uint64_t{1} << bits) - 1;
    std::vector<uint32_t> rows(mask + 1, 0);  // a row's number + 1
    for (int64_t row = 0; row < num; ++row) {
      uint64_t place = (static_cast<uint64_t>(slots[row]) * kGolden) >> (64 - bits);
      for (; rows[place] != 0; place = (place + 1) & mask) {
        if (slots[rows[place] - 1] == slots[row]) return false;
      }
      rows[place] = static_cast<uint32_t>(row + 1);
    }
    return true;
  }

  void link(const int64_t* slots, int64_t num) {
    struct Newest {
      int64_t slot, row;  // the newest row of the slot that hashed here
    };
    int bits = 4;
    while ((int64_t{1} << bits) < 2 * num) ++bits;
    const uint64_t mask = (uint64_t{1} << bits) - 1;
    const auto home = [&](int64_t row) { return mix64(static_cast<uint64_t>(slots[row])) & mask; };
    std::vector<Newest> newest(mask + 1, {0, -1});
    previous_.resize(num);
    next_.assign(num, -1);
    constexpr int64_t kAhead = 16;
    for (int64_t row = 0; row < num; ++row) {
      if (row + kAhead < num) __builtin_prefetch(&newest[home(row + kAhead)]);
      uint64_t place = home(row);
      while (newest[place].row >= 0 && newest[place].slot != slots[row]) place = (place + 1) & mask;
      previous_[row] = newest[place].row;
      if (newest[place].row >= 0) next_[newest[place].row] = row;
      newest[place] = {slots[row], row};
    }
  }

  std::vector<int64_t> previous_, next_;
};

}  // namespace torchrb
