// What every CUDA binding (<op>.cu) does around its kernel: find torch's stream, and tell what a launch came to.
#pragma once

#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/tensor.h>

#include "check.h"

// Weak, so that the library also links and loads where torch has no CUDA; no kernel is called there.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device_index,
                                                                                   void** ret_stream);

namespace torchrb {

// The current stream of the tensor's device, as torch sees it.
inline cudaStream_t current_stream(const torch::stable::Tensor& tensor, const char* op) {
  void* stream = nullptr;
  check(tensor.is_cuda(), op, "every tensor must be on the same GPU, got some on the CPU.");
  check(aoti_torch_get_current_cuda_stream != nullptr, op, "this torch has no CUDA.");
  check(aoti_torch_get_current_cuda_stream(tensor.get_device_index(), &stream) == AOTI_TORCH_SUCCESS, op,
        "torch has no current stream for device ", tensor.get_device_index(), ".");
  return static_cast<cudaStream_t>(stream);
}

inline void check_launch(cudaError_t status, const char* op) {
  check(status == cudaSuccess, op, "the kernel was not launched: ", cudaGetErrorString(status), ".");
}

}  // namespace torchrb
