// One group of `balanced_subset` as a block sees it: its values sorted, the bounds, and where the search keeps its
// state. The contract stands in torchrb/ops/schemas.py; the CPU's way is core/balanced.h.
#pragma once

#include "core/balanced_rule.h"
#include "cuda/select_rows.cuh"

namespace torchrb::balanced {

// The choices of one size from a part of the values, for halves that meet.
struct Entry {
  double sum, squares;
  int64_t rank;  // its place among all choices of this size
};

// Where a thread's walk stands, level by level. Those of a block lie side by side.
struct Level {
  double sum, squares;  // of what is taken above
  int32_t first, next;  // the first position that may be taken here, and the next to try
};

// What the threads of a block share.
struct Board {
  double* values;            // [threads]: what each thread brings to `first_of_best`
  int64_t* codes;            // [threads]
  int64_t* places;           // [threads]
  unsigned long long* bits;  // [2]: the nearest distance, the widest sum of squares
  double* reals;             // [2]
  int32_t* cells;            // [4]
};

// The scratch of one block, for groups of n candidates of which k are chosen.
struct Space {
  double *values, *squares, *prefix;               // [n + 1]
  double *largest, *ways, *more_ways, *distances;  // [k + 1]
  double *left, *right;                            // [n + 1]
  double *first_ways, *second_ways;                // [k + 1]
  int64_t* areas;                                  // [2 * k + 3]: where the entries of each size begin
  int32_t *order, *sizes, *others;                 // [n]
  int32_t *chosen, *nearer;                        // [k]
  Level* levels;                                   // [k, threads]
  unsigned long long* masks;                       // [2, mask_words, threads]
  Entry* entries;                                  // [max_entries]

  // With `memory` null: how many bytes that is.
  template <typename T>
  TORCHRB_HOST_DEVICE static void take(unsigned char* memory, int64_t& used, T*& piece, int64_t num) {
    piece = reinterpret_cast<T*>(memory + used);
    used += (num * static_cast<int64_t>(sizeof(T)) + 15) / 16 * 16;
  }
  TORCHRB_HOST_DEVICE int64_t carve(unsigned char* memory, int64_t n, int64_t k, int64_t threads, int64_t max_entries) {
    int64_t used = 0;
    for (double** piece : {&values, &squares, &prefix, &left, &right}) take(memory, used, *piece, n + 1);
    for (double** piece : {&largest, &ways, &more_ways, &distances, &first_ways, &second_ways}) {
      take(memory, used, *piece, k + 1);
    }
    take(memory, used, areas, 2 * k + 3);
    for (int32_t** piece : {&order, &sizes, &others}) take(memory, used, *piece, n);
    for (int32_t** piece : {&chosen, &nearer}) take(memory, used, *piece, k);
    take(memory, used, levels, k * threads);
    take(memory, used, masks, 2 * ((n + 63) / 64) * threads);
    take(memory, used, entries, max_entries);
    return used;
  }
};

struct Problem {
  const SelectBlock team;
  const Board board;
  const Space space;
  Bounds bounds;
  int64_t n = 0;  // finite candidates
  int64_t num_classes = 0;
  double slack = 0;

