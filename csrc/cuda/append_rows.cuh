// Writes whole records at the cursor, the oldest overwritten first; kernels and launcher.
// One thread claims the batch's place in the ring. Then some lanes of a warp, or a block where rows are long, are a
// row: their leader takes the record, all of them write it, the leader publishes it; the last block notes what was
// written. Bound by the bytes moved, twice: out of the batch and into the ring, both nearly in order.
#pragma once

#include "cuda/note_rows.cuh"
#include "cuda/row_team.cuh"
#include "cuda/scratch.cuh"
#include "cuda/slot_lock.cuh"

namespace torchrb {

// What the first kernel tells the second.
struct AppendClaim {
  int64_t cursor, sequence, epoch, blocks_done;
};

static __global__ void append_claim_kernel(int64_t* control, AppendClaim* claim, int64_t capacity, int64_t num_rows) {
  const ControlLock lock(control);
  lock.lock();
  // Unsigned: inside the ring whatever stands there.
  const auto cursor =
      static_cast<int64_t>(static_cast<uint64_t>(lock.get(kControlCursor)) % static_cast<uint64_t>(capacity));
  lock.set(kControlCursor, (cursor + num_rows) % capacity);
  *claim = {cursor, lock.claim(kControlStamp, num_rows), lock.get(kControlEpoch), 0};
  lock.unlock();
}

template <typename Team>
__global__ void append_rows_kernel(const __grid_constant__ LeafTable table, Headers headers, Journal journal,
                                   AppendClaim* claim,
                                   int64_t* slots,        // [num_rows]
                                   int64_t* generations,  // [num_rows]
                                   int64_t num_rows, unsigned lanes) {
  SharedMemory shared;
  int64_t* cells = shared.take<int64_t>(kNoteCells);
  const Team team(lanes, cells);
  const LeafView view = view_leaves(table, shared.take<PieceLeaf>(near_leaves(table)));
  const int64_t capacity = headers.capacity, cursor = claim->cursor;
  const int64_t sequence = claim->sequence, epoch = claim->epoch;

  // Where the batch wraps over itself only the last turn is written. A row of turn t is the (t + 1)-th write of its
  // slot, so the earlier rows' generations follow from that of the one that stays.
  const int64_t first_kept = num_rows > capacity ? num_rows - capacity : 0;
  const int64_t first_slot = (cursor + first_kept) % capacity;
  for (int64_t kept = team.first_row(); kept < num_rows - first_kept; kept += team.row_step()) {
    const int64_t row = first_kept + kept;
    const int64_t slot = first_slot + kept < capacity ? first_slot + kept : first_slot + kept - capacity;
    int64_t word = 0;
    if (team.leads()) {
      word = take(headers, slot);
      restamp(headers, slot, stamp_of(sequence + row));
    }
    team.sync();
    move_row<Direction::kIntoTable>(view, team, slot, row);
    team.sync();
    if (!team.leads()) continue;
    const int64_t next = word_renewed(word, row / capacity + 1, epoch);
    publish(headers, slot, next);
    int64_t generation = word_generation(next);
    for (int64_t turn = row; turn >= 0; turn -= capacity, --generation) {
      slots[turn] = slot;
      generations[turn] = generation;
    }
  }

  if (!is_last_block(&claim->blocks_done, cells)) return;
  const Note note = begin_note(journal, num_rows, cells);
  for (int64_t row = note.first + threadIdx.x; row < num_rows; row += blockDim.x) {
    put_note(journal, note, row, (cursor + row) % capacity);
  }
  end_note(journal, note, [=](const ControlLock& lock) {
    const int64_t end = cursor + num_rows < capacity ? cursor + num_rows : capacity;
    if (lock.get(kControlLength) < end) lock.set(kControlLength, end);
    lock.claim(kControlWrites, num_rows);
  });
}

struct AppendRowsScratch {
  AppendClaim* claim;
  PieceLeaf* far;

  AppendRowsScratch(Carver& carver, size_t num_leaves)
      : claim(carver.take<AppendClaim>(1)), far(carver.take<PieceLeaf>(far_leaves(num_leaves))) {}
};

inline cudaError_t append_rows_launch(const Headers& headers, const std::vector<Leaf>& leaves, const Journal& journal,
                                      int64_t* slots, int64_t* generations, int64_t num_rows,
                                      const AppendRowsScratch& scratch, cudaStream_t stream) {
  if (num_rows == 0) return cudaSuccess;
  LeafTable table;
  cudaError_t status = leaf_table(leaves, scratch.far, table, stream);
  if (status != cudaSuccess) return status;
  status = launch(append_claim_kernel, 1, 1, 0, stream, journal.control, scratch.claim, headers.capacity, num_rows);
  if (status != cudaSuccess) return status;
  const RowGrid rows = row_grid(table, std::min(num_rows, headers.capacity));
  return launch(rows.block_a_row ? append_rows_kernel<BlockTeam> : append_rows_kernel<LaneTeam>, rows.grid,
                rows.threads, shared_bytes<int64_t>(kNoteCells) + shared_bytes<PieceLeaf>(near_leaves(table)), stream,
                table, headers, journal, scratch.claim, slots, generations, num_rows, rows.lanes);
}

template __global__ void append_rows_kernel<LaneTeam>(const __grid_constant__ LeafTable, Headers, Journal, AppendClaim*,
                                                      int64_t*, int64_t*, int64_t, unsigned);
template __global__ void append_rows_kernel<BlockTeam>(const __grid_constant__ LeafTable, Headers, Journal,
                                                       AppendClaim*, int64_t*, int64_t*, int64_t, unsigned);

}  // namespace torchrb
