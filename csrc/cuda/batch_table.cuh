// Which rows of one batch name the same record: a hash table of the batch, open addressing, a kernel that fills it.
//
// An entry belongs to the first row that comes for its key, and others find it there. A key is a slot, or a slot and a
// generation; it is never stored, since an entry's owner has it.
#pragma once

#include "core/rng.h"
#include "core/rows.h"
#include "cuda/device_atomics.cuh"

namespace torchrb {

// Slots of a table for `num` rows, at most half full: a power of two.
inline int64_t batch_entries(int64_t num) {
  int64_t entries = 16;
  while (entries < 2 * num) entries *= 2;
  return entries;
}

struct BatchKeys {
  const int64_t* slots;        // [num]
  const int64_t* generations;  // [num], or null: then the slot is the key

  __device__ bool same(int64_t row, int64_t other) const {
    return slots[row] == slots[other] && (generations == nullptr || generations[row] == generations[other]);
  }
  __device__ uint64_t hash(int64_t row) const {
    const uint64_t slot = mix64(static_cast<uint64_t>(slots[row]));
    return generations == nullptr ? slot : mix64(slot + static_cast<uint64_t>(generations[row]));
  }
};

// The entry of a row's key, made if there is none. `entries[*].owner` were -1 at first.
template <typename Entry>
__device__ inline int64_t find_entry(Entry* entries, int64_t num_entries, const BatchKeys& keys, int64_t row) {
  const uint64_t mask = static_cast<uint64_t>(num_entries) - 1;
  for (uint64_t place = keys.hash(row) & mask;; place = (place + 1) & mask) {
    int64_t owner = load_relaxed(&entries[place].owner);
    if (owner < 0 && compare_exchange(&entries[place].owner, owner, row)) return static_cast<int64_t>(place);
    if (keys.same(owner, row)) return static_cast<int64_t>(place);
  }
}

}  // namespace torchrb
