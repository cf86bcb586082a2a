// The device's side of a record's header: the sequence lock of core/slot_lock.h, move by move.
//
// One lane looks, takes and publishes for the lanes that copy; a barrier between them carries what it saw to them, and
// what they copied to it.
#pragma once

#include "core/rows.h"
#include "core/slot_word.h"
#include "cuda/device_atomics.cuh"

namespace torchrb {

inline constexpr unsigned kSpinNanoseconds = 64;  // about what it takes to copy a short record

// What a reader saw of a header when nobody was writing.
struct Look {
  int64_t word;
  int64_t stamp;
};

// A reader's first look; the stamp before the word, as on the host.
__device__ inline Look look(const Headers& headers, int64_t slot) {
  for (;;) {
    const int64_t stamp = load_acquire(headers.stamp(slot));
    const int64_t word = load_acquire(headers.word(slot));
    if (!word_busy(word)) return {word, stamp};
    __nanosleep(kSpinNanoseconds);
  }
}

// A reader's second look; each lane that copied has fenced before.
__device__ inline bool unmoved(const Headers& headers, int64_t slot, const Look& seen) {
  return load_relaxed(headers.stamp(slot)) == seen.stamp && load_relaxed(headers.word(slot)) == seen.word;
}

// Takes the record if its word is still `word`.
__device__ inline bool take_if(const Headers& headers, int64_t slot, int64_t word) {
  return compare_exchange(headers.word(slot), word, word | kBusy);
}

// Takes the record; returns what its word was.
__device__ inline int64_t take(const Headers& headers, int64_t slot) {
  for (;;) {
    const int64_t word = look(headers, slot).word;
    if (take_if(headers, slot, word)) return word;
  }
}

// Moves the stamp of a record that was taken; the bytes of the record are written after this and a barrier.
__device__ inline void restamp(const Headers& headers, int64_t slot, int64_t stamp) {
  store_relaxed(headers.stamp(slot), stamp);
  device_fence();
}

__device__ inline void mark_patched(const Headers& headers, int64_t slot) {
  restamp(headers, slot, stamp_patched(load_relaxed(headers.stamp(slot))));
}

// Gives the record back under its next word, after a barrier of the lanes that wrote it.
__device__ inline void publish(const Headers& headers, int64_t slot, int64_t word) {
  store_release(headers.word(slot), word);
}

}  // namespace torchrb
