// Atomics on words of 4 and 8 bytes. Relaxed, as CUDA's are: what orders threads is a fence, or an access that says so.
//
// The access itself is compiled with the kernel, so that the thread sanitizer sees it; around it the runtime may let
// another thread run, and keeps the fences' books.
#pragma once

#include <type_traits>

#include "runtime.h"

namespace simt {

template <typename T>
inline constexpr bool kAtomic = std::is_integral_v<T> && (sizeof(T) == 4 || sizeof(T) == 8);

template <int order, typename T>
T atomic_load(const T* at) {
  static_assert(kAtomic<T>);
  before_atomic(at, false);
  const T seen = __atomic_load_n(at, order);
  after_atomic(at, true, false);
  return seen;
}

template <int order, typename T>
void atomic_store(T* at, T value) {
  static_assert(kAtomic<T>);
  before_atomic(at, true);
  __atomic_store_n(at, value, order);
  after_atomic(at, false, true);
}

template <int order, typename T>
T atomic_exchange(T* at, T value) {
  static_assert(kAtomic<T>);
  before_atomic(at, true);
  const T seen = __atomic_exchange_n(at, value, order);
  after_atomic(at, true, seen != value);
  return seen;
}

// Whether `at` held `expected` and now holds `desired`; otherwise `expected` becomes what it held.
template <int order, int order_if_not, typename T>
bool atomic_compare_exchange(T* at, T& expected, T desired) {
  static_assert(kAtomic<T>);
  before_atomic(at, true);
  T seen = expected;
  const bool changed = __atomic_compare_exchange_n(at, &seen, desired, false, order, order_if_not);
  after_atomic(at, true, changed && desired != expected);
  expected = seen;
  return changed;
}

template <int order, typename T>
T atomic_fetch_add(T* at, T value) {
  static_assert(kAtomic<T>);
  before_atomic(at, true);
  const T seen = __atomic_fetch_add(at, value, order);
  after_atomic(at, true, value != 0);
  return seen;
}

// Any other read-modify-write, in one turn.
template <typename T, typename Change>
T atomic_modify(T* at, const Change& change) {
  static_assert(kAtomic<T>);
  before_atomic(at, true);
  T seen = __atomic_load_n(at, __ATOMIC_RELAXED);
  T next = change(seen);
  while (!__atomic_compare_exchange_n(at, &seen, next, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) next = change(seen);
  after_atomic(at, true, seen != next);
  return seen;
}

// Rows are copied while others write them, and the slot word tells afterwards: no race, but whatever may happen in the
// middle of a row should. Pieces of 8 bytes, each an atomic of its own, between which another thread may run.
template <typename Word>
void copy_word(Word* to, const Word* from) {
  static_assert(std::is_trivially_copyable_v<Word> && sizeof(Word) <= 16);
#if defined(__SANITIZE_ADDRESS__)
  const Word aligned = *from;  // an access of this width, so that a misaligned one is reported
  *to = aligned;
#else
  using Piece = std::conditional_t<sizeof(Word) % 8 == 0, uint64_t,
                                   std::conditional_t<sizeof(Word) % 4 == 0, uint32_t, unsigned char>>;
  auto* const into = reinterpret_cast<Piece*>(to);
  const auto* const out_of = reinterpret_cast<const Piece*>(from);
  for (size_t i = 0; i < sizeof(Word) / sizeof(Piece); ++i) {
    turn();
    const Piece piece = __atomic_load_n(out_of + i, __ATOMIC_RELAXED);
    __atomic_store_n(into + i, piece, __ATOMIC_RELAXED);
  }
#endif
}

}  // namespace simt

// The overloads that CUDA has, and no others: `atomicAdd` on int64_t does not compile there.
#define SIMT_ATOMIC(type)                                                                                     \
  inline type atomicExch(type* at, type value) { return simt::atomic_exchange<__ATOMIC_RELAXED>(at, value); } \
  inline type atomicCAS(type* at, type expected, type desired) {                                              \
    simt::atomic_compare_exchange<__ATOMIC_RELAXED, __ATOMIC_RELAXED>(at, expected, desired);                 \
    return expected;                                                                                          \
  }                                                                                                           \
  inline type atomicAdd(type* at, type value) { return simt::atomic_fetch_add<__ATOMIC_RELAXED>(at, value); }
#define SIMT_ATOMIC_RANGE(type)                                                             \
  inline type atomicMin(type* at, type value) {                                             \
    return simt::atomic_modify(at, [&](type seen) { return value < seen ? value : seen; }); \
  }                                                                                         \
  inline type atomicMax(type* at, type value) {                                             \
    return simt::atomic_modify(at, [&](type seen) { return seen < value ? value : seen; }); \
  }
#define SIMT_ATOMIC_BITS(type)                                               \
  inline type atomicAnd(type* at, type value) {                              \
    return simt::atomic_modify(at, [&](type seen) { return seen & value; }); \
  }                                                                          \
  inline type atomicOr(type* at, type value) {                               \
    return simt::atomic_modify(at, [&](type seen) { return seen | value; }); \
  }                                                                          \
  inline type atomicXor(type* at, type value) {                              \
    return simt::atomic_modify(at, [&](type seen) { return seen ^ value; }); \
  }

SIMT_ATOMIC(int)
SIMT_ATOMIC(unsigned)
SIMT_ATOMIC(unsigned long long)
SIMT_ATOMIC_RANGE(int)
SIMT_ATOMIC_RANGE(unsigned)
SIMT_ATOMIC_RANGE(unsigned long long)
SIMT_ATOMIC_RANGE(long long)
SIMT_ATOMIC_BITS(int)
SIMT_ATOMIC_BITS(unsigned)
SIMT_ATOMIC_BITS(unsigned long long)
inline int atomicSub(int* at, int value) { return simt::atomic_fetch_add<__ATOMIC_RELAXED>(at, -value); }
inline unsigned atomicSub(unsigned* at, unsigned value) {
  return simt::atomic_fetch_add<__ATOMIC_RELAXED>(at, 0u - value);
}

#undef SIMT_ATOMIC
#undef SIMT_ATOMIC_RANGE
#undef SIMT_ATOMIC_BITS
