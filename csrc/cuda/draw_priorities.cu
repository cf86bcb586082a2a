// Binds the kernel of draw_priorities.cuh: check, device, stream, launch, status.
#include "cuda/draw_priorities.cuh"

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>

#include "cuda/stream.h"
#include "priorities.h"

namespace torchrb {
namespace {

constexpr const char* kOp = "draw_priorities";

std::tuple<Tensor, Tensor> draw_priorities(Tensor seed, std::optional<Tensor> masses, Tensor tree, int64_t capacity,
                                           int64_t num, double beta, bool wide) {
  check(num >= 0, kOp, "num must not be negative, got ", num, ".");
  const PriorityPlaces places = priority_places_of(tree, capacity, kOp);
  check_same_device(seed, tree, kOp, "seed");
  if (masses.has_value()) check_same_device(*masses, tree, kOp, "masses");
  const int64_t* seed_data = int64_data(seed, 1, kOp, "seed");
  const double* mass_data = masses_of(masses, num, kOp);
  const auto* tree_data = static_cast<const double*>(tree.data_ptr());

  const torch::stable::accelerator::DeviceGuard guard(tree.get_device_index());
  const cudaStream_t stream = current_stream(tree, kOp);
  const Tensor slots = empty_int64({num}, tree);
  const Tensor weights = empty({&num, 1}, wide ? ScalarType::Double : ScalarType::Float, tree);
  auto* slot_data = static_cast<int64_t*>(slots.data_ptr());
  check_launch(wide ? draw_priorities_launch(places, tree_data, seed_data, mass_data, slot_data,
                                             static_cast<double*>(weights.data_ptr()), num, beta, stream)
                    : draw_priorities_launch(places, tree_data, seed_data, mass_data, slot_data,
                                             static_cast<float*>(weights.data_ptr()), num, beta, stream),
               kOp);
  return {slots, weights};
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(torchrb, CUDA, m) { m.impl("draw_priorities", TORCH_BOX(&draw_priorities)); }

}  // namespace torchrb
