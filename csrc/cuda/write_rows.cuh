// Writes rows at given slots, whole records or parts of records; among equal slots the last row stays.
// Kernels: a thread an entry empties the table of the batch's slots; a thread a row finds the last row of each; then
// some lanes of a warp, or a block where rows are long, are a row that stays; a thread a row tells the generations of
// the others, and the last block notes.
// Bound by the bytes moved, for short rows by the cache lines of the slots and by the launches.
#pragma once

#include "cuda/batch_table.cuh"
#include "cuda/note_rows.cuh"
#include "cuda/row_team.cuh"
#include "cuda/scratch.cuh"
#include "cuda/slot_lock.cuh"

namespace torchrb {

struct WrittenSlot {
  int64_t owner;       // a row of this slot
  int64_t last;        // the last one
  int64_t num;         // how many
  int64_t newest;      // the row that came here last, from which `WriteRowsScratch::older` goes on
  int64_t generation;  // after the last row's write
};

struct WriteClaim {
  int64_t sequence, epoch, blocks_done;
};

struct WriteRowsScratch {
  WriteClaim* claim;
  WrittenSlot* entries;
  int64_t num_entries;
  int64_t* place;  // [num_rows]: each row's entry, -1 where its slot is out of range
  int64_t* older;  // [num_rows]: another row of the same slot, -1 at the end; in no order
  PieceLeaf* far;

  WriteRowsScratch(Carver& carver, int64_t num_rows, size_t num_leaves)
      : claim(carver.take<WriteClaim>(1)),
        entries(carver.take<WrittenSlot>(batch_entries(num_rows))),
        num_entries(batch_entries(num_rows)),
        place(carver.take<int64_t>(num_rows)),
        older(carver.take<int64_t>(num_rows)),
        far(carver.take<PieceLeaf>(far_leaves(num_leaves))) {}
};

static __global__ void write_prepare_kernel(int64_t* control, WriteRowsScratch scratch, int64_t num_rows, bool renew) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = first; i < scratch.num_entries; i += step) scratch.entries[i] = {-1, -1, 0, -1, -1};
  if (first != 0) return;
  *scratch.claim = {0, 0, 0};
  if (!renew) return;
  const ControlLock lock(control);
  lock.lock();
  scratch.claim->sequence = lock.claim(kControlStamp, num_rows);
  scratch.claim->epoch = lock.get(kControlEpoch);
  lock.unlock();
}

static __global__ void write_find_kernel(Headers headers, BatchKeys keys, WriteRowsScratch scratch, int64_t num_rows) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; row < num_rows; row += step) {
    scratch.place[row] = -1;
    if (!headers.holds(keys.slots[row])) continue;
    const int64_t place = find_entry(scratch.entries, scratch.num_entries, keys, row);
    WrittenSlot& entry = scratch.entries[place];
    scratch.place[row] = place;
    fetch_max_relaxed(&entry.last, row);
    fetch_add_relaxed(&entry.num, int64_t{1});
    scratch.older[row] = exchange_acquire(&entry.newest, row);
  }
}

template <typename Team>
__global__ void write_rows_kernel(const __grid_constant__ LeafTable table, Headers headers,
                                  const int64_t* slots,  // [num_rows]
                                  int64_t* generations,  // [num_rows]
                                  WriteRowsScratch scratch, int64_t num_rows, bool renew, unsigned lanes) {
  SharedMemory shared;
  const Team team(lanes, shared.take<int64_t>(1));
  const LeafView view = view_leaves(table, shared.take<PieceLeaf>(near_leaves(table)));
  const int64_t sequence = scratch.claim->sequence, epoch = scratch.claim->epoch;
  for (int64_t row = team.first_row(); row < num_rows; row += team.row_step()) {
    const int64_t slot = slots[row], place = scratch.place[row];
    if (place < 0 || scratch.entries[place].last != row) continue;
    int64_t word = 0;
    if (team.leads()) {
      word = take(headers, slot);
      if (renew) {
        restamp(headers, slot, stamp_of(sequence + row));
      } else {
        mark_patched(headers, slot);
      }
    }
    team.sync();
    move_row<Direction::kIntoTable>(view, team, slot, row);
    team.sync();
    if (!team.leads()) continue;
    const int64_t next = renew ? word_renewed(word, scratch.entries[place].num, epoch) : word;
    publish(headers, slot, next);
    scratch.entries[place].generation = word_generation(next);
    generations[row] = word_generation(next);
  }
}

