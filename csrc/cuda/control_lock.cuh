// The device's moves of `control`: what core/control_lock.h is on the host, for one thread of a grid.
#pragma once

#include "core/control.h"
#include "cuda/device_atomics.cuh"

namespace torchrb {

class ControlLock {
 public:
  __device__ explicit ControlLock(int64_t* control) : control_(control) {}

  // The holder is a running thread that waits for nobody, so spinning ends.
  __device__ void lock() const {
    while (exchange_acquire(&control_[kControlLock], int64_t{1}) != 0) __nanosleep(kControlNanoseconds);
  }
  __device__ void unlock() const { store_release(&control_[kControlLock], int64_t{0}); }

  __device__ int64_t get(int place) const { return load_relaxed(&control_[place]); }
  // Readers look without the lock, so what a number announces must lie there before it.
  __device__ void set(int place, int64_t value) const { store_release(&control_[place], value); }

  // Moves a number on; returns what it was.
  __device__ int64_t claim(int place, int64_t num) const {
    const int64_t first = get(place);
    set(place, first + num);
    return first;
  }

 private:
  static constexpr unsigned kControlNanoseconds = 64;

  int64_t* control_;
};

}  // namespace torchrb
