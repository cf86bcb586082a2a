// Brings priorities up to the journal and sets some: leaves are written row by row, then the nodes above them, level by
// level, each computed anew from its children. One thread; nodes that many rows share are computed once, and where most
// of a level is touched, all of it. Bound by the cache misses of a row and of the nodes above it, which are prefetched.
#include <torch/csrc/stable/library.h>

#include <vector>

#include "core/slot_lock.h"
#include "priorities.h"

namespace torchrb {
namespace {

constexpr const char* kOp = "update_priorities_";
constexpr int64_t kAhead = 16;

class Update {
 public:
  Update(const PriorityPlaces& places, double* tree, int64_t* seen, const Headers& headers, double alpha, double eps)
      : places_(places), tree_(tree), seen_(seen), headers_(headers), alpha_(alpha), eps_(eps) {}

  // Looks at the rows `slot_of(0..num-1)`: those that are gone, or another record than they were, lose their priority.
  template <typename SlotOf>
  void look(int64_t num, const SlotOf& slot_of) {
    for (int64_t i = 0; i < num; ++i) {
      if (i + kAhead < num) prefetch_row(slot_of(i + kAhead));
      const int64_t slot = slot_of(i);
      if (!headers_.holds(slot)) continue;
      const int64_t word = torchrb::look(headers_, slot).word;
      if (seen_[slot] == priority_mark(word)) continue;
      seen_[slot] = priority_mark(word);
      if (priority(slot) >= 0.0) {
        put(slot, -1.0);
        touched_.push_back(slot);
      }
      if (word_live(word)) new_.push_back(slot);
    }
  }

  // Gives new rows the greatest priority of those that still have one.
  void admit() {
    if (new_.empty()) return;
    mend();
    const double most = node_most(tree_ + places_.most[places_.levels - 1]);
    const double first = most < 0.0 ? 1.0 : most, weight = weight_of(first, alpha_, eps_);
    for (const int64_t slot : new_) {
      tree_[places_.most[0] + slot] = first;
      tree_[places_.sums[0] + slot] = weight;
    }
    touched_.swap(new_);
  }

  void set(const GivenPriorities& given) {
    touched_.reserve(touched_.size() + static_cast<size_t>(given.num));
    for (int64_t row = 0; row < given.num; ++row) {
      if (row + kAhead < given.num) prefetch_row(given.slots[row + kAhead], false);
      const int64_t slot = given.slots[row];
      if (priority(slot) < 0.0) continue;
      if (given.generations != nullptr && seen_[slot] - 1 != given.generations[row]) continue;
      put(slot, given.value(row));
      touched_.push_back(slot);
    }
  }

  // Computes every weight and node anew.
  void rebuild() {
    for (int64_t slot = 0; slot < places_.capacity; ++slot) put(slot, priority(slot));
    touched_.clear();
    for (int level = 1; level < places_.levels; ++level) mend_level(level);
  }

  // Computes the nodes above all rows that were touched.
  void mend() {
    for (int64_t& slot : touched_) slot /= PriorityPlaces::kFan;
    bool whole = false;
    for (int level = 1; level < places_.levels; ++level) {
      whole = whole || static_cast<int64_t>(touched_.size()) >= places_.entries[level] / 2;
      if (whole) {
        if (!touched_.empty()) mend_level(level);
      } else {
        mend_some(level);
      }
    }
    touched_.clear();
  }

  bool drawable() const { return node_sum(tree_ + places_.sums[places_.levels - 1]) > 0.0; }

 private:
  double priority(int64_t slot) const { return tree_[places_.most[0] + slot]; }

  void put(int64_t slot, double priority) {
    tree_[places_.most[0] + slot] = priority;
    tree_[places_.sums[0] + slot] = weight_of(priority, alpha_, eps_);
  }

  TORCHRB_ALWAYS_INLINE void prefetch_row(int64_t slot, bool header = true) const {
    if (!headers_.holds(slot)) return;
    if (header) __builtin_prefetch(headers_.word(slot));
    __builtin_prefetch(seen_ + slot);
    prefetch_children(0, slot / PriorityPlaces::kFan);
  }

  // What node `node` of the level above is computed from: two lines each.
  TORCHRB_ALWAYS_INLINE void prefetch_children(int level, int64_t node) const {
    const int64_t first = node * PriorityPlaces::kFan;
    for (const int64_t part : {places_.sums[level], places_.most[level], places_.least[level]}) {
      __builtin_prefetch(tree_ + part + first);
      __builtin_prefetch(tree_ + part + first + 8);
    }
  }

