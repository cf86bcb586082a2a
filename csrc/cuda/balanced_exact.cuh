// `balanced_subset` where all subsets may be scored: a block's threads share the subtrees below the first few values.
#pragma once

#include "cuda/balanced_problem.cuh"

namespace torchrb::balanced {

// Distances and sums of squares are not negative, so that their bits order like them.
__device__ inline double real_of(unsigned long long bits) { return __longlong_as_double(static_cast<long long>(bits)); }
__device__ inline unsigned long long bits_of(double value) {
  return static_cast<unsigned long long>(__double_as_longlong(value));
}

// Whether a subset beats another: the candidate that stands first where they differ is in it.
__device__ inline bool comes_first(const unsigned long long* mine, const unsigned long long* other, int64_t words,
                                   int64_t step) {
  for (int64_t word = 0; word < words; ++word) {
    const unsigned long long a = mine[word * step], b = other[word * step];
    if (a != b) return (a & ((a ^ b) & (~(a ^ b) + 1))) != 0;
  }
  return false;
}

// The best subset's candidates, ascending, into `index`; false if none is accepted.
__device__ inline bool exact(const Problem& problem, int64_t num_candidates, int64_t* index) {
  constexpr int64_t kUnitDepth = 3;
  const SelectBlock& team = problem.team;
  const Board& board = problem.board;
  const Bounds& bounds = problem.bounds;
  const int64_t k = bounds.k, unit_depth = k < kUnitDepth ? k : kUnitDepth;
  if (team.rank() == 0) {
    board.bits[0] = bits_of(INFINITY);
    board.bits[1] = 0;
    team.cells[1] = 0;
  }
  team.sync();

  double low = bounds.lower, high = bounds.upper;
  int64_t unit = 0;
  const auto mine = [&] { return unit++ % team.size() == team.rank(); };
  const auto fits = [&](double sum, double least, double most) {
    return sum + least > high + problem.slack ? 1 : sum + most < low - problem.slack ? -1 : 0;
  };
  const auto narrow = [&](double nearest) {
    low = max(bounds.lower, bounds.target - nearest);
    high = min(bounds.upper, bounds.target + nearest);
  };
  walk(
      problem, 0, problem.n, k, unit_depth,
      [&] {
        if (!mine()) return false;
        const double nearest = real_of(atomicMin(&board.bits[0], bits_of(INFINITY)));
        if (nearest < INFINITY) narrow(nearest);
        return true;
      },
      fits,
      [&](double sum, double) {
        if (!bounds.inside(sum)) return;
        const double distance = bounds.distance(sum);
        const double before = real_of(atomicMin(&board.bits[0], bits_of(distance)));
        narrow(distance < before ? distance : before);
      });
  team.sync();
  const double nearest = real_of(board.bits[0]);
  if (nearest == INFINITY) return false;

  const double begin = bounds.near_begin(nearest), end = bounds.near_end(nearest);
  low = min(begin, bounds.target - nearest);
  high = max(end, bounds.target + nearest);
  const auto near = [&](double sum) {
    return bounds.inside(sum) && (bounds.distance(sum) <= nearest || (sum >= begin && sum <= end));
  };
  unit = 0;
  walk(problem, 0, problem.n, k, unit_depth, mine, fits, [&](double sum, double squares) {
    if (near(sum)) atomicMax(&board.bits[1], bits_of(squares));
  });
  team.sync();

  // Of the widest the lexicographically first, as sets of candidates.
  const double wide = bounds.wide(real_of(board.bits[1]));
  const int64_t words = (num_candidates + 63) / 64, step = team.size();
  unsigned long long* best = problem.space.masks + team.rank();
  unsigned long long* current = best + words * step;
  bool any = false;
  unit = 0;
  walk(problem, 0, problem.n, k, unit_depth, mine, fits, [&](double sum, double squares) {
    if (!near(sum) || squares < wide) return;
    for (int64_t word = 0; word < words; ++word) current[word * step] = 0;
    for (int64_t depth = 0; depth < k; ++depth) {
      const int64_t candidate = problem.space.order[taken_at(problem, depth)];
      current[candidate / 64 * step] |= 1ull << (candidate % 64);
    }
    if (any && !comes_first(current, best, words, step)) return;
    any = true;
    for (int64_t word = 0; word < words; ++word) best[word * step] = current[word * step];
  });
  board.codes[team.rank()] = any;
  team.sync();
  if (team.rank() == 0) {
    const unsigned long long* first = nullptr;
    for (int64_t i = 0; i < team.size(); ++i) {
      const unsigned long long* its = problem.space.masks + i;
      if (board.codes[i] != 0 && (first == nullptr || comes_first(its, first, words, step))) first = its;
    }
    for (int64_t candidate = 0, place = 0; candidate < num_candidates; ++candidate) {
      if ((first[candidate / 64 * step] >> (candidate % 64) & 1) != 0) index[place++] = candidate;
    }
  }
  team.sync();
  return true;
}

}  // namespace torchrb::balanced
