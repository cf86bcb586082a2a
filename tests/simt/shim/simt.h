// What a CUDA kernel names, for g++: include this in place of cuda_runtime.h and the kernel runs on the CPU.
//
// Only what the rules for kernels allow is here (README.md); what they forbid does not compile.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>

#include "atomics.h"
#include "bits.h"
#include "runtime.h"
#include "vector_types.h"
#include "warp.h"

#define TORCHRB_SIMT 1

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
// The pieces of shared memory come from cuda/shared_memory.cuh alone, which puts red zones between them.
#define __shared__ static_assert(false, "take shared memory from SharedMemory, cuda/shared_memory.cuh");

#define threadIdx (simt::now.thread)
#define blockIdx (simt::now.block)
#define blockDim (simt::now.block_dim)
#define gridDim (simt::now.grid_dim)
inline constexpr int warpSize = simt::kWarp;

using std::max;
using std::min;

// --- barriers, fences, waiting --------------------------------------------------------------------------------------

inline void __syncthreads(const simt::Site& site = simt::Site::current()) {
  simt::block_barrier(simt::BlockOp::kSync, false, site);
}
inline int __syncthreads_count(int predicate, const simt::Site& site = simt::Site::current()) {
  return simt::block_barrier(simt::BlockOp::kCount, predicate != 0, site);
}
inline int __syncthreads_and(int predicate, const simt::Site& site = simt::Site::current()) {
  return simt::block_barrier(simt::BlockOp::kAnd, predicate != 0, site);
}
inline int __syncthreads_or(int predicate, const simt::Site& site = simt::Site::current()) {
  return simt::block_barrier(simt::BlockOp::kOr, predicate != 0, site);
}
inline void __threadfence() { simt::fence(); }
inline void __threadfence_block() { simt::fence(); }
inline void __threadfence_system() { simt::fence(); }
inline void __nanosleep(unsigned, const simt::Site& site = simt::Site::current()) { simt::sleep_a_moment(site); }
[[noreturn]] inline void __trap(const simt::Site& site = simt::Site::current()) { simt::fail("__trap()", site); }

// --- the host's side ------------------------------------------------------------------------------------------------

using cudaStream_t = CUstream_st*;
enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorInvalidConfiguration = 9 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount = 16 };

inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t status) { return status == cudaSuccess ? "no error" : "refused"; }
inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) { return *value = 4, cudaSuccess; }

namespace simt {

// What an H200's little brothers allow, too: a launch beyond it is refused here as there.
inline constexpr unsigned kMostThreads = 1024;
inline constexpr size_t kMostShared = 163 * 1024;

template <typename... Params, typename... Args>
cudaError_t launch(void (*kernel)(Params...), unsigned grid, unsigned block, size_t shared, cudaStream_t stream,
                   const Args&... args) {
  struct Kernel final : Launch {
    void (*kernel)(Params...);
    std::tuple<std::remove_cv_t<Params>...> values;
    Kernel(void (*kernel_)(Params...), const Args&... args_) : kernel(kernel_), values(static_cast<Params>(args_)...) {}
    void thread() const override { std::apply(kernel, values); }
  };
  if (grid == 0) return cudaSuccess;
  if (block == 0 || block > kMostThreads || grid > 2147483647u) return cudaErrorInvalidConfiguration;
  if (shared > kMostShared) return cudaErrorInvalidValue;
  auto one = std::make_unique<Kernel>(kernel, args...);
  one->grid = grid, one->block = block, one->shared = shared, one->stream = stream;
  submit(std::move(one));
  return cudaSuccess;
}

inline void memset_kernel(void* at, int value, size_t bytes) { std::memset(at, value, bytes); }
inline void memcpy_kernel(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }

}  // namespace simt

inline cudaError_t cudaMemsetAsync(void* at, int value, size_t bytes, cudaStream_t stream = nullptr) {
  return bytes == 0 ? cudaSuccess : simt::launch(simt::memset_kernel, 1, 1, 0, stream, at, value, bytes);
}
enum cudaMemcpyKind { cudaMemcpyDeviceToDevice = 3, cudaMemcpyDefault = 4 };
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                                   cudaStream_t stream = nullptr) {
  return bytes == 0 ? cudaSuccess : simt::launch(simt::memcpy_kernel, 1, 1, 0, stream, to, from, bytes);
}
