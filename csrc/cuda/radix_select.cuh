// The k first of many rows by a total order, without sorting them: a block reads the rows several times, and each time
// narrows down, by a digit of their keys, where the k-th of them stands; the most significant digit comes first.
#pragma once

#include "cuda/select_rows.cuh"

namespace torchrb {

inline constexpr int kKeyParts = 6, kDigitBits = 8;
inline constexpr int64_t kRadixWords = 256 + 4 * kKeyParts + 3;

// A place in a total order of rows, most significant part first; less is earlier.
struct RowKey {
  uint32_t part[kKeyParts];
};

// `first` rules, then scores, falling or rising, then what tells equal scores apart.
__device__ inline RowKey key_of(uint32_t first, uint64_t rising_score, const Candidate& row) {
  const uint64_t age = ~(static_cast<uint64_t>(row.stamp) ^ (uint64_t{1} << 63));
  return {{first, static_cast<uint32_t>(rising_score >> 32), static_cast<uint32_t>(rising_score),
           static_cast<uint32_t>(age >> 32), static_cast<uint32_t>(age), static_cast<uint32_t>(row.slot)}};
}
__device__ inline uint64_t rising(int64_t score) { return static_cast<uint64_t>(score) ^ (uint64_t{1} << 63); }

// What is known of the k-th key: the bits `fixed` of each part are those of `value`, whose other bits are 0.
struct KeyPrefix {
  uint32_t value[kKeyParts], fixed[kKeyParts];

  // Below 0: earlier than the k-th; 0: among those that the k-th is still to be found in; above 0: later.
  __device__ int compare(const RowKey& key) const {
    for (int i = 0; i < kKeyParts; ++i) {
      const uint32_t known = key.part[i] & fixed[i];
      if (known != value[i]) return known < value[i] ? -1 : 1;
    }
    return 0;
  }
};

// Shared memory of a block that selects.
struct RadixSpace {
  uint32_t* words;       // [kRadixWords]
  Candidate* survivors;  // [kSharedRows]

  __device__ uint32_t* bins() const { return words; }  // [256]
  __device__ uint32_t* value() const { return words + 256; }
  __device__ uint32_t* fixed() const { return words + 256 + kKeyParts; }
  __device__ uint32_t* any() const { return words + 256 + 2 * kKeyParts; }    // bits that some survivor has
  __device__ uint32_t* all() const { return words + 256 + 3 * kKeyParts; }    // bits that every survivor has
  __device__ uint32_t& wanted() const { return words[256 + 4 * kKeyParts]; }  // of the survivors
  __device__ uint32_t& num() const { return words[256 + 4 * kKeyParts + 1]; }
  __device__ uint32_t& gathered() const { return words[256 + 4 * kKeyParts + 2]; }

