// The leaves of a row as a kernel takes them: by value, as a parameter, however many there are in one launch.
//
// A row is seen as one sequence of pieces, leaf after leaf. A piece is what a lane moves at once: 16 bytes where both
// ends of a leaf, its stride and its size allow, else 8, 4, 2 or 1. So lanes are kept busy by rows of many short leaves
// as by rows of few long ones.
#pragma once

#include <cstdint>
#include <vector>

#include "core/rows.h"
#include "cuda/launch.cuh"

namespace torchrb {

struct PieceLeaf {
  unsigned char* table;  // of row `slot`: table + slot * stride
  int64_t stride;
  unsigned char* batch;  // of row `row`: batch + row * bytes
  int64_t bytes;
  int64_t end;    // pieces of this leaf and all before it
  int64_t shift;  // log2 of the bytes of a piece
};

// A kernel has 4,096 bytes of parameters on every driver. More leaves than that go to the device in kernels that do
// nothing else, whose parameters a graph keeps, where a copy from host memory would not be captured as what it was.
inline constexpr int64_t kNearLeaves = 80;

struct LeafTable {
  int64_t num, pieces;   // leaves, and pieces of a row
  const PieceLeaf* far;  // [num] on the device, or null
  PieceLeaf near[kNearLeaves];
};

// How many leaves come by value.
TORCHRB_HOST_DEVICE inline int64_t near_leaves(const LeafTable& table) { return table.far != nullptr ? 0 : table.num; }

inline int64_t piece_shift(const Leaf& leaf) {
  uint64_t all = reinterpret_cast<uintptr_t>(leaf.table) | reinterpret_cast<uintptr_t>(leaf.batch) |
                 static_cast<uint64_t>(leaf.stride) | static_cast<uint64_t>(leaf.bytes);
  int64_t shift = 0;
  while (shift < 4 && (all & 1) == 0) {
    all >>= 1;
    ++shift;
  }
  return shift;
}

inline std::vector<PieceLeaf> piece_leaves(const std::vector<Leaf>& leaves) {
  std::vector<PieceLeaf> cut;
  cut.reserve(leaves.size());
  int64_t end = 0;
  for (const Leaf& leaf : leaves) {
    if (leaf.bytes == 0) continue;
    const int64_t shift = piece_shift(leaf);
    end += leaf.bytes >> shift;
    cut.push_back({leaf.table, leaf.stride, leaf.batch, leaf.bytes, end, shift});
  }
  return cut;
}

struct LeafPage {
  PieceLeaf leaves[kNearLeaves];
};

// Puts a page of leaves where the other kernels look for it. A thread is a leaf. Bound by the launch.
static __global__ void put_leaves_kernel(PieceLeaf* far, int64_t num, const __grid_constant__ LeafPage page) {
  for (int64_t i = threadIdx.x; i < num; i += blockDim.x) far[i] = page.leaves[i];
}

// How many leaves of device memory `leaf_table` takes for this many.
inline int64_t far_leaves(size_t num_leaves) {
  const auto num = static_cast<int64_t>(num_leaves);
  return num > kNearLeaves ? num : 0;
}

// Fills `table`. `far`: device memory for `far_leaves` of them.
inline cudaError_t leaf_table(const std::vector<Leaf>& leaves, PieceLeaf* far, LeafTable& table, cudaStream_t stream) {
  const std::vector<PieceLeaf> cut = piece_leaves(leaves);
  table.num = static_cast<int64_t>(cut.size());
  table.pieces = cut.empty() ? 0 : cut.back().end;
  table.far = nullptr;
  if (table.num <= kNearLeaves) {
    std::copy(cut.begin(), cut.end(), table.near);
    return cudaSuccess;
  }
  table.far = far;
  for (int64_t first = 0; first < table.num; first += kNearLeaves) {
    LeafPage page;
    const int64_t num = std::min(table.num - first, kNearLeaves);
    std::copy(cut.begin() + first, cut.begin() + first + num, page.leaves);
    const cudaError_t status =
        launch(put_leaves_kernel, 1, static_cast<unsigned>(kNearLeaves), 0, stream, far + first, num, page);
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

// How rows are spread over a grid: some lanes of a warp a row, or, where rows are long, a block.
struct RowGrid {
  bool block_a_row;
  unsigned lanes, grid, threads;
};

inline RowGrid row_grid(const LeafTable& table, int64_t num_rows) {
  if (table.pieces >= kLongRowPieces) {
    const unsigned blocks = static_cast<unsigned>(std::min<int64_t>(num_rows, kMostRowBlocks));
    return {true, kLongRowThreads, blocks, kLongRowThreads};
  }
  unsigned lanes = 1;
  while (lanes < 32 && lanes < table.pieces) lanes *= 2;
  return {false, lanes, std::min(blocks_for(num_rows * lanes, kRowThreads), kMostRowBlocks), kRowThreads};
}

}  // namespace torchrb
