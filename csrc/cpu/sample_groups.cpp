// Draws groups by a keyed permutation of their ranks, and rows in each by a strategy.
// Every group is its own task: its rows are scored, the best are selected in linear time, and sorted; threads share
// groups. Bound by the cache misses of the drawn groups' rows, which are prefetched some groups ahead.
#include <torch/csrc/stable/library.h>

#include <atomic>
#include <tuple>
#include <unordered_map>

#include "cells.h"
#include "core/group_index.h"
#include "core/permutation.h"
#include "core/rng.h"
#include "cpu/group_tensors.h"
#include "cpu/parallel.h"
#include "cpu/select_rows.h"
#include "tables.h"

namespace torchrb {
namespace {

constexpr const char* kOp = "sample_groups";

// One group of the batch: its rank, and its rows, `members[begin..end)`.
struct Draw {
  int64_t rank, begin, end;
  int64_t size() const { return end - begin; }
};

struct Batch {
  int64_t seed, per_group, strategy;
  const int64_t* members;
  Headers headers;
  Leaf reward;
  RewardCells cells;
  const Draw* draws;
  int64_t* slots;                // [groups * per_group]
  int64_t* drawn;                // [groups, 3]
  std::atomic<bool>* is_inside;  // set to false when a member is no row of the tables

  bool by_reward() const { return strategy == kReward || strategy == kVariance; }

  TORCHRB_ALWAYS_INLINE void prefetch_row(int64_t slot) const {
    if (strategy == kRandom || !headers.holds(slot)) return;
    __builtin_prefetch(headers.word(slot));
    if (by_reward()) __builtin_prefetch(reward.in_table(slot));
  }

  TORCHRB_ALWAYS_INLINE void prefetch_group(const Draw& draw) const {
    for (int64_t i = draw.begin; i < std::min(draw.end, draw.begin + kRowsAhead); ++i) prefetch_row(members[i]);
  }

  // Random scores are a bijection of the slot: they never tie, and the row is not looked at.
  Candidate score(int64_t slot, uint64_t key) const {
    if (strategy == kRandom) return {static_cast<int64_t>(random64(key, slot)), 0, slot, true, false};
    const int64_t stamp = load_stamp(headers, slot);
    if (strategy == kRecency) return {stamp, stamp, slot, true, false};
    const int64_t score = cells.score(reward.in_table(slot));
    const bool valid = strategy == kReward ? cells.is_number(score) : cells.is_finite(score);
    return {valid ? score : kNanScore, stamp, slot, valid, false};
  }

  // `used`: ascending, the group's slots that the batch has drawn before; `occurrence`: how often it drew the group.
  void draw_rows(int64_t place, int64_t occurrence, const std::vector<int64_t>& used, RowSelector& selector,
                 std::vector<Candidate>& rows) const {
    const Draw& draw = draws[place];
    const uint64_t key = stream_key(seed, kFirstRowStream + occurrence);
    int64_t num_valid = 0;
    rows.clear();
    for (int64_t i = draw.begin; i < draw.end; ++i) {
      if (i + kRowsAhead < draw.end) prefetch_row(members[i + kRowsAhead]);
      const int64_t slot = members[i];
      if (!headers.holds(slot)) {
        is_inside->store(false, std::memory_order_relaxed);
        return;
      }
      rows.push_back(score(slot, key));
      rows.back().used = !used.empty() && std::binary_search(used.begin(), used.end(), slot);
      num_valid += rows.back().valid;
    }
    int64_t* const out = slots + place * per_group;
    const std::vector<Candidate>& chosen = selector.select(rows, per_group);
    for (size_t i = 0; i < chosen.size(); ++i) out[i] = chosen[i].slot;
    // A short group: its valid rows again, or all when none is.
    const uint64_t extra_key = stream_key(seed, kExtraRowsStream);
    const int64_t pool = num_valid > 0 ? num_valid : draw.size();
    for (int64_t i = draw.size(); i < per_group; ++i) {
      out[i] = out[below(random64(extra_key, place * per_group + i), pool)];
    }
    drawn[3 * place] = draw.rank;
    drawn[3 * place + 1] = draw.size();
    drawn[3 * place + 2] = num_valid;
  }

