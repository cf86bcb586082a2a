// The group index of a CPU: which rows share a key, in canonical order, kept up to date row by row.
//
// Groups are ordered by a 64-bit hash of their key, then by the key. Buckets by the upper bits of the hash each chain
// their groups in that order; a tree of counts above them finds the group of a rank. A group's rows are a doubly linked
// list. Moving a row costs one bucket and its (few) groups; finding a rank costs the depth of the tree. All of it lives
// in one int32 array beside the rows' keys, so it is a tensor to whoever owns it.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/key_words.h"

namespace torchrb {

class GroupIndex {
 public:
  static constexpr int32_t kNone = -1;     // no row, no group
  static constexpr int32_t kOutcast = -2;  // of a row: its key is no key

  // How many int32 an index of `capacity` rows takes.
  static int64_t size(int64_t capacity) {
    const int64_t buckets = num_buckets(capacity);
    return kHead + kRow * capacity + kGroup * capacity + kBucket * buckets + buckets / kBlock + 1;
  }

  // `keys`: [capacity, num_words], written by `put`; `links`: [size(capacity)], zero before the first use.
  GroupIndex(int64_t* keys, int64_t num_words, int32_t* links, int64_t capacity)
      : keys_(keys),
        num_words_(num_words),
        capacity_(capacity),
        num_buckets_(num_buckets(capacity)),
        head_(links),
        rows_(reinterpret_cast<Row*>(links + kHead)),
        groups_(reinterpret_cast<Group*>(links + kHead + kRow * capacity)),
        buckets_(reinterpret_cast<Bucket*>(links + kHead + (kRow + kGroup) * capacity)),
        tree_(links + kHead + (kRow + kGroup) * capacity + kBucket * num_buckets_) {
    int bits = 0;
    while ((int64_t{1} << bits) < num_buckets_) ++bits;
    shift_ = 64 - bits;
    if (head_[kReady] == 0) clear();
  }

  void clear() {
    for (int64_t i = 0; i < kHead; ++i) head_[i] = 0;
    head_[kReady] = 1;
    head_[kFree] = kNone;
    for (int64_t i = 0; i < capacity_; ++i) rows_[i].group = kNone;
    for (int64_t i = 0; i < num_buckets_; ++i) buckets_[i] = {kNone, 0};
    std::memset(tree_, 0, sizeof(int32_t) * static_cast<size_t>(num_buckets_ / kBlock + 1));
  }

  int64_t num_groups() const { return head_[kGroups]; }
  int64_t num_singletons() const { return head_[kSingletons]; }
  bool has(int64_t row) const { return rows_[row].group >= 0; }
  int64_t* key(int64_t row) const { return keys_ + row * num_words_; }

  static uint64_t hash(const int64_t* key, int64_t num_words) { return hash_of_key(key, num_words); }

  TORCHRB_ALWAYS_INLINE void prefetch_group(int32_t group) const { __builtin_prefetch(&groups_[group]); }

  TORCHRB_ALWAYS_INLINE void prefetch_links(int32_t row) const { __builtin_prefetch(&rows_[row]); }

  // Keys are a few words, most often one, for which a call of memcmp costs more than it compares.
  static bool same(const int64_t* key, const int64_t* other, int64_t num_words) {
    int64_t word = 0;
    while (word < num_words && key[word] == other[word]) ++word;
    return word == num_words;
  }

  // Hints at what `put` and `take` of this row will look at.
  TORCHRB_ALWAYS_INLINE void prefetch_row(int64_t row) const {
    __builtin_prefetch(&rows_[row]);
    __builtin_prefetch(key(row));
  }
  TORCHRB_ALWAYS_INLINE void prefetch_bucket(const int64_t* key) const {
    __builtin_prefetch(&buckets_[bucket_of(hash(key, num_words_))]);
  }

  // Puts a row under a key, wherever it was before.
  void put(int64_t row, const int64_t* new_key) {
    int64_t* const old_key = key(row);
    if (has(row) && same(new_key, old_key, num_words_)) return;
    take(row);
    for (int64_t word = 0; word < num_words_; ++word) old_key[word] = new_key[word];
    // Completions of one prompt mostly arrive together.
    const bool again = recent_ >= 0 && has(recent_) && same(new_key, key(recent_), num_words_);
    const int32_t group = again ? rows_[recent_].group : group_of(row);
    recent_ = row;
    Group& to = groups_[group];
    Row& link = rows_[row];
    link = {group, to.first, kNone};
    if (to.first != kNone) rows_[to.first].previous = static_cast<int32_t>(row);
    to.first = static_cast<int32_t>(row);
    head_[kSingletons] += to.size == 0 ? 1 : to.size == 1 ? -1 : 0;
    ++to.size;
  }

  // Takes a row out; one that is not in stays out.
  void take(int64_t row) {
    Row& link = rows_[row];
    if (link.group < 0) {
      head_[kOutcasts] -= link.group == kOutcast ? 1 : 0;
      link.group = kNone;
      return;
    }
    Group& from = groups_[link.group];
    if (from.size == 1) {
      remove_group(link.group, row);
    } else {
      (link.previous == kNone ? from.first : rows_[link.previous].next) = link.next;
      if (link.next != kNone) rows_[link.next].previous = link.previous;
    }
    --from.size;
    head_[kSingletons] += from.size == 0 ? -1 : from.size == 1 ? 1 : 0;
    link.group = kNone;
  }

