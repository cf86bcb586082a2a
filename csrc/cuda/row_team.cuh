// The threads that share a row, and the one copy by which they move it.
#pragma once

#include "cuda/device_atomics.cuh"
#include "cuda/leaf_table.cuh"
#include "cuda/shared_memory.cuh"

namespace torchrb {

// Neighbouring lanes of a warp: 1, 2, 4, 8, 16 or 32 of them.
class LaneTeam {
 public:
  __device__ LaneTeam(unsigned lanes, int64_t*) : lanes_(lanes), rank_(threadIdx.x % lanes) {
    leader_ = threadIdx.x % 32 - rank_;
    mask_ = lanes == 32 ? 0xFFFFFFFFu : ((1u << lanes) - 1) << leader_;
  }
  __device__ int64_t first_row() const {
    return (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / lanes_;
  }
  __device__ int64_t row_step() const { return static_cast<int64_t>(gridDim.x) * (blockDim.x / lanes_); }
  __device__ unsigned rank() const { return rank_; }
  __device__ unsigned size() const { return lanes_; }
  __device__ bool leads() const { return rank_ == 0; }
  // What was written before by any of the team is seen after by all of it.
  __device__ void sync() const { __syncwarp(mask_); }
  // The leader's value.
  __device__ int64_t broadcast(int64_t value) const {
    return __shfl_sync(mask_, static_cast<long long>(value), static_cast<int>(leader_));
  }

 private:
  unsigned lanes_, rank_, leader_, mask_;
};

// A whole block.
class BlockTeam {
 public:
  __device__ BlockTeam(unsigned, int64_t* cell) : cell_(cell) {}
  __device__ int64_t first_row() const { return blockIdx.x; }
  __device__ int64_t row_step() const { return gridDim.x; }
  __device__ unsigned rank() const { return threadIdx.x; }
  __device__ unsigned size() const { return blockDim.x; }
  __device__ bool leads() const { return threadIdx.x == 0; }
  __device__ void sync() const { __syncthreads(); }
  __device__ int64_t broadcast(int64_t value) const {
    if (leads()) *cell_ = value;
    __syncthreads();
    const int64_t told = *cell_;
    __syncthreads();
    return told;
  }

 private:
  int64_t* cell_;  // in shared memory
};

// Room for a piece of up to 16 bytes.
using Piece = uint4;

template <typename Word>
__device__ inline void move_word(void* to, const void* from) {
  copy_word(static_cast<Word*>(to), static_cast<const Word*>(from));
}

// Moves `1 << shift` bytes, aligned on both sides.
__device__ inline void move_piece(void* to, const void* from, int64_t shift) {
  switch (shift) {
    case 0:
      return move_word<uint8_t>(to, from);
    case 1:
      return move_word<uint16_t>(to, from);
    case 2:
      return move_word<uint32_t>(to, from);
    case 3:
      return move_word<uint64_t>(to, from);
    default:
      return move_word<Piece>(to, from);
  }
}

// The leaves as the threads of a block see them: copied to shared memory where they came by value, since lanes look up
// different leaves at once.
struct LeafView {
  const PieceLeaf* leaves;
  int64_t pieces;
};

// `shared`: room for `near_leaves`. Called by all threads of a block.
__device__ inline LeafView view_leaves(const LeafTable& table, PieceLeaf* shared) {
  if (table.far != nullptr) return {table.far, table.pieces};
  for (int64_t i = threadIdx.x; i < table.num; i += blockDim.x) shared[i] = table.near[i];
  __syncthreads();
  return {shared, table.pieces};
}

enum class Direction { kIntoTable, kIntoBatch, kZeroBatch };

// Moves a row: each of the team some of its pieces. A lane fetches several before it stores the first, so that their
// latencies overlap.
template <Direction direction, typename Team>
__device__ inline void move_row(const LeafView& view, const Team& team, int64_t slot, int64_t row) {
  constexpr int kAtOnce = 4;
  const PieceLeaf* leaf = view.leaves;
  for (int64_t first = team.rank(); first < view.pieces; first += kAtOnce * static_cast<int64_t>(team.size())) {
    Piece held[kAtOnce];
    unsigned char* to[kAtOnce];
    int64_t shift[kAtOnce];
    for (int i = 0; i < kAtOnce; ++i) {
      const int64_t piece = first + i * static_cast<int64_t>(team.size());
      shift[i] = -1;
      if (piece >= view.pieces) continue;
      while (piece >= leaf->end) ++leaf;
      shift[i] = leaf->shift;
      const int64_t offset = leaf->bytes - ((leaf->end - piece) << shift[i]);
      unsigned char* in_batch = leaf->batch + row * leaf->bytes + offset;
      if constexpr (direction == Direction::kZeroBatch) {
        held[i] = {};
        to[i] = in_batch;
      } else {
        unsigned char* in_table = leaf->table + slot * leaf->stride + offset;
        to[i] = direction == Direction::kIntoTable ? in_table : in_batch;
        move_piece(&held[i], direction == Direction::kIntoTable ? in_batch : in_table, shift[i]);
      }
    }
    for (int i = 0; i < kAtOnce; ++i) {
      if (shift[i] >= 0) move_piece(to[i], &held[i], shift[i]);
    }
  }
}

}  // namespace torchrb
