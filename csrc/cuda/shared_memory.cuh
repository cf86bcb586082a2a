// A block's dynamic shared memory, handed out in pieces: the one way to shared memory, so that the emulator of
// tests/simt knows where each piece ends and puts a red zone behind it.
//
//   host:    launch(kernel, grid, block, shared_bytes<double>(n) + shared_bytes<int>(32), stream, ...)
//   device:  SharedMemory shared;  double* sums = shared.take<double>(n);  int* counts = shared.take<int>(32);
//
// Every thread takes the same pieces in the same order. A piece starts at a multiple of 16 bytes and holds garbage.
#pragma once

#include <cstddef>

#include "core/host_device.h"
#include "cuda/launch.cuh"

namespace torchrb {

#if defined(TORCHRB_SIMT)
inline constexpr size_t kSharedRedZone = 64;
#else
inline constexpr size_t kSharedRedZone = 0;
extern __shared__ __align__(16) unsigned char shared_arena[];
#endif

// What a piece of `count` values takes of the arena.
template <typename T>
TORCHRB_HOST_DEVICE constexpr size_t shared_bytes(size_t count) {
  return (count * sizeof(T) + 15) / 16 * 16 + kSharedRedZone;
}

class SharedMemory {
 public:
#if defined(TORCHRB_SIMT)
  template <typename T>
  T* take(size_t count, const simt::Site& site = simt::Site::current()) {
    static_assert(alignof(T) <= 16);
    unsigned char* piece = simt::shared_arena() + used_;
    used_ += shared_bytes<T>(count);
    simt::carved(piece, count * sizeof(T), simt::shared_arena() + used_, site);
    return reinterpret_cast<T*>(piece);
  }
#else
  template <typename T>
  __device__ T* take(size_t count) {
    static_assert(alignof(T) <= 16);
    unsigned char* piece = shared_arena + used_;
    used_ += shared_bytes<T>(count);
    return reinterpret_cast<T*>(piece);
  }
#endif

 private:
  size_t used_ = 0;
};

}  // namespace torchrb
