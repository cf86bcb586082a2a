// Copies rows out with the generation that belongs to the very content copied; kernel and launcher.
// Some lanes of a warp, or a block where rows are long, are a row: its leader looks at the header before and after all
// of them have copied, and they copy again if it moved.
// Bound by the bytes moved, twice: out of the table, where a packed row is one stream, and into the batch.
#pragma once

#include "cuda/row_team.cuh"
#include "cuda/scratch.cuh"
#include "cuda/slot_lock.cuh"

namespace torchrb {

template <typename Team>
__global__ void read_rows_kernel(const __grid_constant__ LeafTable table, Headers headers,
                                 const int64_t* slots,  // [num_rows]
                                 int64_t* generations,  // [num_rows]
                                 int64_t num_rows, unsigned lanes) {
  SharedMemory shared;
  const Team team(lanes, shared.take<int64_t>(1));
  const LeafView view = view_leaves(table, shared.take<PieceLeaf>(near_leaves(table)));
  for (int64_t row = team.first_row(); row < num_rows; row += team.row_step()) {
    const int64_t slot = slots[row];
    int64_t generation = -1;
    bool again = headers.holds(slot);
    while (again) {
      const Look seen = team.leads() ? look(headers, slot) : Look{};
      const int64_t word = team.broadcast(seen.word);
      if (word_count(word) <= 0) break;
      move_row<Direction::kIntoBatch>(view, team, slot, row);
      device_fence();
      team.sync();
      again = team.broadcast(team.leads() && !unmoved(headers, slot, seen)) != 0;
      generation = again ? -1 : word_generation(word);
    }
    if (generation < 0) move_row<Direction::kZeroBatch>(view, team, slot, row);
    if (team.leads()) generations[row] = generation;
  }
}

struct ReadRowsScratch {
  PieceLeaf* far;

  ReadRowsScratch(Carver& carver, size_t num_leaves) : far(carver.take<PieceLeaf>(far_leaves(num_leaves))) {}
};

inline cudaError_t read_rows_launch(const Headers& headers, const std::vector<Leaf>& leaves, const int64_t* slots,
                                    int64_t* generations, int64_t num_rows, const ReadRowsScratch& scratch,
                                    cudaStream_t stream) {
  if (num_rows == 0) return cudaSuccess;
  LeafTable table;
  const cudaError_t status = leaf_table(leaves, scratch.far, table, stream);
  if (status != cudaSuccess) return status;
  const RowGrid rows = row_grid(table, num_rows);
  return launch(rows.block_a_row ? read_rows_kernel<BlockTeam> : read_rows_kernel<LaneTeam>, rows.grid, rows.threads,
                shared_bytes<int64_t>(1) + shared_bytes<PieceLeaf>(near_leaves(table)), stream, table, headers, slots,
                generations, num_rows, rows.lanes);
}

template __global__ void read_rows_kernel<LaneTeam>(const __grid_constant__ LeafTable, Headers, const int64_t*,
                                                    int64_t*, int64_t, unsigned);
template __global__ void read_rows_kernel<BlockTeam>(const __grid_constant__ LeafTable, Headers, const int64_t*,
                                                     int64_t*, int64_t, unsigned);

}  // namespace torchrb
