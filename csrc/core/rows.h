// Rows of a storage as the kernels see them: a leaf table (where each leaf lies in a row, and where it goes to or comes
// from), and the one copy that moves their bytes.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/control.h"
#include "core/host_device.h"

namespace torchrb {

// A leaf of row `slot` lies at `table + slot * stride`, that of row `i` of a batch at `batch + i * bytes`.
struct Leaf {
  unsigned char* table;
  int64_t stride;
  unsigned char* batch;
  int64_t bytes;

  TORCHRB_HOST_DEVICE unsigned char* in_table(int64_t slot) const { return table + slot * stride; }
  TORCHRB_HOST_DEVICE unsigned char* in_batch(int64_t row) const { return batch + row * bytes; }
};

// The 16 bytes of each row that are not the user's.
struct Headers {
  unsigned char* table;
  int64_t stride;
  int64_t capacity;

  TORCHRB_HOST_DEVICE bool holds(int64_t slot) const { return slot >= 0 && slot < capacity; }
  TORCHRB_HOST_DEVICE int64_t* word(int64_t slot) const { return reinterpret_cast<int64_t*>(table + slot * stride); }
  TORCHRB_HOST_DEVICE int64_t* stamp(int64_t slot) const {
    return reinterpret_cast<int64_t*>(table + slot * stride + kStampOffset);
  }
};

// Row bytes are read and written while others look at them; the slot word tells afterwards whether that was all right.
// Under the thread sanitizer every byte is therefore an atomic of its own, and the sanitizer sees a race only where the
// word does not settle it.
#if defined(__SANITIZE_THREAD__)
#define TORCHRB_ATOMIC_ROWS 1
#else
#define TORCHRB_ATOMIC_ROWS 0
#endif

// Moves the bytes of one leaf of one row. Leaves are often single numbers, for which a call of memcpy costs more than
// it moves.
TORCHRB_HOST_DEVICE inline void copy_row(unsigned char* to, const unsigned char* from, int64_t bytes) {
#if TORCHRB_ATOMIC_ROWS
  for (int64_t i = 0; i < bytes; ++i) {
    __atomic_store_n(to + i, __atomic_load_n(from + i, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
  }
#else
  switch (bytes) {
    case 1:
      *to = *from;
      break;
    case 2:
      std::memcpy(to, from, 2);
      break;
    case 4:
      std::memcpy(to, from, 4);
      break;
    case 8:
      std::memcpy(to, from, 8);
      break;
    case 16:
      std::memcpy(to, from, 16);
      break;
    case 32:
      std::memcpy(to, from, 32);
      break;
    case 64:
      std::memcpy(to, from, 64);
      break;
    default:
      std::memcpy(to, from, static_cast<size_t>(bytes));
  }
#endif
}

// A number inside a row, which need not be aligned.
template <typename T>
TORCHRB_HOST_DEVICE inline T load(const unsigned char* at) {
  T value;
  copy_row(reinterpret_cast<unsigned char*>(&value), at, sizeof(T));
  return value;
}

TORCHRB_HOST_DEVICE inline int64_t load_stamp(const Headers& headers, int64_t slot) {
  return load<int64_t>(reinterpret_cast<const unsigned char*>(headers.stamp(slot)));
}

// Hints that `bytes` from `at` on will be needed. Beyond some lines the hardware follows by itself. (Whatever only
// prefetches must be inlined by force: to g++ a call of it has no effect, and the call is dropped.)
TORCHRB_ALWAYS_INLINE void prefetch(const unsigned char* at, int64_t bytes) {
  constexpr int64_t kLine = 64, kMost = 32 * kLine;
  const int64_t end = bytes < kMost ? bytes : kMost;
  for (int64_t offset = 0; offset < end; offset += kLine) __builtin_prefetch(at + offset);
}

// How many rows ahead to prefetch: about 8 KiB of them, which hides a cache miss and does not flush what was fetched.
inline int64_t prefetch_distance(int64_t row_bytes) {
  constexpr int64_t kAhead = 8192, kLeast = 2, kMost = 128;
  const int64_t rows = kAhead / (row_bytes < 1 ? 1 : row_bytes);
  return rows < kLeast ? kLeast : rows > kMost ? kMost : rows;
}

}  // namespace torchrb
