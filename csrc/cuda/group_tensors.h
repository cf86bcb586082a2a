// The tensors of a group index as the structure that a GPU keeps in them.
#pragma once

#include "cuda/group_links.cuh"
#include "tables.h"

namespace torchrb {

inline GroupLinks group_links_of(const Tensor& keys, const Tensor& links, int64_t capacity, const char* op) {
  check_tensor(keys, ScalarType::Long, 2, op, "keys");
  check_tensor(links, ScalarType::Int, 1, op, "links");
  check(capacity < INT32_MAX - 2, op, "an index counts rows in 32 bits, got a capacity of ", capacity, ".");
  check(keys.size(0) == capacity, op, "keys must have a row for each of ", capacity, " rows, got ", keys.size(0), ".");
  check_numel(links, GroupLinks::size(capacity), op, "links");
  check(reinterpret_cast<uintptr_t>(links.data_ptr()) % 8 == 0, op, "links must be aligned to 8 bytes.");
  return {static_cast<int64_t*>(keys.data_ptr()), keys.size(1), static_cast<int32_t*>(links.data_ptr()), capacity};
}

}  // namespace torchrb
