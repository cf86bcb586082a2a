// Which rows of one group are drawn, by strategy. The contract stands in torchrb/ops/schemas.py, `sample_groups`.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/control.h"
#include "core/score.h"
#include "core/variance.h"

namespace torchrb {

struct Candidate {
  int64_t score, stamp, slot;
  bool valid;  // its reward is a number (for variance, a finite one)
  bool used;   // the batch has drawn it before
};

// Newer first, then lower slot: how equal scores are told apart, whatever the direction.
inline bool precedes(const Candidate& a, const Candidate& b) {
  return a.stamp > b.stamp || (a.stamp == b.stamp && a.slot < b.slot);
}
inline bool descends(const Candidate& a, const Candidate& b) {
  return a.score > b.score || (a.score == b.score && precedes(a, b));
}
inline bool ascends(const Candidate& a, const Candidate& b) {
  return a.score < b.score || (a.score == b.score && precedes(a, b));
}

// Keeps its scratch between groups, so that a draw allocates next to nothing.
class RowSelector {
 public:
  RowSelector(int64_t strategy, const RewardCells& cells) : strategy_(strategy), cells_(cells) {}

  // min(k, rows) of the rows, in the order of the batch. `rows` are left in another order.
  const std::vector<Candidate>& select(std::vector<Candidate>& rows, int64_t k) {
    chosen_.clear();
    const auto wanted = static_cast<size_t>(k);
    auto begin = rows.begin();
    for (const bool valid : {true, false}) {
      for (const bool used : {false, true}) {
        if (chosen_.size() == wanted) break;
        const auto end = std::partition(begin, rows.end(),
                                        [=](const Candidate& row) { return row.valid == valid && row.used == used; });
        take_best(begin, end, std::min(wanted - chosen_.size(), static_cast<size_t>(end - begin)), valid);
        begin = end;
      }
    }
    const bool falls = strategy_ == kRandom || strategy_ == kReward;
    std::sort(chosen_.begin(), chosen_.end(), [falls](const Candidate& a, const Candidate& b) {
      if (a.valid != b.valid) return a.valid;
      return falls ? descends(a, b) : ascends(a, b);
    });
    return chosen_;
  }

 private:
  using Iterator = std::vector<Candidate>::iterator;

  // Adds the `num` rows of [begin, end) that the strategy prefers.
  void take_best(Iterator begin, Iterator end, size_t num, bool valid) {
    if (num < static_cast<size_t>(end - begin) && num > 0) {
      if (strategy_ == kVariance && valid) return take_widest(begin, end, num);
      std::nth_element(begin, begin + num, end, descends);
    }
    chosen_.insert(chosen_.end(), begin, begin + num);
  }

  void take_widest(Iterator begin, Iterator end, size_t num) {
    keep_first(low_, begin, end, num, ascends);
    keep_first(high_, begin, end, num, descends);
    offsets_.resize(4 * num + 2);
    double* const low = offsets_.data();
    double* const high = low + num;
    const double scale = cells_.scale(low_[0].score, high_[0].score);
    for (size_t i = 0; i < num; ++i) {
      low[i] = cells_.offset(low_[i].score, low_[0].score, scale);
      high[i] = cells_.offset(high_[i].score, low_[0].score, scale);
    }
    const auto k = static_cast<int64_t>(num);
    const int64_t num_low = widest_split(low, high, k, high + num, high + 2 * num + 1);
    const auto low_end = low_.begin() + num_low;
    chosen_.insert(chosen_.end(), low_.begin(), low_end);
    // Where scores are equal, the same row may stand at both ends.
    int64_t left = k - num_low;
    for (auto row = high_.begin(); left > 0; ++row) {
      if (std::binary_search(low_.begin(), low_end, *row, ascends)) continue;
      chosen_.push_back(*row);
      --left;
    }
  }

  template <typename Less>
  static void keep_first(std::vector<Candidate>& kept, Iterator begin, Iterator end, size_t num, const Less& less) {
    kept.assign(begin, end);
    std::nth_element(kept.begin(), kept.begin() + num, kept.end(), less);
    kept.resize(num);
    std::sort(kept.begin(), kept.end(), less);
  }

  int64_t strategy_;
  RewardCells cells_;
  std::vector<Candidate> chosen_, low_, high_;
  std::vector<double> offsets_;
};

}  // namespace torchrb
