// Warp intrinsics: each lane posts its value and what it wants, the runtime checks masks and answers.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "runtime.h"

namespace simt {

inline constexpr unsigned kAllLanes = 0xffffffffu;

template <typename T>
uint64_t to_word(T value) {
  static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8), "a register of 4 or 8 bytes");
  if constexpr (sizeof(T) == 4) return std::bit_cast<uint32_t>(value);
  if constexpr (sizeof(T) == 8) return std::bit_cast<uint64_t>(value);
}

template <typename T>
T from_word(uint64_t word) {
  if constexpr (sizeof(T) == 4) return std::bit_cast<T>(static_cast<uint32_t>(word));
  if constexpr (sizeof(T) == 8) return std::bit_cast<T>(word);
}

template <typename T>
T shuffle(WarpOp op, unsigned mask, T value, int source, bool inside, const Site& site) {
  return from_word<T>(warp_collective(op, mask, to_word(value), inside ? source : lane(), site));
}

template <typename T>
T reduce(WarpOp op, unsigned mask, T value, const Site& site) {
  static_assert(std::is_same_v<T, int> || std::is_same_v<T, unsigned>, "__reduce_*_sync takes int or unsigned");
  return static_cast<T>(warp_collective(op, mask, static_cast<uint64_t>(static_cast<int64_t>(value)), 0, site));
}

inline int segment_end(int width) { return (lane() & ~(width - 1)) + width - 1; }
inline int segment_start(int width) { return lane() & ~(width - 1); }

}  // namespace simt

unsigned __activemask() = delete;  // name the lanes: which ones happen to be together is nobody's promise

inline void __syncwarp(unsigned mask = simt::kAllLanes, const simt::Site& site = simt::Site::current()) {
  simt::warp_collective(simt::WarpOp::kSync, mask, 0, 0, site);
}

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = simt::kWarp,
              const simt::Site& site = simt::Site::current()) {
  const int from = simt::segment_start(width) + (source & (width - 1));
  return simt::shuffle(simt::WarpOp::kShuffle, mask, value, from, true, site);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = simt::kWarp,
                 const simt::Site& site = simt::Site::current()) {
  const int from = simt::lane() - static_cast<int>(delta);
  return simt::shuffle(simt::WarpOp::kShuffleUp, mask, value, from, from >= simt::segment_start(width), site);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = simt::kWarp,
                   const simt::Site& site = simt::Site::current()) {
  const int from = simt::lane() + static_cast<int>(delta);
  return simt::shuffle(simt::WarpOp::kShuffleDown, mask, value, from, from <= simt::segment_end(width), site);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = simt::kWarp,
                  const simt::Site& site = simt::Site::current()) {
  const int from = simt::lane() ^ bits;
  return simt::shuffle(simt::WarpOp::kShuffleXor, mask, value, from, from <= simt::segment_end(width), site);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, const simt::Site& site = simt::Site::current()) {
  return static_cast<unsigned>(simt::warp_collective(simt::WarpOp::kBallot, mask, predicate != 0, 0, site));
}
inline int __any_sync(unsigned mask, int predicate, const simt::Site& site = simt::Site::current()) {
  return static_cast<int>(simt::warp_collective(simt::WarpOp::kAny, mask, predicate != 0, 0, site));
}
inline int __all_sync(unsigned mask, int predicate, const simt::Site& site = simt::Site::current()) {
  return static_cast<int>(simt::warp_collective(simt::WarpOp::kAll, mask, predicate != 0, 0, site));
}
template <typename T>
unsigned __match_any_sync(unsigned mask, T value, const simt::Site& site = simt::Site::current()) {
  return static_cast<unsigned>(simt::warp_collective(simt::WarpOp::kMatchAny, mask, simt::to_word(value), 0, site));
}
template <typename T>
unsigned __match_all_sync(unsigned mask, T value, int* all, const simt::Site& site = simt::Site::current()) {
  const uint64_t same = simt::warp_collective(simt::WarpOp::kMatchAll, mask, simt::to_word(value), 0, site);
  *all = same != 0;
  return static_cast<unsigned>(same);
}

#define SIMT_REDUCE(name, op)                                                      \
  template <typename T>                                                            \
  T name(unsigned mask, T value, const simt::Site& site = simt::Site::current()) { \
    return simt::reduce(simt::WarpOp::op, mask, value, site);                      \
  }
SIMT_REDUCE(__reduce_add_sync, kReduceAdd)
SIMT_REDUCE(__reduce_min_sync, kReduceMin)
SIMT_REDUCE(__reduce_max_sync, kReduceMax)
SIMT_REDUCE(__reduce_and_sync, kReduceAnd)
SIMT_REDUCE(__reduce_or_sync, kReduceOr)
SIMT_REDUCE(__reduce_xor_sync, kReduceXor)
#undef SIMT_REDUCE
