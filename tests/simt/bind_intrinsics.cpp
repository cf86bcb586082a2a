// Kernels that do one intrinsic each, so that the emulator's own answers can be checked.
#include "bind.h"
#include "cuda/shared_memory.cuh"

namespace {

using torchrb::launch;

enum Op { kShuffle, kUp, kDown, kXor, kBallot, kAny, kAll, kMatchAny, kMatchAll, kAdd, kMin, kMax, kAnd, kOr };

// Each lane of `mask` gives its value; what it gets goes to `answers`.
__global__ void warp_kernel(Op op, unsigned mask, int argument, int width, const int* values, int64_t* answers) {
  if ((mask >> (threadIdx.x % 32) & 1u) == 0) return;
  const int value = values[threadIdx.x];
  int64_t answer = 0;
  int all = 0;
  switch (op) {
    case kShuffle:
      answer = __shfl_sync(mask, value, argument, width);
      break;
    case kUp:
      answer = __shfl_up_sync(mask, value, static_cast<unsigned>(argument), width);
      break;
    case kDown:
      answer = __shfl_down_sync(mask, value, static_cast<unsigned>(argument), width);
      break;
    case kXor:
      answer = __shfl_xor_sync(mask, value, argument, width);
      break;
    case kBallot:
      answer = __ballot_sync(mask, value > argument);
      break;
    case kAny:
      answer = __any_sync(mask, value > argument);
      break;
    case kAll:
      answer = __all_sync(mask, value > argument);
      break;
    case kMatchAny:
      answer = __match_any_sync(mask, value);
      break;
    case kMatchAll:
      answer = __match_all_sync(mask, value > argument ? 1 : 0, &all);
      answer = all != 0 ? answer : -1;
      break;
    case kAdd:
      answer = __reduce_add_sync(mask, value);
      break;
    case kMin:
      answer = __reduce_min_sync(mask, value);
      break;
    case kMax:
      answer = __reduce_max_sync(mask, value);
      break;
    case kAnd:
      answer = __reduce_and_sync(mask, static_cast<unsigned>(value));
      break;
    case kOr:
      answer = __reduce_or_sync(mask, static_cast<unsigned>(value));
      break;
  }
  answers[threadIdx.x] = answer;
}

// Votes of a block, and an inclusive scan of it in shared memory with a barrier between the steps.
__global__ void block_kernel(const int* values, int* scanned, int* votes) {
  torchrb::SharedMemory shared;
  int* sums = shared.take<int>(blockDim.x);
  const unsigned i = threadIdx.x, base = blockIdx.x * blockDim.x;
  sums[i] = values[base + i];
  __syncthreads();
  for (unsigned step = 1; step < blockDim.x; step *= 2) {
    const int other = i >= step ? sums[i - step] : 0;
    __syncthreads();
    sums[i] += other;
    __syncthreads();
  }
  scanned[base + i] = sums[i];
  const int positive = values[base + i] > 0;
  const int count = __syncthreads_count(positive);
  const int all = __syncthreads_and(positive);
  const int any = __syncthreads_or(positive);
  if (i == 0) {
    votes[3 * blockIdx.x] = count;
    votes[3 * blockIdx.x + 1] = all;
    votes[3 * blockIdx.x + 2] = any;
  }
}

// One word through every atomic that there is.
template <typename T>
__global__ void atomics_kernel(T* words) {
  const T mine = static_cast<T>(threadIdx.x + 1);
  atomicAdd(words, mine);
  atomicMax(words + 1, mine);
  atomicMin(words + 2, mine);
  atomicOr(words + 3, T{1} << threadIdx.x % 31);
  atomicAnd(words + 4, ~(T{1} << threadIdx.x % 31));
  atomicXor(words + 5, mine);
  for (T seen = 0, was = mine; seen != was;) {
    was = seen;
    seen = atomicCAS(words + 6, was, was + mine);
  }
  atomicAdd(words + 7, atomicExch(words + 8 + threadIdx.x, mine));
}

// What it says of itself.
__global__ void indices_kernel(int* seen, int64_t* bits) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  seen[i] = static_cast<int>(gridDim.x * blockDim.x - i);
  if (i != 0) return;
  bits[0] = __clz(1) + __clz(0) + __clzll(1);
  bits[1] = __popc(0xf0f0u) + __popcll(~0ull) + __ffs(0) + __ffs(8) + __ffsll(1ll << 40);
  bits[2] = __brev(1u);
  bits[3] = static_cast<int64_t>(__umul64hi(1ull << 63, 6));
}

cudaError_t warp(Op op, unsigned mask, int argument, int width, unsigned block, const int* values, int64_t* answers) {
  return launch(warp_kernel, 1, block, 0, nullptr, op, mask, argument, width, values, answers);
}
cudaError_t block(unsigned grid, unsigned block, const int* values, int* scanned, int* votes) {
  return launch(block_kernel, grid, block, torchrb::shared_bytes<int>(block), nullptr, values, scanned, votes);
}
template <typename T>
cudaError_t atomics(unsigned grid, unsigned block, T* words) {
  return launch(atomics_kernel<T>, grid, block, 0, nullptr, words);
}
cudaError_t indices(unsigned grid, unsigned block, int* seen, int64_t* bits) {
  return launch(indices_kernel, grid, block, 0, nullptr, seen, bits);
}

}  // namespace

SIMT_BIND("warp", warp);
SIMT_BIND("block", block);
SIMT_BIND("atomics32", atomics<unsigned>);
SIMT_BIND("atomics64", atomics<unsigned long long>);
SIMT_BIND("indices", indices);