  // Groups [begin, end), each drawn for the first time.
  void draw_new_groups(int64_t begin, int64_t end) const {
    RowSelector selector(strategy, cells);
    std::vector<Candidate> rows;
    for (int64_t place = begin; place < std::min(end, begin + kGroupsAhead); ++place) prefetch_group(draws[place]);
    for (int64_t place = begin; place < end; ++place) {
      if (place + kGroupsAhead < end) prefetch_group(draws[place + kGroupsAhead]);
      draw_rows(place, 0, {}, selector, rows);
    }
  }

  // Groups [begin, end), drawn again because there are not enough: rows the batch has not used come first.
  void draw_groups_again(int64_t begin, int64_t end) const {
    RowSelector selector(strategy, cells);
    std::vector<Candidate> rows;
    struct Earlier {
      int64_t times = 0;
      std::vector<int64_t> used;  // ascending, never more than the group has
    };
    std::unordered_map<int64_t, Earlier> earlier;  // draws of each rank, so far
    for (int64_t place = 0; place < end; ++place) {
      auto& [times, used] = earlier[draws[place].rank];
      if (place >= begin) draw_rows(place, times, used, selector, rows);
      ++times;
      if (static_cast<int64_t>(used.size()) == draws[place].size()) continue;
      const int64_t* first = slots + place * per_group;
      used.insert(used.end(), first, first + std::min(per_group, draws[place].size()));
      std::sort(used.begin(), used.end());
      used.erase(std::unique(used.begin(), used.end()), used.end());
    }
  }