  TORCHRB_ALWAYS_INLINE void mend_node(int level, int64_t node) {
    const int64_t first = node * PriorityPlaces::kFan;
    tree_[places_.sums[level] + node] = node_sum(tree_ + places_.sums[level - 1] + first);
    tree_[places_.most[level] + node] = node_most(tree_ + places_.most[level - 1] + first);
    tree_[places_.least[level] + node] = node_least(tree_ + places_.least[level - 1] + first);
  }

  void mend_level(int level) {
    const int64_t num = places_.entries[level - 1] / PriorityPlaces::kFan;
    for (int64_t node = 0; node < num; ++node) mend_node(level, node);
  }

  // The nodes listed in `touched_`, which become those of the next level. Neighbours that are equal are one.
  void mend_some(int level) {
    size_t kept = 0;
    for (size_t i = 0; i < touched_.size(); ++i) {
      if (i + kAhead < touched_.size()) prefetch_children(level - 1, touched_[i + kAhead]);
      const int64_t node = touched_[i];
      if (i > 0 && node == last_) continue;
      last_ = node;
      mend_node(level, node);
      touched_[kept++] = node / PriorityPlaces::kFan;
    }
    touched_.resize(kept);
  }

  const PriorityPlaces& places_;
  double* tree_;
  int64_t* seen_;
  const Headers& headers_;
  double alpha_, eps_;
  int64_t last_ = -1;
  std::vector<int64_t> touched_, new_;
};

// The number of the first row that cannot be set, plus 1; 0 if there is none.
int64_t first_refused(const GivenPriorities& given, int64_t capacity) {
  for (int64_t row = 0; row < given.num; ++row) {
    if (!given.good(row, capacity)) return row + 1;
  }
  return 0;
}

void update_priorities_(Tensor tree, Tensor seen_in, Tensor state_in, Tensor control_in, Tensor journal_in,
                        std::vector<Tensor> tables, Tensor slots, Tensor generations, Tensor priorities, double alpha,
                        double eps, bool rebuild) {
  const Headers headers = headers_of(tables, kOp);
  const PriorityPlaces places = priority_places_of(tree, headers.capacity, kOp);
  int64_t* seen = int64_data(seen_in, headers.capacity, kOp, "seen");
  int64_t* state = int64_data(state_in, kPriorityStateSize, kOp, "state");
  int64_t* control = int64_data(control_in, kControlSize, kOp, "control");
  int64_t* journal = int64_data(journal_in, kOp, "journal");
  const GivenPriorities given = given_priorities_of(slots, generations, priorities, kOp);

  const int64_t ring = journal_in.numel(), position = state[kPriorityPosition];
  const int64_t refused = first_refused(given, headers.capacity);
  const int64_t head = std::atomic_ref<int64_t>(control[kControlJournal]).load(std::memory_order_acquire);
  Update update(places, static_cast<double*>(tree.data_ptr()), seen, headers, alpha, eps);
  state[kPriorityPosition] = -1;  // where memory runs out on the way, the next call makes up for it
  rebuild = rebuild || position < 0;
  int64_t visited = headers.capacity;
  if (rebuild || head - position > ring) {
    update.look(headers.capacity, [](int64_t i) { return i; });
  } else {
    visited = head - position;
    const int64_t start = visited > 0 ? position % ring : 0;
    update.look(visited, [=](int64_t i) {
      const int64_t at = start + i < ring ? start + i : start + i - ring;
      return std::atomic_ref<int64_t>(journal[at]).load(std::memory_order_relaxed);
    });
  }
  if (rebuild) update.rebuild();
  update.admit();
  if (refused == 0) update.set(given);
  update.mend();

  state[kPriorityPosition] = head;
  if (refused != 0) state[kPriorityRefused] = refused;
  state[kPriorityDrawable] = update.drawable() ? 1 : 0;
  state[kPriorityVisited] += visited;
  if (refused == 0 && given.num > 0) ++state[kPrioritySet];
}

STABLE_TORCH_LIBRARY_IMPL(torchrb, CPU, m) { m.impl("update_priorities_", TORCH_BOX(&update_priorities_)); }

}  // namespace
}  // namespace torchrb