  // Marks a row that was taken out: it is live, and has no key that could be compared.
  void cast_out(int64_t row) {
    rows_[row].group = kOutcast;
    ++head_[kOutcasts];
  }

  bool has_outcasts() const { return head_[kOutcasts] != 0; }

  // One of the rows cast out, -1 if there is none.
  int64_t outcast() const {
    if (head_[kOutcasts] == 0) return -1;
    int64_t row = 0;
    while (rows_[row].group != kOutcast) ++row;
    return row;
  }

  // --- ranks. A descent in steps lets a caller overlap those of many ranks: begin, step until `within` is set, finish.

  struct Descent {
    int64_t rank;    // what is left of it below the place reached
    int64_t place;   // blocks passed so far
    int64_t stride;  // of the next step; 0 when the block is found
  };

  Descent begin(int64_t rank) const {
    const int64_t blocks = num_buckets_ / kBlock;
    return {rank, 0, blocks};
  }

  // One level of the tree.
  void step(Descent& at) const {
    const int64_t next = at.place + at.stride;
    if (next <= num_buckets_ / kBlock && tree_[next] <= at.rank) {
      at.rank -= tree_[next];
      at.place = next;
    }
    at.stride /= 2;
    if (at.stride > 0) {
      __builtin_prefetch(&tree_[at.place + at.stride]);
    } else {
      __builtin_prefetch(&buckets_[at.place * kBlock]);
      __builtin_prefetch(&buckets_[at.place * kBlock + kBlock / 2]);
    }
  }

  // The group of a rank whose descent has ended.
  int32_t finish(Descent at) const {
    const Bucket* bucket = &buckets_[at.place * kBlock];
    while (bucket->size <= at.rank) at.rank -= (bucket++)->size;
    int32_t group = bucket->first;
    while (at.rank-- > 0) group = groups_[group].next;
    return group;
  }

  int64_t size_of(int32_t group) const { return groups_[group].size; }
  int32_t first_row(int32_t group) const { return groups_[group].first; }
  int32_t next_row(int32_t row) const { return rows_[row].next; }

 private:
  struct Row {
    int32_t group, next, previous;
  };
  struct Group {
    int32_t first, size, next;  // `next`: in its bucket, or in the list of free groups
  };
  struct Bucket {
    int32_t first, size;
  };

  enum : int64_t { kReady, kGroups, kSingletons, kFree, kAllocated, kOutcasts };
  static constexpr int64_t kHead = 16, kRow = 3, kGroup = 3, kBucket = 2;
  static constexpr int64_t kBlock = 16;  // buckets under one count of the tree: two cache lines

  // About two rows a bucket, so that even groups of one row make short chains.
  static int64_t num_buckets(int64_t capacity) {
    int64_t buckets = kBlock;
    while (2 * buckets < capacity) buckets *= 2;
    return buckets;
  }

  // The upper bits, of the hash read as a signed number: that is the order of the groups.
  int64_t bucket_of(uint64_t hash) const { return static_cast<int64_t>((hash ^ (uint64_t{1} << 63)) >> shift_); }

  // Where a key stands against another row's: negative, 0, positive.
  int compare(uint64_t hash_of_key, const int64_t* key, int32_t row) const {
    const int64_t* other = this->key(row);
    const int64_t mine = static_cast<int64_t>(hash_of_key), its = static_cast<int64_t>(hash(other, num_words_));
    if (mine != its) return mine < its ? -1 : 1;
    for (int64_t word = 0; word < num_words_; ++word) {
      if (key[word] != other[word]) return key[word] < other[word] ? -1 : 1;
    }
    return 0;
  }

  // The group of a row's key, made if there is none.
  int32_t group_of(int64_t row) {
    const uint64_t hashed = hash(key(row), num_words_);
    const int64_t place = bucket_of(hashed);
    int32_t* link = &buckets_[place].first;
    while (*link != kNone) {
      const int order = compare(hashed, key(row), groups_[*link].first);
      if (order == 0) return *link;
      if (order < 0) break;
      link = &groups_[*link].next;
    }
    int32_t made = head_[kFree];
    if (made == kNone) {
      made = head_[kAllocated]++;
    } else {
      head_[kFree] = groups_[made].next;
    }
    groups_[made] = {kNone, 0, *link};
    *link = made;
    count(place, 1);
    return made;
  }

  void remove_group(int32_t group, int64_t row) {
    const int64_t place = bucket_of(hash(key(row), num_words_));
    int32_t* link = &buckets_[place].first;
    while (*link != group) link = &groups_[*link].next;
    *link = groups_[group].next;
    groups_[group].next = head_[kFree];
    head_[kFree] = group;
    count(place, -1);
  }

  void count(int64_t bucket, int32_t more) {
    buckets_[bucket].size += more;
    head_[kGroups] += more;
    const int64_t blocks = num_buckets_ / kBlock;
    for (int64_t node = bucket / kBlock + 1; node <= blocks; node += node & -node) tree_[node] += more;
  }

  int64_t* keys_;
  int64_t num_words_, capacity_, num_buckets_;
  int32_t* head_;
  Row* rows_;
  Group* groups_;
  Bucket* buckets_;
  int32_t* tree_;
  int64_t recent_ = -1;  // the row that was put last
  int shift_;
};

}  // namespace torchrb
