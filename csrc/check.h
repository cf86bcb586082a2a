// The checks that protect memory: a kernel works on raw pointers, and what it assumes of a tensor is checked here
// first. Python validates what a user hands in; these catch a caller inside the package that broke an op's contract.
// They read metadata only, so they never wait for a device.
#pragma once

#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>
#include <sstream>
#include <stdexcept>

namespace torchrb {

// Throws std::runtime_error "<op>: <parts...>", which arrives in Python as a RuntimeError of that text.
template <typename... Parts>
[[noreturn]] inline void fail(const char* op, const Parts&... parts) {
  std::ostringstream message;
  message << "torchrb::" << op << ": ";
  (message << ... << parts);
  throw std::runtime_error(message.str());
}

// `parts` are only put together when the check fails.
template <typename... Parts>
inline void check(bool holds, const char* op, const Parts&... parts) {
  if (!holds) [[unlikely]] {
    fail(op, parts...);
  }
}

inline void check_contiguous(const torch::stable::Tensor& tensor, const char* op, const char* name) {
  check(tensor.is_contiguous(), op, name, " must be contiguous; call .contiguous() on it first.");
}

inline void check_dtype(const torch::stable::Tensor& tensor, torch::headeronly::ScalarType expected, const char* op,
                        const char* name) {
  const auto got = tensor.scalar_type();
  check(got == expected, op, name, " must have dtype ", torch::headeronly::toString(expected), ", got ",
        torch::headeronly::toString(got), ".");
}

inline void check_dim(const torch::stable::Tensor& tensor, int64_t expected, const char* op, const char* name) {
  const int64_t got = tensor.dim();
  check(got == expected, op, name, " must have ", expected, " dimension(s), got ", got, ".");
}

inline void check_numel(const torch::stable::Tensor& tensor, int64_t expected, const char* op, const char* name) {
  const int64_t got = tensor.numel();
  check(got == expected, op, name, " must have ", expected, " element(s), got ", got, ".");
}

// Every tensor of a call lies on the device of its first one: the dispatcher looks at one of them only.
inline void check_same_device(const torch::stable::Tensor& tensor, const torch::stable::Tensor& first, const char* op,
                              const char* name) {
  const bool same = tensor.is_cuda() == first.is_cuda() && tensor.is_cpu() == first.is_cpu() &&
                    (tensor.is_cpu() || tensor.get_device_index() == first.get_device_index());
  check(same, op, name, " must be on the device of the first argument, got index ", tensor.get_device_index(), " and ",
        first.get_device_index(), " (-1 is the CPU).");
}

// What nearly every kernel asks of an argument.
inline void check_tensor(const torch::stable::Tensor& tensor, torch::headeronly::ScalarType dtype, int64_t dim,
                         const char* op, const char* name) {
  check_dtype(tensor, dtype, op, name);
  check_dim(tensor, dim, op, name);
  check_contiguous(tensor, op, name);
}

}  // namespace torchrb
