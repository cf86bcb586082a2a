// The host's moves of `control` and `journal`: several writers may share a storage, and each claims and reports under a
// lock that is held for a few loads and stores, never while rows are copied.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "core/control.h"
#include "core/slot_lock.h"

namespace torchrb {

class ControlLock {
 public:
  explicit ControlLock(int64_t* control) : control_(control) {
    Backoff backoff;
    while (word(kControlLock).exchange(1, std::memory_order_acquire) != 0) backoff.wait();
  }
  ~ControlLock() { word(kControlLock).store(0, std::memory_order_release); }
  ControlLock(const ControlLock&) = delete;
  ControlLock& operator=(const ControlLock&) = delete;

  int64_t get(int place) const { return word(place).load(std::memory_order_relaxed); }
  // Readers look without the lock, so what a number announces must lie there before it.
  void set(int place, int64_t value) { word(place).store(value, std::memory_order_release); }

  // Moves a number on; returns what it was.
  int64_t claim(int place, int64_t num) {
    const int64_t first = get(place);
    set(place, first + num);
    return first;
  }

  // Appends `slot_of(0..num-1)` to the journal, a ring of `size`; of more than fit, the last.
  template <typename SlotOf>
  void note(int64_t* journal, int64_t size, int64_t num, const SlotOf& slot_of) {
    const int64_t head = get(kControlJournal), first = std::max<int64_t>(0, num - size);
    // Unsigned: inside the ring whatever the head is.
    auto place =
        static_cast<int64_t>(first < num ? static_cast<uint64_t>(head + first) % static_cast<uint64_t>(size) : 0);
    for (int64_t i = first; i < num; ++i) {
      std::atomic_ref<int64_t>(journal[place]).store(slot_of(i), std::memory_order_relaxed);
      place = place + 1 == size ? 0 : place + 1;
    }
    set(kControlJournal, head + num);
  }

 private:
  std::atomic_ref<int64_t> word(int place) const { return std::atomic_ref<int64_t>(control_[place]); }

  int64_t* control_;
};

}  // namespace torchrb