static __global__ void write_finish_kernel(Journal journal,
                                           const int64_t* slots,  // [num_rows]
                                           int64_t* generations,  // [num_rows]
                                           WriteRowsScratch scratch, int64_t num_rows, bool renew) {
  SharedMemory shared;
  int64_t* cells = shared.take<int64_t>(kNoteCells);
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; row < num_rows; row += step) {
    const int64_t place = scratch.place[row];
    if (place < 0) generations[row] = -1;
    if (place < 0 || scratch.entries[place].last == row) continue;
    // Each earlier row of a slot was one write before, which costs as many steps as there are rows of this slot.
    int64_t generation = scratch.entries[place].generation;
    if (renew) {
      for (int64_t other = scratch.entries[place].newest; other >= 0; other = scratch.older[other]) {
        generation -= other > row ? 1 : 0;
      }
    }
    generations[row] = generation;
  }

  if (!is_last_block(&scratch.claim->blocks_done, cells)) return;
  int64_t reach = 0;
  for (int64_t row = threadIdx.x; renew && row < num_rows; row += blockDim.x) {
    if (scratch.place[row] >= 0 && reach < slots[row] + 1) reach = slots[row] + 1;
  }
  reach = block_max(reach, cells);
  note_rows(
      journal, num_rows, [=](int64_t row) { return scratch.place[row] >= 0; }, [=](int64_t row) { return slots[row]; },
      [=](const ControlLock& lock) {
        if (lock.get(kControlLength) < reach) lock.set(kControlLength, reach);
      },
      cells);
}

inline cudaError_t write_rows_launch(const Headers& headers, const std::vector<Leaf>& leaves, const Journal& journal,
                                     const int64_t* slots, int64_t* generations, int64_t num_rows, bool renew,
                                     const WriteRowsScratch& scratch, cudaStream_t stream) {
  if (num_rows == 0) return cudaSuccess;
  LeafTable table;
  cudaError_t status = leaf_table(leaves, scratch.far, table, stream);
  if (status != cudaSuccess) return status;
  status = launch(write_prepare_kernel, blocks_for(scratch.num_entries, kSlotThreads), kSlotThreads, 0, stream,
                  journal.control, scratch, num_rows, renew);
  if (status != cudaSuccess) return status;
  status = launch(write_find_kernel, blocks_for(num_rows, kSlotThreads), kSlotThreads, 0, stream, headers,
                  BatchKeys{slots, nullptr}, scratch, num_rows);
  if (status != cudaSuccess) return status;
  const RowGrid rows = row_grid(table, num_rows);
  status = launch(rows.block_a_row ? write_rows_kernel<BlockTeam> : write_rows_kernel<LaneTeam>, rows.grid,
                  rows.threads, shared_bytes<int64_t>(1) + shared_bytes<PieceLeaf>(near_leaves(table)), stream, table,
                  headers, slots, generations, scratch, num_rows, renew, rows.lanes);
  if (status != cudaSuccess) return status;
  return launch(write_finish_kernel, slot_blocks(num_rows), kSlotThreads, shared_bytes<int64_t>(kNoteCells), stream,
                journal, slots, generations, scratch, num_rows, renew);
}

template __global__ void write_rows_kernel<LaneTeam>(const __grid_constant__ LeafTable, Headers, const int64_t*,
                                                     int64_t*, WriteRowsScratch, int64_t, bool, unsigned);
template __global__ void write_rows_kernel<BlockTeam>(const __grid_constant__ LeafTable, Headers, const int64_t*,
                                                      int64_t*, WriteRowsScratch, int64_t, bool, unsigned);

}  // namespace torchrb
