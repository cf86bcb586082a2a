// From the tensors of the ops on priorities to what kernels take. What the bindings of every device check is checked
// here.
#pragma once

#include <optional>

#include "core/priority_tree.h"
#include "tables.h"

namespace torchrb {

inline PriorityPlaces priority_places_of(const Tensor& tree, int64_t capacity, const char* op) {
  check(capacity >= 0 && capacity < int64_t{1} << 32, op, "a tree has up to 2**32 - 1 rows, got ", capacity, ".");
  const PriorityPlaces places(capacity);
  check_tensor(tree, ScalarType::Double, 1, op, "tree");
  check_numel(tree, places.size, op, "tree");
  return places;
}

// Null where there are none.
inline const double* masses_of(const std::optional<Tensor>& masses, int64_t num, const char* op) {
  if (!masses.has_value()) return nullptr;
  check_tensor(*masses, ScalarType::Double, 1, op, "masses");
  check_numel(*masses, num, op, "masses");
  return static_cast<const double*>(masses->data_ptr());
}

inline GivenPriorities given_priorities_of(const Tensor& slots, const Tensor& generations, const Tensor& priorities,
                                           const char* op) {
  const int64_t* places = int64_data(slots, op, "slots");
  const int64_t* of_record = int64_data(generations, op, "generations");
  const int64_t num = slots.numel();
  check(generations.numel() == 0 || generations.numel() == num, op, "generations must have none or ", num,
        " element(s), got ", generations.numel(), ".");
  check_dim(priorities, 1, op, "priorities");
  check_contiguous(priorities, op, "priorities");
  check_numel(priorities, num, op, "priorities");
  return {places, generations.numel() == 0 ? nullptr : of_record,
          static_cast<const unsigned char*>(priorities.data_ptr()), dtype_of(priorities, op, "priorities"), num};
}

}  // namespace torchrb