  __device__ Level& level(int64_t depth) const { return space.levels[depth * team.size() + team.rank()]; }
};

// Of what all threads bring, the smallest value, then the smallest code: whose it is. All threads call it.
__device__ inline int64_t first_of_best(const Problem& problem, double value, int64_t code, int64_t place) {
  const Board& board = problem.board;
  const SelectBlock& team = problem.team;
  board.values[team.rank()] = value;
  board.codes[team.rank()] = code;
  board.places[team.rank()] = place;
  team.sync();
  if (team.rank() == 0) {
    int32_t best = 0;
    for (int32_t i = 1; i < team.size(); ++i) {
      const bool same = board.values[i] == board.values[best];
      if (board.values[i] < board.values[best] || (same && board.codes[i] < board.codes[best])) best = i;
    }
    team.cells[0] = best;
  }
  team.sync();
  const int64_t best = team.cells[0];
  team.sync();
  return best;
}

struct ByValue {
  const double* returns;
  __device__ bool operator()(int32_t a, int32_t b) const {
    return returns[a] < returns[b] || (returns[a] == returns[b] && a < b);
  }
};

// Sorts the finite returns and prepares the search; false where there can be no subset.
__device__ inline bool set_up(Problem& problem, const double* returns, int64_t n, int64_t k, double low, double high,
                              double rounding) {
  const SelectBlock& team = problem.team;
  const Space& space = problem.space;
  if (team.rank() == 0) {
    int32_t finite = 0;
    for (int64_t i = 0; i < n; ++i) {
      if (returns[i] - returns[i] == 0) space.order[finite++] = static_cast<int32_t>(i);
    }
    team.cells[0] = finite;
  }
  team.sync();
  problem.n = team.cells[0];
  team.sync();
  if (problem.n < k) return false;
  sort_rows(team, space.order, problem.n, ByValue{returns});
  for (int64_t i = team.rank(); i < problem.n; i += team.size()) space.values[i] = returns[space.order[i]];
  team.sync();
  problem.bounds = Bounds(k, low, high, rounding, space.values[0], space.values[problem.n - 1]);
  if (team.rank() == 0) {
    double magnitude = 0;
    int32_t classes = 0;
    space.prefix[0] = 0;
    for (int64_t i = 0; i < problem.n; ++i) {
      const double value = space.values[i];
      space.squares[i] = problem.bounds.square(value);
      space.prefix[i + 1] = space.prefix[i] + value;
      magnitude += std::fabs(value);
      if (i == 0 || value != space.values[i - 1]) space.sizes[classes++] = 0;
      ++space.sizes[classes - 1];
    }
    space.largest[0] = 0;
    for (int64_t i = 0; i < k; ++i) space.largest[i + 1] = space.largest[i] + space.values[problem.n - 1 - i];
    team.cells[0] = classes;
    problem.board.reals[0] = magnitude;
  }
  team.sync();
  problem.num_classes = team.cells[0];
  const double magnitude = problem.board.reals[0];
  team.sync();
  problem.slack = 4 * static_cast<double>(problem.n) * 0x1p-52 * magnitude;
  return magnitude - magnitude == 0;  // sums beyond float64 cannot be compared
}

// In how many ways 0, 1, ... k values of the classes [begin, end) can be chosen, into `ways`: [k + 1].
__device__ inline void count_multisets(const Problem& problem, int64_t begin, int64_t end, double* ways) {
  const SelectBlock& team = problem.team;
  const int64_t k = problem.bounds.k;
  double *now = problem.space.ways, *next = problem.space.more_ways;
  for (int64_t i = team.rank(); i <= k; i += team.size()) now[i] = i == 0 ? 1 : 0;
  team.sync();
  for (int64_t c = begin; c < end; ++c) {
    for (int64_t i = team.rank(); i <= k; i += team.size()) {
      double longer = now[i];
      for (int64_t taken = 1; taken <= problem.space.sizes[c] && taken <= i; ++taken) longer += now[i - taken];
      next[i] = longer;
    }
    team.sync();
    double* const held = now;
    now = next;
    next = held;
  }
  for (int64_t i = team.rank(); i <= k; i += team.size()) ways[i] = now[i];
  team.sync();
}

// Visits the choices of `size` of the values [begin, begin + n) in lexicographic order of their positions, equal values
// being alike. `mine()` is asked at every node of `unit_depth` values; `fits(sum of what is taken, of the least that
// may follow, and of the most)` below such nodes.
template <typename Mine, typename Fits, typename Leaf>
__device__ inline void walk(const Problem& problem, int64_t begin, int64_t n, int64_t size, int64_t unit_depth,
                            const Mine& mine, const Fits& fits, const Leaf& leaf) {
  const Space& space = problem.space;
  const double *values = space.values + begin, *squares = space.squares + begin, *prefix = space.prefix + begin;
  if (size == 0) {
    leaf(0.0, 0.0);
    return;
  }
  problem.level(0) = {0.0, 0.0, 0, 0};
  for (int64_t depth = 0; depth >= 0;) {
    Level& at = problem.level(depth);
    const int64_t missing = size - depth, last = n - missing;
    int64_t p = at.next;
    while (p > at.first && p <= last && values[p] == values[p - 1]) ++p;
    if (p > last) {
      --depth;
      continue;
    }
    at.next = static_cast<int32_t>(p + 1);
    if (depth >= unit_depth) {
      const int fit = fits(at.sum, prefix[p + missing] - prefix[p], values[p] + space.largest[missing - 1]);
      if (fit > 0) --depth;  // the smallest sum below here grows with p
      if (fit != 0) continue;
    }
    if (depth + 1 == unit_depth && !mine()) continue;
    const double sum = at.sum + values[p], squared = at.squares + squares[p];
    if (missing == 1) {
      leaf(sum, squared);
    } else {
      problem.level(++depth) = {sum, squared, static_cast<int32_t>(p + 1), static_cast<int32_t>(p + 1)};
    }
  }
}

// The position that the walk has taken at a depth, in a leaf.
__device__ inline int64_t taken_at(const Problem& problem, int64_t depth) { return problem.level(depth).next - 1; }

}  // namespace torchrb::balanced
