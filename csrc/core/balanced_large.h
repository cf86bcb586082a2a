// `balanced_subset` where there are more subsets than may be scored: two halves that meet, or a greedy choice.
#pragma once

#include "core/balanced.h"

namespace torchrb::balanced {

// The sorted values cut in two, between two classes, so that the side with more subsets has few.
struct Cut {
  int64_t at = 0;
  int64_t fewest = 0, most = 0;                  // how many values may come from the first part
  double first_entries = 0, second_entries = 0;  // choices of such sizes

  Cut(const Rule& rule, const std::vector<int64_t>& sizes) {
    const size_t classes = sizes.size();
    std::vector<double> left(classes + 1, 1.0), right(classes + 1, 1.0);
    for (size_t i = 0; i < classes; ++i) {
      left[i + 1] = left[i] * (static_cast<double>(sizes[i]) + 1);
      right[classes - 1 - i] = right[classes - i] * (static_cast<double>(sizes[classes - 1 - i]) + 1);
    }
    size_t first_classes = 0;
    for (size_t i = 1; i <= classes; ++i) {
      if (std::max(left[i], right[i]) < std::max(left[first_classes], right[first_classes])) first_classes = i;
    }
    const auto middle = sizes.begin() + static_cast<std::ptrdiff_t>(first_classes);
    at = std::accumulate(sizes.begin(), middle, int64_t{0});
    fewest = std::max<int64_t>(0, rule.k - (rule.size() - at));
    most = std::min(rule.k, at);
    const auto first = num_multisets({sizes.begin(), middle}, rule.k);
    const auto second = num_multisets({middle, sizes.end()}, rule.k);
    for (int64_t i = fewest; i <= most; ++i) {
      first_entries += first[i];
      second_entries += second[rule.k - i];
    }
  }
};

// The choices of one size from a part of the values: ascending sums, and for each the choice of greatest squares.
class Half {
 public:
  struct Entry {
    double sum, squares;
    int64_t rank;  // its place among all choices of this size
  };
  std::vector<Entry> entries;

  Half(const double* values, const double* squares, int64_t n, int64_t size)
      : values_(values), squares_(squares), n_(n), size_(size) {
    Walker(values, squares, n, size).walk([&](double sum, double squared, const int64_t*) {
      entries.push_back({sum, squared, static_cast<int64_t>(entries.size())});
    });
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
      return a.sum != b.sum ? a.sum < b.sum : a.squares != b.squares ? a.squares > b.squares : a.rank < b.rank;
    });
    const auto same = [](const Entry& a, const Entry& b) { return a.sum == b.sum; };
    entries.erase(std::unique(entries.begin(), entries.end(), same), entries.end());
  }

  // Appends the positions of the choice of this rank, each moved by `offset`.
  void append(int64_t rank, int64_t offset, std::vector<int64_t>& chosen) const {
    Walker(values_, squares_, n_, size_).walk([&](double, double, const int64_t* positions) {
      if (rank-- == 0) {
        std::transform(positions, positions + size_, std::back_inserter(chosen), [&](int64_t p) { return offset + p; });
      }
    });
  }

 private:
  const double* values_;
  const double* squares_;
  int64_t n_, size_;
};

// Positions of the nearest subset, the widest of those; empty if none is accepted. Each choice of one half looks up
// what fits in the other (Horowitz, Sahni: Computing Partitions with Applications to the Knapsack Problem, 1974).
inline std::vector<int64_t> meet(const Rule& rule, const Cut& cut) {
  struct Pair {
    Half first, second;
  };
  std::vector<Pair> pairs;
  for (int64_t i = cut.fewest; i <= cut.most; ++i) {
    pairs.push_back(
        {Half(rule.values.data(), rule.squares.data(), cut.at, i),
         Half(rule.values.data() + cut.at, rule.squares.data() + cut.at, rule.size() - cut.at, rule.k - i)});
  }
  const auto below = [](const Half::Entry& entry, double sum) { return entry.sum < sum; };
  const auto above = [](double sum, const Half::Entry& entry) { return sum < entry.sum; };

  double nearest = kInfinity;
  const Pair* best = nullptr;
  int64_t first_rank = 0, second_rank = 0;
  for (const Pair& pair : pairs) {
    const auto& second = pair.second.entries;
    // The neighbour below of every choice is looked at before the neighbour above of any.
    for (int64_t step : {-1, 0}) {
      for (const auto& entry : pair.first.entries) {
        const int64_t after =
            std::lower_bound(second.begin(), second.end(), rule.target - entry.sum, below) - second.begin();
        const int64_t place = after + step;
        if (place < 0 || place >= static_cast<int64_t>(second.size())) {
          continue;
        }
        const double sum = entry.sum + second[place].sum;
        if (rule.inside(sum) && rule.distance(sum) < nearest) {
          nearest = rule.distance(sum);
          best = &pair, first_rank = entry.rank, second_rank = second[place].rank;
        }
      }
    }
  }
  if (best == nullptr) {
    return {};
  }

  const double begin = rule.near_begin(nearest), end = rule.near_end(nearest);
  double widest = -kInfinity;
  for (const Pair& pair : pairs) {
    const auto& second = pair.second.entries;
    for (const auto& entry : pair.first.entries) {
      const auto last = std::upper_bound(second.begin(), second.end(), end - entry.sum, above);
      for (auto it = std::lower_bound(second.begin(), second.end(), begin - entry.sum, below); it < last; ++it) {
        const double squares = entry.squares + it->squares;
        if (squares > widest && rule.inside(entry.sum + it->sum)) {
          widest = squares;
          best = &pair, first_rank = entry.rank, second_rank = it->rank;
        }
      }
    }
  }
  std::vector<int64_t> chosen;
  best->first.append(first_rank, 0, chosen);
  best->second.append(second_rank, cut.at, chosen);
  return chosen;
}