  static constexpr int64_t kRowsAhead = 16, kGroupsAhead = 8;
};

// The rows of all groups found, into `members`. A group's rows are a chain, so the chains are walked side by side:
// while one group's next link is on its way, the others take a step. The rows' own memory is called for as they turn
// up.
void walk(const std::vector<int32_t>& found, const GroupIndex& index, const Batch& batch, std::vector<Draw>& draws,
          std::vector<int64_t>& members) {
  struct Walk {
    int32_t row;
    int64_t at;
  };
  constexpr int64_t kMostAhead = 4096;  // rows whose first lines fit the cache beside all else
  std::vector<Walk> walks(found.size());
  int64_t num = 0;
  for (size_t place = 0; place < found.size(); ++place) {
    walks[place] = {index.first_row(found[place]), num};
    index.prefetch_links(walks[place].row);
    draws[place].begin = num;
    draws[place].end = num += index.size_of(found[place]);
  }
  members.resize(num);
  const bool ahead = num <= kMostAhead;
  for (size_t left = walks.size(); left > 0;) {
    size_t kept = 0;
    for (size_t i = 0; i < left; ++i) {
      const Walk walk = walks[i];
      if (ahead) batch.prefetch_row(walk.row);
      members[walk.at] = walk.row;
      const int32_t next = index.next_row(walk.row);
      if (next < 0) continue;
      index.prefetch_links(next);
      walks[kept++] = {next, walk.at + 1};
    }
    left = kept;
  }
}

// The ranks of the batch's groups; where their rows stand in `members`, which this fills.
std::vector<Draw> draw_ranks(int64_t groups, const GroupIndex& index, const Batch& batch,
                             std::vector<int64_t>& members) {
  const int64_t seed = batch.seed;
  std::vector<Draw> draws(groups);
  const int64_t available = index.num_groups(), distinct = std::min(groups, available);
  const Permutation permutation(seed, available);
  for (int64_t place = 0; place < distinct; ++place) draws[place].rank = permutation(place);
  const uint64_t extra_key = stream_key(seed, kExtraGroupsStream);
  for (int64_t i = 0; i < groups - distinct; ++i) draws[distinct + i].rank = below(random64(extra_key, i), available);

  // All descents go down together, level by level, so that their cache misses overlap.
  std::vector<GroupIndex::Descent> descents(groups);
  for (int64_t place = 0; place < groups; ++place) descents[place] = index.begin(draws[place].rank);
  while (!descents.empty() && descents[0].stride > 0) {
    for (GroupIndex::Descent& descent : descents) index.step(descent);
  }
  std::vector<int32_t> found(groups);
  for (int64_t place = 0; place < groups; ++place) {
    found[place] = index.finish(descents[place]);
    index.prefetch_group(found[place]);
  }
  walk(found, index, batch, draws, members);
  return draws;
}

std::tuple<Tensor, Tensor, Tensor> sample_groups(Tensor seed, Tensor keys, Tensor links, std::vector<Tensor> tables,
                                                 std::vector<int64_t> reward_leaf, Tensor reward_template,
                                                 int64_t groups, int64_t per_group, int64_t strategy) {
  check(groups >= 0 && per_group >= 0, kOp, "groups and per_group must not be negative, got ", groups, " and ",
        per_group, ".");
  constexpr int64_t kMostRows = int64_t{1} << 48;  // so that no size below overflows
  check(groups < kMostRows && (groups == 0 || per_group < kMostRows / groups), kOp, "a batch of ", groups,
        " groups of ", per_group, " rows is too large.");
  check(strategy >= 0 && strategy < kNumStrategies, kOp, "strategy must be below ", kNumStrategies, ", got ", strategy,
        ".");
  Batch batch{};
  batch.seed = *int64_data(seed, 1, kOp, "seed");
  batch.per_group = per_group;
  batch.strategy = strategy;
  batch.headers = headers_of(tables, kOp);
  if (batch.by_reward()) {
    const auto [leaf, cells] = reward_of(tables, reward_leaf, reward_template, kOp);
    batch.reward = leaf;
    batch.cells = cells;
  }
  const GroupIndex index = group_index_of(keys, links, batch.headers.capacity, kOp);
  const int64_t available = index.num_groups();
  check(available > 0, kOp, "there must be at least one group.");
  std::vector<int64_t> members;
  const std::vector<Draw> draws = draw_ranks(groups, index, batch, members);
  batch.members = members.data();
  const Tensor slots_out = empty_int64({groups * per_group}, keys), drawn_out = empty_int64({groups, 3}, keys);
  const Tensor flags_out = empty_int64({1}, keys);
  std::atomic<bool> is_inside{true};
  batch.draws = draws.data();
  batch.slots = static_cast<int64_t*>(slots_out.data_ptr());
  batch.drawn = static_cast<int64_t*>(drawn_out.data_ptr());
  batch.is_inside = &is_inside;

  const int64_t distinct = std::min(groups, available);
  int64_t rows = 0;
  for (int64_t place = 0; place < distinct; ++place) rows += draws[place].size();
  constexpr int64_t kRowCost = 64;  // a cache line; what a row is worth when work is split
  parallel_rows(distinct, kRowCost * rows / std::max<int64_t>(distinct, 1),
                [&](int64_t begin, int64_t end) { batch.draw_new_groups(begin, end); });
  if (groups > distinct && is_inside) batch.draw_groups_again(distinct, groups);
  check(is_inside, kOp, "members must be slots below the capacity ", batch.headers.capacity, ".");

  int64_t flags = index.has_outcasts() ? kNanKey : 0;
  if (groups > available) flags |= kFewGroups;
  for (int64_t place = 0; place < groups; ++place) {
    const int64_t size = draws[place].size(), num_valid = batch.drawn[3 * place + 2];
    if (size < per_group) flags |= kShortGroup;
    if (num_valid < std::min(per_group, size)) flags |= kNanDrawn;
  }
  *static_cast<int64_t*>(flags_out.data_ptr()) = flags;
  return {slots_out, drawn_out, flags_out};
}

STABLE_TORCH_LIBRARY_IMPL(torchrb, CPU, m) { m.impl("sample_groups", TORCH_BOX(&sample_groups)); }

}  // namespace
}  // namespace torchrb
