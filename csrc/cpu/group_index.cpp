// Buckets rows by their key: groups in the order of a fixed hash of the key, then of the key, rows ascending inside.
// A hash table numbers the groups as they appear, the groups (not the rows) are sorted, the rows are dealt out; one thread.
// Bound by the cache misses of the table where keys come in no order, else by one pass over the keys.
#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include "core/rng.h"
#include "tables.h"

namespace torchrb {
namespace {

constexpr const char* kOp = "group_index";

struct Group {
  int64_t hash;
  int64_t first_row;
  int64_t num_rows;
};

// Groups by key, with open addressing. Hashes of different keys may be equal, so keys themselves are compared.
class GroupTable {
 public:
  GroupTable(const int64_t* keys, int64_t num_words) : keys_(keys), num_words_(num_words), places_(kFewest, kNone) {}

  int64_t hash(int64_t row) const {
    uint64_t hash = 0;
    for (int64_t word = 0; word < num_words_; ++word) hash = mix64(hash ^ static_cast<uint64_t>(key(row)[word]));
    return static_cast<int64_t>(hash);
  }

  bool same_key(int64_t a, int64_t b) const { return std::equal(key(a), key(a) + num_words_, key(b)); }

  bool key_less(int64_t a, int64_t b) const {
    return std::lexicographical_compare(key(a), key(a) + num_words_, key(b), key(b) + num_words_);
  }

  void prefetch_place(int64_t hash) const { __builtin_prefetch(&places_[home(hash)]); }

  // The number of the row's group, a new one if its key is new.
  int64_t count_row(int64_t row, int64_t hash) {
    size_t place = home(hash);
    for (; places_[place] != kNone; place = (place + 1) & (places_.size() - 1)) {
      Group& group = groups_[places_[place]];
      if (group.hash == hash && same_key(group.first_row, row)) {
        ++group.num_rows;
        return places_[place];
      }
    }
    const auto number = static_cast<int64_t>(groups_.size());
    places_[place] = number;
    groups_.push_back({hash, row, 1});
    if (2 * groups_.size() > places_.size()) grow();
    return number;
  }

  void count_row_of(int64_t group) { ++groups_[group].num_rows; }

  const std::vector<Group>& groups() const { return groups_; }

 private:
  static constexpr int64_t kNone = -1;
  static constexpr size_t kFewest = 1024;

  const int64_t* key(int64_t row) const { return keys_ + row * num_words_; }
  size_t home(int64_t hash) const { return static_cast<size_t>(hash) & (places_.size() - 1); }

  void grow() {
    places_.assign(4 * places_.size(), kNone);
    for (size_t number = 0; number < groups_.size(); ++number) {
      size_t place = home(groups_[number].hash);
      while (places_[place] != kNone) place = (place + 1) & (places_.size() - 1);
      places_[place] = static_cast<int64_t>(number);
    }
  }

  const int64_t* keys_;
  int64_t num_words_;
  std::vector<int64_t> places_;
  std::vector<Group> groups_;
};

// The groups' numbers in canonical order. Hashes are spread evenly, so dealing groups into about as many buckets by the
// hash's upper bits leaves next to nothing to sort.
std::vector<int64_t> canonical_order(const GroupTable& table) {
  const std::vector<Group>& groups = table.groups();
  int bits = 1;
  while (bits < 20 && (size_t{1} << bits) < groups.size()) ++bits;
  const auto bucket = [bits](const Group& group) {
    return (static_cast<uint64_t>(group.hash) ^ (uint64_t{1} << 63)) >> (64 - bits);
  };
  std::vector<int64_t> ends((size_t{1} << bits) + 1, 0);
  for (const Group& group : groups) ++ends[bucket(group) + 1];
  for (size_t i = 1; i < ends.size(); ++i) ends[i] += ends[i - 1];
  std::vector<int64_t> order(groups.size());
  std::vector<int64_t> next(ends.begin(), ends.end() - 1);
  for (size_t number = 0; number < groups.size(); ++number) {
    order[next[bucket(groups[number])]++] = static_cast<int64_t>(number);
  }
  for (size_t i = 0; i + 1 < ends.size(); ++i) {
    if (ends[i + 1] - ends[i] < 2) continue;
    std::sort(order.begin() + ends[i], order.begin() + ends[i + 1], [&](int64_t a, int64_t b) {
      const Group &left = groups[a], &right = groups[b];
      if (left.hash != right.hash) return left.hash < right.hash;
      return table.key_less(left.first_row, right.first_row);
    });
  }
  return order;
}

std::tuple<Tensor, Tensor, Tensor> group_index(Tensor keys_in, Tensor slots_in) {
  check_tensor(keys_in, ScalarType::Long, 2, kOp, "keys");
  const int64_t* slots = int64_data(slots_in, kOp, "slots");
  const int64_t n = slots_in.numel();
  check(keys_in.size(0) == n, kOp, "keys must have one row for each of ", n, " slots, got ", keys_in.size(0), ".");
  const Tensor members_out = empty_int64({n}, slots_in), offsets_out = empty_int64({n + 1}, slots_in);
  const Tensor num_groups_out = empty_int64({1}, slots_in);
  auto* members = static_cast<int64_t*>(members_out.data_ptr());
  auto* offsets = static_cast<int64_t*>(offsets_out.data_ptr());

  GroupTable table(static_cast<const int64_t*>(keys_in.data_ptr()), keys_in.size(1));
  std::vector<int64_t> group_of(n);
  constexpr int64_t kAhead = 16;
  int64_t hashes[kAhead];
  for (int64_t row = 0; row < std::min(kAhead, n); ++row) hashes[row] = table.hash(row);
  for (int64_t row = 0; row < n; ++row) {
    const int64_t hash = hashes[row % kAhead];
    if (row + kAhead < n) {
      hashes[row % kAhead] = table.hash(row + kAhead);
      table.prefetch_place(hashes[row % kAhead]);
    }
    // Rows of a group are mostly written together.
    if (row > 0 && table.same_key(row - 1, row)) {
      group_of[row] = group_of[row - 1];
      table.count_row_of(group_of[row]);
    } else {
      group_of[row] = table.count_row(row, hash);
    }
  }

  const std::vector<int64_t> order = canonical_order(table);
  const auto num_groups = static_cast<int64_t>(order.size());
  std::vector<int64_t> next(num_groups);
  int64_t begin = 0;
  for (int64_t place = 0; place < num_groups; ++place) {
    offsets[place] = next[order[place]] = begin;
    begin += table.groups()[order[place]].num_rows;
  }
  std::fill(offsets + num_groups, offsets + n + 1, n);
  for (int64_t row = 0; row < n; ++row) members[next[group_of[row]]++] = slots[row];
  *static_cast<int64_t*>(num_groups_out.data_ptr()) = num_groups;
  return {members_out, offsets_out, num_groups_out};
}

STABLE_TORCH_LIBRARY_IMPL(torchrb, CPU, m) { m.impl("group_index", TORCH_BOX(&group_index)); }

}  // namespace
}  // namespace torchrb