inline double sum_of(const Rule& rule, const std::vector<int64_t>& positions) {
  double sum = 0;
  for (int64_t p : positions) {
    sum += rule.values[p];
  }
  return sum;
}

// Swaps single candidates for as long as the sum gets nearer to the target.
inline void improve(const Rule& rule, std::vector<int64_t>& chosen) {
  const int64_t n = rule.size();
  double sum = sum_of(rule, chosen);
  std::vector<int64_t> others, nearer;
  for (int64_t round = 0; round < n; ++round) {
    others.clear();
    for (int64_t p = 0, i = 0; p < n; ++p) {
      if (i < rule.k && chosen[i] == p) {
        ++i;
      } else {
        others.push_back(p);
      }
    }
    double nearest = kInfinity;
    int64_t out = 0, into = 0;
    for (int64_t i = 0; i < rule.k; ++i) {
      const double rest = sum - rule.values[chosen[i]];
      for (int64_t p : others) {
        const double distance = rule.distance(rest + rule.values[p]);
        if (distance < nearest) {
          nearest = distance, out = i, into = p;
        }
      }
    }
    nearer = chosen;
    nearer[out] = into;
    std::sort(nearer.begin(), nearer.end());
    const double swapped = sum_of(rule, nearer);
    if (others.empty() || !(rule.distance(swapped) < rule.distance(sum))) {
      return;
    }
    chosen.swap(nearer);
    sum = swapped;
  }
}

// Positions of a good subset, or empty: from the lowest and the highest values, nearest start first, by swaps.
inline std::vector<int64_t> greedy(const Rule& rule) {
  const int64_t n = rule.size();
  std::vector<std::vector<int64_t>> starts(rule.k + 1, std::vector<int64_t>(rule.k));
  std::vector<double> distances;
  for (int64_t low = 0; low <= rule.k; ++low) {
    for (int64_t i = 0; i < rule.k; ++i) {
      starts[low][i] = i < low ? i : n - rule.k + i;
    }
    distances.push_back(rule.distance(sum_of(rule, starts[low])));
  }
  std::vector<int64_t> by_distance(rule.k + 1);
  std::iota(by_distance.begin(), by_distance.end(), 0);
  std::stable_sort(by_distance.begin(), by_distance.end(),
                   [&](int64_t a, int64_t b) { return distances[a] < distances[b]; });
  for (int64_t start : by_distance) {
    improve(rule, starts[start]);
    if (rule.inside(sum_of(rule, starts[start]))) {
      return starts[start];
    }
  }
  return {};
}

// The op for one group: true and the chosen candidates, ascending, if there are any. returns: [n]; index: [k].
inline bool choose(const double* returns, int64_t n, int64_t k, double low, double high, int64_t max_combinations,
                   double rounding, int64_t* index) {
  std::vector<int64_t> order;
  double magnitude = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (std::isfinite(returns[i])) {
      order.push_back(i);
    }
  }
  if (static_cast<int64_t>(order.size()) < k) {
    return false;
  }
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return returns[a] < returns[b]; });
  std::vector<double> sorted;
  for (int64_t candidate : order) {
    sorted.push_back(returns[candidate]);
    magnitude += std::fabs(returns[candidate]);
  }
  if (!std::isfinite(magnitude)) {
    return false;  // sums beyond float64 cannot be compared
  }

  const Rule rule(std::move(sorted), k, low, high, rounding);
  const auto sizes = class_sizes(rule.values.data(), rule.size());
  const double budget = static_cast<double>(max_combinations);
  if (num_multisets(sizes, k)[k] <= budget) {
    const std::vector<int64_t> start = greedy(rule);
    return exact(rule, order, index, start.empty() ? kInfinity : rule.distance(sum_of(rule, start)));
  }
  const Cut cut(rule, sizes);
  std::vector<int64_t> chosen;
  if (cut.first_entries + cut.second_entries <= budget) {
    chosen = meet(rule, cut);
  } else {
    chosen = greedy(rule);
    if (chosen.empty() && std::max(cut.first_entries, cut.second_entries) <= kHalfLimit) {
      chosen = meet(rule, cut);
    }
  }
  std::transform(chosen.begin(), chosen.end(), index, [&](int64_t p) { return order[p]; });
  std::sort(index, index + chosen.size());
  return !chosen.empty();
}

}  // namespace torchrb::balanced
