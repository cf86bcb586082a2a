// Which rows of one batch address the same slot.
#pragma once

#include <cstdint>
#include <vector>

#include "core/rng.h"

namespace torchrb {

// Rows of equal slots as chains from the last one backwards. A batch of strictly ascending slots has no chains, and costs
// one pass over it; any other costs a hash table of the batch's size.
class SlotChains {
 public:
  SlotChains(const int64_t* slots, int64_t num) {
    bool ascending = true;
    for (int64_t row = 1; row < num; ++row) ascending &= slots[row - 1] < slots[row];
    if (!ascending) link(slots, num);
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
  void link(const int64_t* slots, int64_t num) {
    int bits = 4;
    while ((int64_t{1} << bits) < 2 * num) ++bits;
    const uint64_t mask = (uint64_t{1} << bits) - 1;
    std::vector<int64_t> newest(mask + 1, -1);  // the newest row of the slot that hashed here
    previous_.assign(num, -1);
    next_.assign(num, -1);
    for (int64_t row = 0; row < num; ++row) {
      uint64_t place = mix64(static_cast<uint64_t>(slots[row])) & mask;
      while (newest[place] >= 0 && slots[newest[place]] != slots[row]) place = (place + 1) & mask;
      previous_[row] = newest[place];
      if (newest[place] >= 0) next_[newest[place]] = row;
      newest[place] = row;
    }
  }

  std::vector<int64_t> previous_, next_;
};

}  // namespace torchrb
