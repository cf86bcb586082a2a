// The host's side of a record's header: a sequence lock with several writers, shared by threads and processes.
//
// A writer takes the word by compare-and-swap (idle to busy), moves the stamp, writes the record, and publishes the
// next word. A reader looks, copies, and looks again. Nobody holds two records at once, so nobody waits in a circle.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "core/rows.h"
#include "core/slot_word.h"

namespace torchrb {

// Waits politely: a record is held for about as long as it takes to copy it, unless its holder was descheduled.
class Backoff {
 public:
  void wait() {
    if (++turns_ < kSpins) {
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    } else {
      std::this_thread::yield();
    }
  }

 private:
  static constexpr int kSpins = 64;
  int turns_ = 0;
};

// What a reader saw of a header when nobody was writing.
struct Look {
  int64_t word;
  int64_t stamp;
};

// A reader's first look. The stamp is read before the word: a writer who takes the word afterwards moves a stamp that
// this look has already seen the old value of, and one who took it before shows as busy.
inline Look look(const Headers& headers, int64_t slot) {
  std::atomic_ref<int64_t> word(*headers.word(slot)), stamp(*headers.stamp(slot));
  for (Backoff backoff;; backoff.wait()) {
    const int64_t stamp_seen = stamp.load(std::memory_order_acquire);
    const int64_t word_seen = word.load(std::memory_order_acquire);
    if (!word_busy(word_seen)) [[likely]]
      return {word_seen, stamp_seen};
  }
}

// A reader's second look: whether all that was copied since the first one belongs together.
inline bool unmoved(const Headers& headers, int64_t slot, const Look& seen) {
  std::atomic_thread_fence(std::memory_order_acquire);
  std::atomic_ref<int64_t> word(*headers.word(slot)), stamp(*headers.stamp(slot));
  return stamp.load(std::memory_order_relaxed) == seen.stamp && word.load(std::memory_order_relaxed) == seen.word;
}

// Takes the record if its word is still `word`.
inline bool take_if(const Headers& headers, int64_t slot, int64_t word) {
  std::atomic_ref<int64_t> shared(*headers.word(slot));
  return shared.compare_exchange_strong(word, word | kBusy, std::memory_order_acquire, std::memory_order_relaxed);
}

// Takes the record; returns what its word was.
inline int64_t take(const Headers& headers, int64_t slot) {
  for (;;) {
    const int64_t word = look(headers, slot).word;
    if (take_if(headers, slot, word)) [[likely]]
      return word;
  }
}

// Moves the stamp of a record that was taken; the bytes of the record are written after this. A reader that sees one of
// those bytes then also sees that the stamp has moved.
inline void restamp(const Headers& headers, int64_t slot, int64_t stamp) {
  std::atomic_ref<int64_t>(*headers.stamp(slot)).store(stamp, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_release);
}

inline void mark_patched(const Headers& headers, int64_t slot) {
  restamp(headers, slot, stamp_patched(std::atomic_ref<int64_t>(*headers.stamp(slot)).load(std::memory_order_relaxed)));
}

// Gives the record back under its next word.
inline void publish(const Headers& headers, int64_t slot, int64_t word) {
  std::atomic_ref<int64_t>(*headers.word(slot)).store(word, std::memory_order_release);
}

}  // namespace torchrb
