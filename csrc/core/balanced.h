// Which candidates of an oversampled group to keep: the contract of `balanced_subset` stands in torchrb/ops/schemas.py.
//
// Candidates of equal value are alike, and the first ones are taken, so a subset is a multiset of the sorted values.
// Every sum runs over ascending values: it does not depend on how the search came to it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "core/balanced_rule.h"

namespace torchrb::balanced {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The bounds, with the values that they judge.
struct Rule : Bounds {
  std::vector<double> values;   // [n], ascending
  std::vector<double> squares;  // [n]

  Rule(std::vector<double> sorted, int64_t size, double low, double high, double relative)
      : Bounds(size, low, high, relative, sorted.front(), sorted.back()), values(std::move(sorted)) {
    squares.reserve(values.size());
    for (double value : values) {
      squares.push_back(square(value));
    }
  }

  int64_t size() const { return static_cast<int64_t>(values.size()); }
};

// Visits the choices of `size` of n ascending values in lexicographic order of their positions.
//
// `leaf(sum, squares, positions)` may narrow [low, high]: subtrees that cannot end in there are left out. The bounds on
// a subtree are rounded otherwise than its sums, which `slack` makes up for; a leaf has to look at its sum itself.
class Walker {
 public:
  double low = -kInfinity, high = kInfinity;
  double slack = 0;

  Walker(const double* values, const double* squares, int64_t n, int64_t size)
      : values_(values),
        squares_(squares),
        n_(n),
        size_(size),
        prefix_(n + 1),
        largest_(size + 1),
        levels_(size + 1),
        positions_(size) {
    double magnitude = 0;
    for (int64_t i = 0; i < n; ++i) {
      prefix_[i + 1] = prefix_[i] + values[i];
      magnitude += std::fabs(values[i]);
    }
    for (int64_t i = 0; i < size; ++i) {
      largest_[i + 1] = largest_[i] + values[n - 1 - i];
    }
    slack = 4 * static_cast<double>(n) * std::numeric_limits<double>::epsilon() * magnitude;
  }

  template <typename Leaf>
  void walk(Leaf&& leaf) {
    if (size_ == 0) {
      leaf(0.0, 0.0, positions_.data());
      return;
    }
    int64_t depth = 0;
    levels_[0] = {0, 0, 0.0, 0.0};
    while (depth >= 0) {
      Level& level = levels_[depth];
      const int64_t missing = size_ - depth, last = n_ - missing;
      int64_t p = level.next;
      // The largest sum below here grows with p, and so does the smallest.
      const double largest = largest_[missing - 1], least = low - slack;
      while (p <= last && level.sum + (values_[p] + largest) < least) {
        ++p;
      }
      while (p > level.first && p <= last && values_[p] == values_[p - 1]) {
        ++p;
      }
      if (p > last || level.sum + (prefix_[p + missing] - prefix_[p]) > high + slack) {
        --depth;
        continue;
      }
      level.next = p + 1;
      positions_[depth] = p;
      const double sum = level.sum + values_[p], squares = level.squares + squares_[p];
      if (missing == 1) {
        leaf(sum, squares, positions_.data());
      } else {
        levels_[++depth] = {p + 1, p + 1, sum, squares};
      }
    }
  }

 private:
  struct Level {
    int64_t first, next;  // the first position that may be taken here, and the next to try
    double sum, squares;  // of what is taken above
  };

  const double* values_;
  const double* squares_;
  int64_t n_, size_;
  std::vector<double> prefix_, largest_;
  std::vector<Level> levels_;
  std::vector<int64_t> positions_;
};

// Scores all subsets; true and the best one's candidates, ascending, if any is accepted. `order`: [n], position to
// candidate. `nearest`: the distance of some accepted subset, if one is known: what cannot be as near is left out.
inline bool exact(const Rule& rule, const std::vector<int64_t>& order, int64_t* index, double nearest = kInfinity) {
  Walker walker(rule.values.data(), rule.squares.data(), rule.size(), rule.k);

  walker.low = std::max(rule.lower, rule.target - nearest);
  walker.high = std::min(rule.upper, rule.target + nearest);
  walker.walk([&](double sum, double, const int64_t*) {
    if (rule.inside(sum) && rule.distance(sum) < nearest) {
      nearest = rule.distance(sum);
      walker.low = std::max(rule.lower, rule.target - nearest);
      walker.high = std::min(rule.upper, rule.target + nearest);
    }
  });
  if (nearest == kInfinity) {
    return false;
  }

  const double begin = rule.near_begin(nearest), end = rule.near_end(nearest);
  walker.low = std::min(begin, rule.target - nearest);
  walker.high = std::max(end, rule.target + nearest);
  std::vector<double> near_squares;
  std::vector<int64_t> near_positions;  // [num near, k]
  double widest = -kInfinity;
  walker.walk([&](double sum, double squares, const int64_t* positions) {
    if (rule.inside(sum) && (rule.distance(sum) <= nearest || (sum >= begin && sum <= end))) {
      near_squares.push_back(squares);
      near_positions.insert(near_positions.end(), positions, positions + rule.k);
      widest = std::max(widest, squares);
    }
  });

  const double wide = rule.wide(widest);
  std::vector<int64_t> candidates(rule.k), best;
  for (size_t i = 0; i < near_squares.size(); ++i) {
    if (near_squares[i] < wide) {
      continue;
    }
    const auto positions = near_positions.begin() + static_cast<std::ptrdiff_t>(i) * rule.k;
    std::transform(positions, positions + rule.k, candidates.begin(), [&](int64_t p) { return order[p]; });
    std::sort(candidates.begin(), candidates.end());
    if (best.empty() || candidates < best) {
      best = candidates;
    }
  }
  std::copy(best.begin(), best.end(), index);
  return true;
}

// How many values of each distinct kind there are, in order.
inline std::vector<int64_t> class_sizes(const double* values, int64_t n) {
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i < n; ++i) {
    if (i == 0 || values[i] != values[i - 1]) {
      sizes.push_back(0);
    }
    ++sizes.back();
  }
  return sizes;
}

// In how many ways 0, 1, ... k values can be chosen, candidates of equal value being alike.
inline std::vector<double> num_multisets(const std::vector<int64_t>& sizes, int64_t k) {
  std::vector<double> ways(k + 1, 0.0), longer;
  ways[0] = 1;
  for (int64_t size : sizes) {
    longer = ways;
    for (int64_t taken = 1; taken <= std::min(size, k); ++taken) {
      for (int64_t i = taken; i <= k; ++i) {
        longer[i] += ways[i - taken];
      }
    }
    ways.swap(longer);
  }
  return ways;
}

}  // namespace torchrb::balanced
