// Words that several threads touch, across blocks and streams: loads, stores and exchanges with a stated order.
//
// `T`: an integer of 4 or 8 bytes, naturally aligned. Under nvcc these are cuda::atomic_ref of device scope; in the
// emulator of tests/simt each is also a place where another thread may run. What CUDA has as atomicAdd and the like is
// relaxed, and ordered by __threadfence() alone.
#pragma once

#include <cstdint>

#include "cuda/launch.cuh"

#if defined(__CUDACC__)
#include <cuda/atomic>
#endif

namespace torchrb {

#if defined(__CUDACC__)

template <typename T>
using DeviceWord = cuda::atomic_ref<T, cuda::thread_scope_device>;

template <typename T>
__device__ inline T load_relaxed(const T* at) {
  return DeviceWord<T>(*const_cast<T*>(at)).load(cuda::memory_order_relaxed);
}
template <typename T>
__device__ inline T load_acquire(const T* at) {
  return DeviceWord<T>(*const_cast<T*>(at)).load(cuda::memory_order_acquire);
}
template <typename T>
__device__ inline void store_relaxed(T* at, T value) {
  DeviceWord<T>(*at).store(value, cuda::memory_order_relaxed);
}
template <typename T>
__device__ inline void store_release(T* at, T value) {
  DeviceWord<T>(*at).store(value, cuda::memory_order_release);
}
// Whether `at` held `expected` and now holds `desired` (acquire); otherwise `expected` becomes what it held (relaxed).
template <typename T>
__device__ inline bool compare_exchange(T* at, T& expected, T desired) {
  return DeviceWord<T>(*at).compare_exchange_strong(expected, desired, cuda::memory_order_acquire,
                                                    cuda::memory_order_relaxed);
}
template <typename T>
__device__ inline T exchange_acquire(T* at, T value) {
  return DeviceWord<T>(*at).exchange(value, cuda::memory_order_acquire);
}
template <typename T>
__device__ inline T fetch_add_relaxed(T* at, T value) {
  return DeviceWord<T>(*at).fetch_add(value, cuda::memory_order_relaxed);
}
template <typename T>
__device__ inline T fetch_max_relaxed(T* at, T value) {
  return DeviceWord<T>(*at).fetch_max(value, cuda::memory_order_relaxed);
}

// Acquires and releases, which is all that is needed here and less than the total order of __threadfence().
__device__ inline void device_fence() {
  cuda::atomic_thread_fence(cuda::memory_order_acq_rel, cuda::thread_scope_device);
}

// Copies a word (of up to 16 bytes, aligned) of a row that others may be writing; the slot word tells afterwards
// whether that was all right. All row bytes move through this.
template <typename Word>
__device__ inline void copy_word(Word* to, const Word* from) {
  *to = *from;
}

#else

template <typename T>
inline T load_relaxed(const T* at) {
  return simt::atomic_load<__ATOMIC_RELAXED>(at);
}
template <typename T>
inline T load_acquire(const T* at) {
  return simt::atomic_load<__ATOMIC_ACQUIRE>(at);
}
template <typename T>
inline void store_relaxed(T* at, T value) {
  simt::atomic_store<__ATOMIC_RELAXED>(at, value);
}
template <typename T>
inline void store_release(T* at, T value) {
  simt::atomic_store<__ATOMIC_RELEASE>(at, value);
}
template <typename T>
inline bool compare_exchange(T* at, T& expected, T desired) {
  return simt::atomic_compare_exchange<__ATOMIC_ACQUIRE, __ATOMIC_RELAXED>(at, expected, desired);
}
template <typename T>
inline T exchange_acquire(T* at, T value) {
  return simt::atomic_exchange<__ATOMIC_ACQUIRE>(at, value);
}
template <typename T>
inline T fetch_add_relaxed(T* at, T value) {
  return simt::atomic_fetch_add<__ATOMIC_RELAXED>(at, value);
}
template <typename T>
inline T fetch_max_relaxed(T* at, T value) {
  return simt::atomic_modify(at, [=](T seen) { return seen < value ? value : seen; });
}
inline void device_fence() { __threadfence(); }
template <typename Word>
inline void copy_word(Word* to, const Word* from) {
  simt::copy_word(to, from);
}

#endif

}  // namespace torchrb
