// A tree of sums over the weights of rows, with the greatest priority and the smallest positive weight beside each sum:
// where its parts lie, what a node says of its children, and how a mass finds its row. The layout's twin is
// torchrb/ops/priority_tree.py.
//
// A node has 16 children, whose sums are two cache lines, and is seen as four sums of four: one comparison with each
// running sum, no branch. Its own sum is always computed from its children, in one order, so that it never drifts and
// is the same bits wherever it is computed.
#pragma once

#include <cstdint>
#include <limits>

#include "core/host_device.h"
#include "core/power.h"
#include "core/score.h"
#include "core/slot_word.h"

namespace torchrb {

constexpr double kInfinitePriority = std::numeric_limits<double>::infinity();

// Where in a float64 array the parts of a tree are. Level 0 has an entry for each row, each next level one for 16 of
// the last; levels are padded to 16, and the last one has so many.
struct PriorityPlaces {
  static constexpr int kFan = 16, kMostLevels = 8;

  int64_t capacity = 0;
  int levels = 0;
  int64_t entries[kMostLevels] = {};
  int64_t sums[kMostLevels] = {};   // of rows: their weights
  int64_t most[kMostLevels] = {};   // of rows: their priorities, -1 for none
  int64_t least[kMostLevels] = {};  // smallest positive weights, infinity for none; of rows: their weights
  int64_t size = 0;

  explicit PriorityPlaces(int64_t rows) : capacity(rows) {
    int64_t num = rows < 1 ? 1 : rows;
    do {
      entries[levels] = (num + kFan - 1) / kFan * kFan;
      num = entries[levels] / kFan;
      ++levels;
    } while (entries[levels - 1] > kFan && levels < kMostLevels);
    for (int level = 0; level < levels; ++level) size = after(sums[level], size, level);
    for (int level = 0; level < levels; ++level) size = after(most[level], size, level);
    for (int level = 1; level < levels; ++level) size = after(least[level], size, level);
  }

 private:
  int64_t after(int64_t& place, int64_t begin, int level) const {
    place = begin;
    return begin + entries[level];
  }
};

// Of the 16 children at `c`.
TORCHRB_HOST_DEVICE inline double sum_of_four(const double* c) { return (c[0] + c[1]) + (c[2] + c[3]); }
TORCHRB_HOST_DEVICE inline double node_sum(const double* c) {
  return (sum_of_four(c) + sum_of_four(c + 4)) + (sum_of_four(c + 8) + sum_of_four(c + 12));
}
TORCHRB_HOST_DEVICE inline double node_most(const double* c) {
  double most = c[0];
  for (int i = 1; i < PriorityPlaces::kFan; ++i) most = most < c[i] ? c[i] : most;
  return most;
}
// 0, which is the weight of a row that cannot be drawn, does not count.
TORCHRB_HOST_DEVICE inline double node_least(const double* c) {
  double least = kInfinitePriority;
  for (int i = 0; i < PriorityPlaces::kFan; ++i) least = c[i] > 0.0 && c[i] < least ? c[i] : least;
  return least;
}

// What is kept of a slot word, so that another record is told from the one that a priority belongs to.
TORCHRB_HOST_DEVICE inline int64_t priority_mark(int64_t word) {
  return word_live(word) ? word_count(word) : -word_count(word);
}

TORCHRB_HOST_DEVICE inline double weight_of(double priority, double alpha, double eps) {
  return priority < 0.0 ? 0.0 : power_of(priority + eps, alpha);
}

// Priorities to be set, of any dtype that orders.
struct GivenPriorities {
  const int64_t* slots;        // [num]
  const int64_t* generations;  // [num], or null
  const unsigned char* values;
  Dtype dtype;
  int64_t num;

  TORCHRB_HOST_DEVICE double value(int64_t row) const { return read_real(values + row * element_bytes(dtype), dtype); }
  // Whether it can be set at all.
  TORCHRB_HOST_DEVICE bool good(int64_t row, int64_t capacity) const {
    const double priority = value(row);
    return slots[row] >= 0 && slots[row] < capacity && priority >= 0.0 && priority < kInfinitePriority;
  }
};

// A mass on its way down: at which entry of a level it is, and what is left of it.
struct Descent {
  int64_t entry = 0;
  double mass = 0.0;

  // Into one of four parts: the first whose running sum exceeds the mass, so one whose sum is positive. Where rounding
  // has left the mass beyond all of them, the last one that is positive; what is left then goes beyond all again.
  TORCHRB_HOST_DEVICE int choose(double a, double b, double c, double d) {
    const double second = a + b, third = second + c;
    int chosen = static_cast<int>(mass >= a) + static_cast<int>(mass >= second) + static_cast<int>(mass >= third);
    if (chosen == 3 && !(d > 0.0)) chosen = c > 0.0 ? 2 : b > 0.0 ? 1 : 0;
#if defined(__CUDA_ARCH__)
    mass -= chosen == 0 ? 0.0 : chosen == 1 ? a : chosen == 2 ? second : third;
#else
    const double before[4] = {0.0, a, second, third};  // looked up: a branch here would be a coin's toss
    mass -= before[chosen];
#endif
    return chosen;
  }

  // One level down, to one of the 16 children whose sums are at `c`.
  TORCHRB_HOST_DEVICE void step(const double* c) {
    const int quarter = choose(sum_of_four(c), sum_of_four(c + 4), sum_of_four(c + 8), sum_of_four(c + 12));
    const double* q = c + 4 * quarter;
    const int child = choose(q[0], q[1], q[2], q[3]);
    entry = entry * PriorityPlaces::kFan + 4 * quarter + child;
  }
};

// The importance weight of a row, whose weight is positive.
TORCHRB_HOST_DEVICE inline double importance(double weight, double log2_least, double beta) {
  return exp2_of((log2_of(weight) - log2_least) * -beta);
}

}  // namespace torchrb
