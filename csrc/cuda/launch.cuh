// How kernels are launched, and with how many threads: the one place for both.
//
// A kernel's own header (<op>.cuh) includes this and no torch header; it compiles under nvcc, and under g++ with the
// SIMT emulator of tests/simt, whose simt.h gives `launch`, `cudaStream_t` and the rest of what a kernel names.
#pragma once

#include <algorithm>
#include <cstdint>

#if defined(__CUDACC__)
#include <cuda_runtime.h>
#else
#include "simt.h"
#endif

namespace torchrb {

// Tunables: threads in a block.
inline constexpr unsigned kAdvantageThreads = 64;  // a thread is a group, and groups are few: rather more blocks
inline constexpr unsigned kIndexThreads = 256;
inline constexpr unsigned kMostIndexBlocks = 1024;
inline constexpr int64_t kBlockEntries = 4096;   // of the journal, that one block does sooner than six launches
inline constexpr unsigned kSampleThreads = 128;  // a warp is a group
inline constexpr unsigned kLargeGroupThreads = 256;
inline constexpr unsigned kMostSampleBlocks = 4096;
inline constexpr int64_t kSharedRows = 1024;  // of a group that a block selects from in shared memory
// A group of so many rows, and no less than this part of all, is found by looking at all rows.
inline constexpr int64_t kScanRows = 256, kScanShare = 64;
inline constexpr unsigned kBalancedThreads = 128;  // a block is a group
inline constexpr unsigned kMostBalancedBlocks = 512;
inline constexpr int64_t kBalancedMemory = int64_t{256} << 20;  // scratch of all blocks together, if one needs no more
inline constexpr unsigned kDrawThreads = 256;
inline constexpr unsigned kPriorityThreads = 256;  // of a block of a long update; one that works alone has more
inline constexpr unsigned kMostPriorityBlocks = 1024;
inline constexpr int64_t kPriorityBlockRows = 4096;  // rows that one block does sooner than eight launches
inline constexpr unsigned kRowThreads = 128;      // lanes of a warp, or a warp, are a row; few, so that rows spread out
inline constexpr unsigned kLongRowThreads = 256;  // a block is a row
inline constexpr unsigned kSlotThreads = 256;     // a thread is a row of the batch, or a slot
inline constexpr unsigned kMostRowBlocks = 4096;  // some waves on the largest GPUs; rows beyond are strided over
inline constexpr unsigned kMostSlotBlocks = 256;  // rows or slots beyond are strided over
inline constexpr int64_t kLongRowPieces = 2048;   // pieces of a row, 16 bytes at most, from which on it gets a block

// Blocks for `num` threads; a kernel strides over what goes beyond the largest grid.
inline unsigned blocks_for(int64_t num, unsigned threads) {
  constexpr int64_t kMostBlocks = 2147483647;
  return static_cast<unsigned>(std::min((num + threads - 1) / threads, kMostBlocks));
}

// Blocks where a thread is a row or a slot: at least the one that notes, and no more than are worth a ticket.
inline unsigned slot_blocks(int64_t num) { return std::clamp(blocks_for(num, kSlotThreads), 1u, kMostSlotBlocks); }

#if defined(__CUDACC__)
// Enqueues the kernel and returns what the launch itself came to; nothing waits. `smem`: dynamic shared memory in
// bytes.
template <typename... Params, typename... Args>
inline cudaError_t launch(void (*kernel)(Params...), unsigned grid, unsigned block, size_t smem, cudaStream_t stream,
                          const Args&... args) {
  if (grid == 0) return cudaSuccess;
  // Beyond what every device gives unasked, shared memory has to be asked for.
  constexpr size_t kUnasked = 48 * 1024;
  if (smem > kUnasked) {
    const cudaError_t granted =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(smem));
    if (granted != cudaSuccess) return granted;
  }
  kernel<<<grid, block, smem, stream>>>(static_cast<Params>(args)...);
  return cudaGetLastError();
}
#else
using simt::launch;
#endif

}  // namespace torchrb
