// Brings the group index up to the journal: every slot written since is put under its present key, or taken out.
// One pass over the new entries of the journal, on one thread; a reader that fell behind the ring visits every row.
// Bound by the cache misses of a row (header and key, links, bucket), which are prefetched in two stages.
#include <torch/csrc/stable/library.h>

#include "cells.h"
#include "core/key_words.h"
#include "core/slot_lock.h"
#include "cpu/group_tensors.h"
#include "tables.h"

namespace torchrb {
namespace {

constexpr const char* kOp = "group_index_update_";

class Update {
 public:
  Update(GroupIndex& index, const Headers& headers, const KeyCells& cells)
      : index_(index), headers_(headers), cells_(cells), words_(static_cast<size_t>(cells.num_words)), ahead_(words_) {}

  // Visits the rows `slot_of(0..num-1)`.
  template <typename SlotOf>
  void run(int64_t num, const SlotOf& slot_of) {
    for (int64_t i = 0; i < num + kFar; ++i) {
      if (i < num) prefetch_row(slot_of(i));
      if (i >= kFar - kNear && i < num + kFar - kNear) prefetch_bucket(slot_of(i - (kFar - kNear)));
      if (i >= kFar) visit(slot_of(i - kFar));
    }
  }

 private:
  static constexpr int64_t kFar = 32, kNear = 12;  // rows ahead: of the row itself, of its bucket

  TORCHRB_ALWAYS_INLINE void prefetch_row(int64_t slot) const {
    if (!headers_.holds(slot)) return;
    __builtin_prefetch(headers_.word(slot));
    __builtin_prefetch(cells_.cell.in_table(slot));
    index_.prefetch_row(slot);
  }

  TORCHRB_ALWAYS_INLINE void prefetch_bucket(int64_t slot) {
    if (!headers_.holds(slot)) return;
    cells_.read(slot, words_.data());
    if (GroupIndex::same(words_.data(), ahead_.data(), cells_.num_words)) return;
    index_.prefetch_bucket(words_.data());
    std::swap(words_, ahead_);
  }

  void visit(int64_t slot) {
    if (!headers_.holds(slot)) return;
    bool live = false, numbers = false;
    for (Look seen;;) {
      seen = look(headers_, slot);
      live = word_live(seen.word);
      if (live) numbers = cells_.read(slot, words_.data());
      if (unmoved(headers_, slot, seen)) break;
    }
    if (live && numbers) {
      index_.put(slot, words_.data());
    } else {
      index_.take(slot);
      if (live) index_.cast_out(slot);
    }
  }

  GroupIndex& index_;
  const Headers& headers_;
  const KeyCells& cells_;
  std::vector<int64_t> words_, ahead_;  // the key at hand; the key whose bucket was called for last
};

void group_index_update_(Tensor keys, Tensor links, Tensor state_in, Tensor control_in, Tensor journal_in,
                         std::vector<Tensor> tables, std::vector<int64_t> key_leaf, Tensor key_template, bool rebuild) {
  const Headers headers = headers_of(tables, kOp);
  const KeyCells cells = key_cells_of(tables, key_leaf, key_template, keys, kOp);
  GroupIndex index = group_index_of(keys, links, headers.capacity, kOp);
  int64_t* state = int64_data(state_in, kIndexStateSize, kOp, "state");
  int64_t* control = int64_data(control_in, kControlSize, kOp, "control");
  int64_t* journal = int64_data(journal_in, kOp, "journal");
  const int64_t ring = journal_in.numel();
  const auto journal_head = [=] {
    return std::atomic_ref<int64_t>(control[kControlJournal]).load(std::memory_order_acquire);
  };
  int64_t head = journal_head();

  Update update(index, headers, cells);
  const int64_t position = state[kIndexPosition];
  const auto too_old = [&] { return journal_head() - position > ring; };
  int64_t num = 0;
  bool all = rebuild || position < 0 || too_old();
  if (!all) {
    num = head - position;
    const int64_t start = num > 0 ? position % ring : 0;
    update.run(num, [=](int64_t i) {
      const int64_t at = start + i < ring ? start + i : start + i - ring;
      return std::atomic_ref<int64_t>(journal[at]).load(std::memory_order_relaxed);
    });
    // A writer elsewhere may have come round, over entries that were still to be read. It moves the head last, so one
    // that holds the lock is waited for.
    std::atomic_ref<int64_t> lock(control[kControlLock]);
    for (Backoff backoff; lock.load(std::memory_order_acquire) != 0; backoff.wait()) {
    }
    all = too_old();
  }
  if (all) {
    head = journal_head();
    update.run(headers.capacity, [](int64_t i) { return i; });
    num += headers.capacity;
  }

  state[kIndexPosition] = head;
  state[kIndexGroups] = index.num_groups();
  state[kIndexSingletons] = index.num_singletons();
  state[kIndexOutcast] = index.outcast();
  state[kIndexVisited] += num;
}

STABLE_TORCH_LIBRARY_IMPL(torchrb, CPU, m) { m.impl("group_index_update_", TORCH_BOX(&group_index_update_)); }

}  // namespace
}  // namespace torchrb
