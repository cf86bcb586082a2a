// The group index of a GPU: as on the CPU (core/group_index.h) buckets by the upper bits of the hash chain their groups
// in canonical order, counts above the buckets find the group of a rank, and a group's rows are a doubly linked list.
//
// A group is known by its head, the first row of its list: nothing has to be allocated when one comes into being. Zero
// bytes are an empty index. The last row of `rows` is no row but the head of those whose key is NaN.
#pragma once

#include "core/key_words.h"
#include "cuda/device_atomics.cuh"

namespace torchrb {

// What an update passes on from one of its kernels to the next, and what draws read.
struct IndexHead {
  int64_t begin, num, end;  // of the journal's entries, or of all rows; `end` is the journal's position
  int32_t all;
  int32_t groups, singletons;
  int32_t noted;  // rows named by the journal's entries
  int32_t done;   // blocks
};

class GroupLinks {
 public:
  enum : int32_t { kNowhere, kIsHead, kFirstPrevious };  // what `previous` may be; else the row before + kFirstPrevious
  enum : int32_t { kMember = -1, kOutcast = -2 };        // what `size` of a row that is no head may be

  struct Row {
    int32_t next;      // the row after, + 1; 0 at the end
    int32_t previous;  // kNowhere for a row that is not in
    int32_t size;      // of a head: rows of the group
    int32_t chain;     // of a head: the next head of its bucket, + 1
  };
  struct Bucket {
    int32_t first;  // head, + 1
    int32_t owner;  // during an update: the row, + 1, whose thread mends the chain
  };

  int64_t capacity, num_words, num_buckets;
  int64_t* keys;    // [capacity, num_words]
  IndexHead* head;  // what comes first in the links
  Row* rows;        // [capacity + 1]
  int32_t* marks;   // [capacity + 1]: see group_index_update.cuh
  int32_t* noted;   // [capacity]: the rows that an update looks at
  Bucket* buckets;  // [num_buckets]
  int32_t* counts;  // groups of each bucket, then of each kFan buckets, then of kFan of those, ...
  int shift;

  static constexpr int64_t kFan = 32;  // counts that a warp looks at together

  // `links`: [size(capacity)], aligned to 8 bytes.
  GroupLinks(int64_t* key_words, int64_t words_a_key, int32_t* links, int64_t num_rows)
      : capacity(num_rows),
        num_words(words_a_key),
        num_buckets(buckets_for(num_rows)),
        keys(key_words),
        head(reinterpret_cast<IndexHead*>(links)),
        rows(reinterpret_cast<Row*>(links + kHeadInts)),
        marks(links + kHeadInts + 4 * (num_rows + 1)),
        noted(links + kHeadInts + 5 * (num_rows + 1)),
        buckets(reinterpret_cast<Bucket*>(links + kHeadInts + 6 * (num_rows + 1))),
        counts(links + kHeadInts + 6 * (num_rows + 1) + 2 * num_buckets) {
    int bits = 0;
    while ((int64_t{1} << bits) < num_buckets) ++bits;
    shift = 64 - bits;
  }

  // How many int32 an index of `capacity` rows takes.
  static int64_t size(int64_t capacity) {
    int64_t ints = kHeadInts + 6 * (capacity + 1) + 2 * buckets_for(capacity);
    for (int64_t num = buckets_for(capacity);; num = (num + kFan - 1) / kFan) {
      ints += num;
      if (num <= kFan) return ints;
    }
  }

  __device__ bool holds(int64_t slot) const { return slot >= 0 && slot < capacity; }
  __device__ int64_t* key(int64_t row) const { return keys + row * num_words; }
  __device__ uint64_t hash_of(int64_t row) const { return hash_of_key(key(row), num_words); }

  // The upper bits, of the hash read as a signed number: that is the order of the groups.
  __device__ Bucket& bucket_of(uint64_t hash) const {
    return buckets[static_cast<int64_t>((hash ^ (uint64_t{1} << 63)) >> shift)];
  }

  // Where a row's key stands against another's: negative, 0, positive.
  __device__ int compare(uint64_t hash, int64_t row, int64_t other) const {
    const int64_t *mine = key(row), *its = key(other);
    const int64_t order = static_cast<int64_t>(hash), other_order = static_cast<int64_t>(hash_of(other));
    if (order != other_order) return order < other_order ? -1 : 1;
    for (int64_t word = 0; word < num_words; ++word) {
      if (mine[word] != its[word]) return mine[word] < its[word] ? -1 : 1;
    }
    return 0;
  }

  // Another group in a bucket, or one less.
  __device__ void count(const Bucket& bucket, int32_t more) const {
    atomicAdd(&head->groups, more);
    int32_t* level = counts;
    int64_t place = &bucket - buckets;
    for (int64_t num = num_buckets;; num = (num + kFan - 1) / kFan) {
      atomicAdd(level + place, more);
      if (num <= kFan) return;
      level += num;
      place /= kFan;
    }
  }

  // The head of the group of a rank below their number. All lanes of a warp call it, with one rank; each level is one
  // load and a scan.
  __device__ int64_t group_at(int64_t rank) const {
    constexpr unsigned kAll = 0xFFFFFFFFu;
    const auto lane = static_cast<int64_t>(threadIdx.x % kFan);
    int64_t place = 0;
    for (int depth = num_levels() - 1; depth >= 0; --depth) {
      int64_t num = num_buckets;
      const int32_t* level = counts;
      for (int below = 0; below < depth; ++below) {
        level += num;
        num = (num + kFan - 1) / kFan;
      }
      const int64_t mine = place * kFan + lane;
      int32_t upto = mine < num ? load_relaxed(level + mine) : 0;
      for (unsigned step = 1; step < kFan; step *= 2) {
        const int32_t before = __shfl_up_sync(kAll, upto, step);
        if (lane >= step) upto += before;
      }
      const unsigned passed = __ballot_sync(kAll, upto <= rank);
      int child = __popc(passed);
      if (child >= kFan) child = kFan - 1;  // only when the index is written meanwhile
      const int32_t before = __shfl_sync(kAll, upto, child > 0 ? child - 1 : 0);
      rank -= child > 0 ? before : 0;
      place = place * kFan + child;
    }
    int32_t group = place < num_buckets ? load_relaxed(&buckets[place].first) : 0;
    while (rank-- > 0 && group != 0) group = load_relaxed(&rows[group - 1].chain);
    return group - 1;
  }

 private:
  static constexpr int64_t kHeadInts = 16;
  static_assert(sizeof(IndexHead) <= kHeadInts * sizeof(int32_t));

  // About two rows a bucket, so that even groups of one row make short chains.
  static int64_t buckets_for(int64_t capacity) {
    int64_t num = kFan;
    while (2 * num < capacity) num *= 2;
    return num;
  }

  __device__ int num_levels() const {
    int levels = 1;
    for (int64_t num = num_buckets; num > kFan; num = (num + kFan - 1) / kFan) ++levels;
    return levels;
  }
};

}  // namespace torchrb
