// `balanced_subset` where there are more subsets than may be scored: two halves that meet, or a greedy choice. The
// CPU's way, with the sources, is core/balanced_large.h. Chosen positions come to lie in `space.chosen`, ascending.
#pragma once

#include "cuda/balanced_problem.cuh"

namespace torchrb::balanced {

// The sorted values cut in two, between two classes, so that the side with more subsets has few.
struct Cut {
  int64_t at, fewest, most;  // how many values may come from the first part
  double first_entries, second_entries;
};

__device__ inline Cut cut_in_two(const Problem& problem) {
  const SelectBlock& team = problem.team;
  const Space& space = problem.space;
  const int64_t classes = problem.num_classes, k = problem.bounds.k;
  if (team.rank() == 0) {
    space.left[0] = space.right[classes] = 1;
    for (int64_t i = 0; i < classes; ++i) space.left[i + 1] = space.left[i] * (space.sizes[i] + 1.0);
    for (int64_t i = classes; i > 0; --i) space.right[i - 1] = space.right[i] * (space.sizes[i - 1] + 1.0);
    int64_t best = 0, at = 0;
    for (int64_t i = 1; i <= classes; ++i) {
      if (max(space.left[i], space.right[i]) < max(space.left[best], space.right[best])) best = i;
    }
    for (int64_t i = 0; i < best; ++i) at += space.sizes[i];
    team.cells[1] = static_cast<int32_t>(best);
    team.cells[2] = static_cast<int32_t>(at);
  }
  team.sync();
  const int64_t first_classes = team.cells[1], at = team.cells[2];
  Cut cut{at, k > problem.n - at ? k - (problem.n - at) : 0, k < at ? k : at, 0, 0};
  count_multisets(problem, 0, first_classes, space.first_ways);
  count_multisets(problem, first_classes, classes, space.second_ways);
  for (int64_t i = cut.fewest; i <= cut.most; ++i) {
    cut.first_entries += space.first_ways[i];
    cut.second_entries += space.second_ways[k - i];
  }
  return cut;
}

struct BySum {
  __device__ bool operator()(const Entry& a, const Entry& b) const {
    return a.sum != b.sum ? a.sum < b.sum : a.squares != b.squares ? a.squares > b.squares : a.rank < b.rank;
  }
};

// A list of entries, ascending by sum; of equal sums only the first counts.
struct Half {
  const Entry* entries;
  int64_t num;
  __device__ bool counts(int64_t i) const { return i == 0 || entries[i].sum != entries[i - 1].sum; }
  __device__ int64_t first_from(double sum) const {
    return first_not(0, num, [&](int64_t i) { return entries[i].sum < sum; });
  }
  __device__ int64_t first_beyond(double sum) const {
    return first_not(0, num, [&](int64_t i) { return entries[i].sum <= sum; });
  }
};

// Appends the choice of a rank. One thread.
__device__ inline void append_choice(const Problem& problem, int64_t begin, int64_t n, int64_t size, int64_t rank,
                                     int64_t& num) {
  walk(
      problem, begin, n, size, 0, [] { return true; }, [](double, double, double) { return 0; },
      [&](double, double) {
        if (rank-- != 0) return;
        for (int64_t depth = 0; depth < size; ++depth) {
          problem.space.chosen[num++] = static_cast<int32_t>(begin + taken_at(problem, depth));
        }
      });
}

// The nearest subset, the widest of those; false if none is accepted. There must be room for all entries.
__device__ inline bool meet(const Problem& problem, const Cut& cut) {
  const SelectBlock& team = problem.team;
  const Space& space = problem.space;
  const Bounds& bounds = problem.bounds;
  const int64_t k = bounds.k, pairs = cut.most - cut.fewest + 1, rest = problem.n - cut.at;
  // Area 2 * pair holds the choices of the first part, 2 * pair + 1 those of the second.
  if (team.rank() == 0) {
    space.areas[0] = 0;
    for (int64_t pair = 0; pair < pairs; ++pair) {
      const int64_t size = cut.fewest + pair;
      space.areas[2 * pair + 1] = space.areas[2 * pair] + static_cast<int64_t>(space.first_ways[size]);
      space.areas[2 * pair + 2] = space.areas[2 * pair + 1] + static_cast<int64_t>(space.second_ways[k - size]);
    }
  }
  team.sync();
  for (int64_t area = team.rank(); area < 2 * pairs; area += team.size()) {
    const bool first = area % 2 == 0;
    const int64_t size = first ? cut.fewest + area / 2 : k - cut.fewest - area / 2;
    Entry* entries = space.entries + space.areas[area];
    int64_t rank = 0;
    walk(
        problem, first ? 0 : cut.at, first ? cut.at : rest, size, 0, [] { return true; },
        [](double, double, double) { return 0; },
        [&](double sum, double squares) {
          entries[rank] = {sum, squares, rank};
          ++rank;
        });
  }
  team.sync();
  const auto half = [&](int64_t area) {
    return Half{space.entries + space.areas[area], space.areas[area + 1] - space.areas[area]};
  };
  for (int64_t area = 0; area < 2 * pairs; ++area) {
    sort_rows(team, space.entries + space.areas[area], half(area).num, BySum{});
  }
  team.sync();

  // Which pair wins is settled by a code that grows in the order in which the CPU tries them: the neighbour below of
  // every choice is looked at before the neighbour above of any.
  double nearest = INFINITY;
  int64_t code = INT64_MAX, place = 0;
  for (int64_t pair = 0; pair < pairs; ++pair) {
    const Half first = half(2 * pair), second = half(2 * pair + 1);
    for (int64_t step = 0; step < 2; ++step) {
      for (int64_t i = team.rank(); i < first.num; i += team.size()) {
        if (!first.counts(i)) continue;
        int64_t other = second.first_from(bounds.target - first.entries[i].sum) - 1 + step;
        if (other < 0 || other >= second.num) continue;
        other = second.first_from(second.entries[other].sum);
        const double sum = first.entries[i].sum + second.entries[other].sum;
        if (bounds.inside(sum) && bounds.distance(sum) < nearest) {
          nearest = bounds.distance(sum);
          code = ((2 * pair + step) << 32) | i;
          place = other;
        }
      }
    }
  }
  int64_t winner = first_of_best(problem, nearest, code, place);
  nearest = problem.board.values[winner];
  if (nearest == INFINITY) return false;
  code = problem.board.codes[winner];
  int64_t best_pair = code >> 33, best_first = code & 0xFFFFFFFF, best_second = problem.board.places[winner];
  team.sync();

  const double begin = bounds.near_begin(nearest), end = bounds.near_end(nearest);
  double widest = -INFINITY;
  code = INT64_MAX;
  for (int64_t pair = 0; pair < pairs; ++pair) {
    const Half first = half(2 * pair), second = half(2 * pair + 1);
    for (int64_t i = team.rank(); i < first.num; i += team.size()) {
      if (!first.counts(i)) continue;
      const Entry& entry = first.entries[i];
      const int64_t last = second.first_beyond(end - entry.sum);
      for (int64_t other = second.first_from(begin - entry.sum); other < last; ++other) {
        const double squares = entry.squares + second.entries[other].squares;
        if (!second.counts(other) || !(squares > widest) || !bounds.inside(entry.sum + second.entries[other].sum)) {
          continue;
        }
        widest = squares;
        code = (pair << 32) | i;
        place = other;
      }
    }
  }
  winner = first_of_best(problem, -widest, code, place);
  if (problem.board.codes[winner] != INT64_MAX) {
    code = problem.board.codes[winner];
    best_pair = code >> 32;
    best_first = code & 0xFFFFFFFF;
    best_second = problem.board.places[winner];
  }
  if (team.rank() == 0) {
    const int64_t size = cut.fewest + best_pair;
    int64_t num = 0;
    append_choice(problem, 0, cut.at, size, half(2 * best_pair).entries[best_first].rank, num);
    append_choice(problem, cut.at, rest, k - size, half(2 * best_pair + 1).entries[best_second].rank, num);
  }
  team.sync();
  return true;
}

__device__ inline double sum_of(const Problem& problem, const int32_t* positions) {
  double sum = 0;
  for (int64_t i = 0; i < problem.bounds.k; ++i) sum += problem.space.values[positions[i]];
  return sum;
}

// Swaps single candidates of `space.chosen` for as long as the sum gets nearer to the target; returns the sum. The
// threads share the swaps of a round.
__device__ inline double improve(const Problem& problem) {
  const SelectBlock& team = problem.team;
  const Space& space = problem.space;
  const Bounds& bounds = problem.bounds;
  const int64_t n = problem.n, k = bounds.k, num_others = n - k;
  if (team.rank() == 0) problem.board.reals[0] = sum_of(problem, space.chosen);
  team.sync();
  double sum = problem.board.reals[0];
  for (int64_t round = 0; round < n && num_others > 0; ++round) {
    if (team.rank() == 0) {
      for (int64_t p = 0, i = 0, j = 0; p < n; ++p) {
        if (i < k && space.chosen[i] == p) {
          ++i;
        } else {
          space.others[j++] = static_cast<int32_t>(p);
        }
      }
    }
    team.sync();
    double nearest = INFINITY;
    int64_t swap = INT64_MAX;
    for (int64_t i = team.rank(); i < k * num_others; i += team.size()) {
      const double rest = sum - space.values[space.chosen[i / num_others]];
      const double distance = bounds.distance(rest + space.values[space.others[i % num_others]]);
      if (distance < nearest) {
        nearest = distance;
        swap = i;
      }
    }
    swap = problem.board.codes[first_of_best(problem, nearest, swap, 0)];
    team.sync();
    if (team.rank() == 0) {
      const bool any = swap != INT64_MAX;
      const int64_t out = any ? swap / num_others : 0;
      const int32_t into = any ? space.others[swap % num_others] : 0;
      // The chosen ones without `out`, and `into` where it belongs.
      int64_t num = 0;
      bool placed = false;
      for (int64_t i = 0; i < k; ++i) {
        if (i == out) continue;
        if (!placed && into < space.chosen[i]) {
          space.nearer[num++] = into;
          placed = true;
        }
        space.nearer[num++] = space.chosen[i];
      }
      if (!placed) space.nearer[num++] = into;
      const double swapped = sum_of(problem, space.nearer);
      const bool better = bounds.distance(swapped) < bounds.distance(sum);
      for (int64_t i = 0; better && i < k; ++i) space.chosen[i] = space.nearer[i];
      problem.board.reals[0] = swapped;
      team.cells[1] = better;
    }
    team.sync();
    const bool better = team.cells[1] != 0;
    const double swapped = problem.board.reals[0];
    team.sync();
    if (!better) break;
    sum = swapped;
  }
  return sum;
}

// A good subset, or false: from the lowest and the highest values, nearest start first, by swaps.
__device__ inline bool greedy(const Problem& problem) {
  const SelectBlock& team = problem.team;
  const Space& space = problem.space;
  const Bounds& bounds = problem.bounds;
  const int64_t n = problem.n, k = bounds.k;
  const auto start_at = [=](int64_t low, int64_t i) { return i < low ? i : n - k + i; };
  for (int64_t low = team.rank(); low <= k; low += team.size()) {
    double sum = 0;
    for (int64_t i = 0; i < k; ++i) sum += space.values[start_at(low, i)];
    space.distances[low] = bounds.distance(sum);
  }
  team.sync();
  double tried = -1;
  int64_t tried_low = -1;
  for (int64_t start = 0; start <= k; ++start) {
    // The next in order of distance, then of place.
    double nearest = INFINITY;
    int64_t next = INT64_MAX;
    for (int64_t low = team.rank(); low <= k; low += team.size()) {
      const double distance = space.distances[low];
      const bool later = distance > tried || (distance == tried && low > tried_low);
      if (later && (next == INT64_MAX || distance < nearest)) {
        nearest = distance;
        next = low;
      }
    }
    next = first_of_best(problem, nearest, next, 0);
    tried = problem.board.values[next];
    tried_low = problem.board.codes[next];
    team.sync();
    for (int64_t i = team.rank(); i < k; i += team.size()) {
      space.chosen[i] = static_cast<int32_t>(start_at(tried_low, i));
    }
    team.sync();
    if (bounds.inside(improve(problem))) return true;
  }
  return false;
}

}  // namespace torchrb::balanced