  __device__ KeyPrefix prefix() const {
    KeyPrefix known;
    for (int i = 0; i < kKeyParts; ++i) {
      known.value[i] = value()[i];
      known.fixed[i] = fixed()[i];
    }
    return known;
  }
};

// Looks which bits tell the survivors apart.
template <typename Key>
__device__ inline void compare_survivors(const SelectBlock& team, const RadixSpace& space, const Candidate* rows,
                                         int64_t num, const KeyPrefix& known, const Key& key) {
  RowKey any{}, all;
  for (uint32_t& part : all.part) part = ~0u;
  for (int64_t i = team.rank(); i < num; i += team.size()) {
    const RowKey mine = key(rows[i]);
    if (known.compare(mine) != 0) continue;
    for (int part = 0; part < kKeyParts; ++part) {
      any.part[part] |= mine.part[part];
      all.part[part] &= mine.part[part];
    }
  }
  for (int part = 0; part < kKeyParts; ++part) {
    const uint32_t some = __reduce_or_sync(0xFFFFFFFFu, any.part[part]);
    const uint32_t every = __reduce_and_sync(0xFFFFFFFFu, all.part[part]);
    if (team.rank() % 32 != 0) continue;
    atomicOr(&space.any()[part], some);
    atomicAnd(&space.all()[part], every);
  }
}

// Of a histogram in `bins`: which digit the k-th survivor has. One warp: a lane sums up eight bins.
__device__ inline void fix_digit(const RadixSpace& space, int part, int shift) {
  constexpr unsigned kLanes = 0xFFFFFFFFu;
  const uint32_t lane = threadIdx.x % 32, wanted = space.wanted();
  const uint32_t* mine = space.bins() + 8 * lane;
  uint32_t sum = 0;
  for (int i = 0; i < 8; ++i) sum += mine[i];
  uint32_t upto = sum;
  for (unsigned step = 1; step < 32; step *= 2) {
    const uint32_t before = __shfl_up_sync(kLanes, upto, step);
    if (lane >= step) upto += before;
  }
  uint32_t before = upto - sum;
  __syncwarp(kLanes);  // all have read `wanted`
  if (wanted <= before || wanted > upto) return;
  uint32_t digit = 8 * lane;
  for (; before + space.bins()[digit] < wanted; ++digit) before += space.bins()[digit];
  // Above the digit all survivors are alike.
  const uint32_t above = static_cast<uint32_t>(~uint64_t{0} << (shift + kDigitBits));
  space.value()[part] = (space.all()[part] & above) | (digit << shift);
  space.fixed()[part] = ~0u << shift;
  space.wanted() = wanted - before;
  space.num() = space.bins()[digit];
  space.gathered() = 0;
}

// How far the `wanted` first of the rows go by their keys, all of which differ: `compare` is at most 0 for just those.
// 0 < wanted <= num. Once so few rows are left that they find room in shared memory, they are looked at there.
template <typename Key>
__device__ inline KeyPrefix find_first(const SelectBlock& team, const RadixSpace& space, const Candidate* rows,
                                       int64_t num, int64_t wanted, const Key& key) {
  if (team.rank() < kKeyParts) space.value()[team.rank()] = space.fixed()[team.rank()] = 0;
  if (team.rank() == 0) {
    space.wanted() = static_cast<uint32_t>(wanted);
    space.num() = static_cast<uint32_t>(num);
  }
  bool near = false;
  team.sync();
  while (space.wanted() < space.num()) {
    const KeyPrefix known = space.prefix();
    for (int64_t i = team.rank(); i < 256; i += team.size()) space.bins()[i] = 0;
    if (team.rank() < kKeyParts) {
      space.any()[team.rank()] = 0;
      space.all()[team.rank()] = ~0u;
    }
    team.sync();
    compare_survivors(team, space, rows, num, known, key);
    team.sync();
    int part = 0;
    while (part < kKeyParts && space.any()[part] == space.all()[part]) ++part;
    if (part == kKeyParts) break;  // equal keys
    const int highest = 31 - __clz(static_cast<int>(space.any()[part] ^ space.all()[part]));
    const int shift = highest < kDigitBits ? 0 : highest + 1 - kDigitBits;
    for (int64_t i = team.rank(); i < num; i += team.size()) {
      const RowKey mine = key(rows[i]);
      if (known.compare(mine) != 0) continue;
      uint32_t digits = 0;
      for (int at = 0; at < kKeyParts; ++at) digits |= mine.part[at] & (at == part ? ~0u : 0u);
      atomicAdd(&space.bins()[(digits >> shift) & 255u], 1u);
    }
    team.sync();
    if (team.rank() < 32) fix_digit(space, part, shift);
    team.sync();
    const int64_t left = space.num();
    if (near || left > kSharedRows || space.wanted() == left) continue;
    const KeyPrefix closer = space.prefix();
    for (int64_t i = team.rank(); i < num; i += team.size()) {
      if (closer.compare(key(rows[i])) != 0) continue;
      const uint32_t place = atomicAdd(&space.gathered(), 1u);
      if (place < kSharedRows) space.survivors[place] = rows[i];
    }
    team.sync();
    near = true;
    rows = space.survivors;
    num = left;
  }
  const KeyPrefix found = space.prefix();
  team.sync();
  return found;
}

// Brings the `wanted` first of the rows to the front, in any order; the rest stay behind. wanted <= kSharedRows. Rows
// in front that are not among the first change places with as many behind that are.
template <typename Key>
__device__ inline void bring_first(const SelectBlock& team, const RadixSpace& space, Candidate* rows, int64_t num,
                                   int64_t wanted, const Key& key) {
  const KeyPrefix first = find_first(team, space, rows, num, wanted, key);
  auto* const out = reinterpret_cast<int32_t*>(space.survivors);
  int32_t* const in = out + kSharedRows;
  if (team.rank() == 0) team.cells[0] = team.cells[1] = 0;
  team.sync();
  for (int64_t i = team.rank(); i < num; i += team.size()) {
    const bool chosen = first.compare(key(rows[i])) <= 0;
    if (chosen == (i < wanted)) continue;
    const int32_t place = atomicAdd(&team.cells[chosen ? 1 : 0], 1);
    if (place < kSharedRows) (chosen ? in : out)[place] = static_cast<int32_t>(i);
  }
  team.sync();
  const int64_t moves = team.cells[0] < team.cells[1] ? team.cells[0] : team.cells[1];
  for (int64_t i = team.rank(); i < moves; i += team.size()) {
    const Candidate held = rows[out[i]];
    rows[out[i]] = rows[in[i]];
    rows[in[i]] = held;
  }
  team.sync();
}

// Sorts up to kSharedRows rows of global memory in shared memory.
template <typename Before>
__device__ inline void sort_near(const SelectBlock& team, const RadixSpace& space, Candidate* rows, int64_t num,
                                 const Before& before) {
  for (int64_t i = team.rank(); i < num; i += team.size()) space.survivors[i] = rows[i];
  team.sync();
  sort_rows(team, space.survivors, num, before);
  for (int64_t i = team.rank(); i < num; i += team.size()) rows[i] = space.survivors[i];
  team.sync();
}

}  // namespace torchrb
