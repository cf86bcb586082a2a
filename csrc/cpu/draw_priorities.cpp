// Rows drawn in proportion to their weights, and their importance weights.
// Draws go down the tree a level at a time, a block of them together, so that the cache misses of a level overlap; one
// thread. Bound by those misses: two lines a draw and level.
#include <torch/csrc/stable/library.h>

#include <algorithm>

#include "core/rng.h"
#include "priorities.h"

namespace torchrb {
namespace {

constexpr const char* kOp = "draw_priorities";
constexpr int64_t kBlock = 128;

class Draw {
 public:
  Draw(const PriorityPlaces& places, const double* tree, double beta) : places_(places), tree_(tree), beta_(beta) {
    const int top = places.levels - 1;
    total_ = node_sum(tree + places.sums[top]);
    log2_least_ = total_ > 0.0 ? log2_of(node_least(tree + places.least[top])) : 0.0;
  }

  double total() const { return total_; }

  // Draws for `masses[0..num-1]`, at most `kBlock` of them.
  template <typename Weight>
  void run(const double* masses, int64_t num, int64_t* slots, Weight* weights) const {
    Descent at[kBlock];
    for (int64_t i = 0; i < num; ++i) at[i] = {0, masses[i] > 0.0 ? masses[i] : 0.0};
    for (int level = places_.levels - 1; level >= 0; --level) {
      const double* sums = tree_ + places_.sums[level];
      const double* below = level > 0 ? tree_ + places_.sums[level - 1] : nullptr;
      for (int64_t i = 0; i < num; ++i) {
        at[i].step(sums + at[i].entry * PriorityPlaces::kFan);
        if (below == nullptr) continue;
        __builtin_prefetch(below + at[i].entry * PriorityPlaces::kFan);
        __builtin_prefetch(below + at[i].entry * PriorityPlaces::kFan + 8);
      }
    }
    for (int64_t i = 0; i < num; ++i) slots[i] = at[i].entry;
    for (int64_t i = 0; i < num; ++i) {
      weights[i] = static_cast<Weight>(importance(tree_[places_.sums[0] + at[i].entry], log2_least_, beta_));
    }
  }

 private:
  const PriorityPlaces& places_;
  const double* tree_;
  double beta_, total_, log2_least_;
};

template <typename Weight>
void draw_all(const Draw& draw, int64_t seed, const double* given, int64_t num, int64_t* slots, Weight* weights) {
  if (!(draw.total() > 0.0)) {
    std::fill_n(slots, num, int64_t{-1});
    std::fill_n(weights, num, Weight{0});
    return;
  }
  const uint64_t key = stream_key(seed, kPriorityStream);
  double masses[kBlock];
  for (int64_t begin = 0; begin < num; begin += kBlock) {
    const int64_t here = std::min(kBlock, num - begin);
    for (int64_t i = 0; i < here; ++i) {
      masses[i] = given != nullptr ? given[begin + i] : fraction_of(random64(key, begin + i)) * draw.total();
    }
    draw.run(masses, here, slots + begin, weights + begin);
  }
}

std::tuple<Tensor, Tensor> draw_priorities(Tensor seed_in, std::optional<Tensor> masses_in, Tensor tree_in,
                                           int64_t capacity, int64_t num, double beta, bool wide) {
  check(num >= 0, kOp, "num must not be negative, got ", num, ".");
  const PriorityPlaces places = priority_places_of(tree_in, capacity, kOp);
  const int64_t seed = *int64_data(seed_in, 1, kOp, "seed");
  const double* masses = masses_of(masses_in, num, kOp);
  const Draw draw(places, static_cast<const double*>(tree_in.data_ptr()), beta);
  const Tensor slots_out = empty_int64({num}, tree_in);
  const Tensor weights_out = empty({&num, 1}, wide ? ScalarType::Double : ScalarType::Float, tree_in);
  auto* slots = static_cast<int64_t*>(slots_out.data_ptr());
  if (wide) {
    draw_all(draw, seed, masses, num, slots, static_cast<double*>(weights_out.data_ptr()));
  } else {
    draw_all(draw, seed, masses, num, slots, static_cast<float*>(weights_out.data_ptr()));
  }
  return {slots_out, weights_out};
}

STABLE_TORCH_LIBRARY_IMPL(torchrb, CPU, m) { m.impl("draw_priorities", TORCH_BOX(&draw_priorities)); }

}  // namespace
}  // namespace torchrb
