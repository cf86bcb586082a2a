#pragma once

#include <torch/csrc/stable/tensor.h>

namespace torch::stable {

// One thread a call: the program has threads of its own.
template <typename Body>
void parallel_for(int64_t begin, int64_t end, int64_t, const Body& body) {
  body(begin, end);
}

}  // namespace torch::stable
