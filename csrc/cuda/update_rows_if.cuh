// Writes parts of records whose slot still holds the given generation, and, with versions, whose stored version gives
// way. Kernels: a thread an entry empties the table of the records that the batch names; a thread a row finds the row
// of each that is written if any is; then some lanes of a warp, or a block where rows are long, decide about that row
// and write it while they hold the record; a thread a row tells what became of it, and the last block notes.
// Bound by the cache lines of the slots and by the launches, for long rows by the bytes moved.
#pragma once

#include "core/score.h"
#include "cuda/batch_table.cuh"
#include "cuda/note_rows.cuh"
#include "cuda/row_team.cuh"
#include "cuda/scratch.cuh"
#include "cuda/slot_lock.cuh"

namespace torchrb {

struct RowVersions {
  Leaf leaf;  // no `batch`: there are no versions
  RewardCells cells;
  bool require_newer;

  TORCHRB_HOST_DEVICE bool given() const { return leaf.batch != nullptr; }
  __device__ int64_t incoming(int64_t row) const { return cells.score(leaf.in_batch(row)); }
  // A stored NaN always gives way: it scores below every number.
  __device__ bool accepts(int64_t version, int64_t slot) const {
    const int64_t old = cells.score(leaf.in_table(slot));
    return version > old || (version == old && !require_newer);
  }
};

// A record as the batch names it, by slot and generation. Whether it lives is known when it is taken, not before.
struct NamedRecord {
  int64_t owner;   // a row that names it
  int64_t winner;  // the row that is written if any is, -1 if all have NaN for a version
  int64_t best;    // the highest version, as a score
  int64_t status;  // what became of the winner
};

struct UpdateRowsScratch {
  int64_t* blocks_done;  // [1]
  NamedRecord* entries;
  int64_t num_entries;
  int64_t* place;  // [num_rows]: each row's entry, -1 where its slot is out of range
  PieceLeaf* far;

  UpdateRowsScratch(Carver& carver, int64_t num_rows, size_t num_leaves)
      : blocks_done(carver.take<int64_t>(1)),
        entries(carver.take<NamedRecord>(batch_entries(num_rows))),
        num_entries(batch_entries(num_rows)),
        place(carver.take<int64_t>(num_rows)),
        far(carver.take<PieceLeaf>(far_leaves(num_leaves))) {}
};

static __global__ void update_prepare_kernel(UpdateRowsScratch scratch) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = first; i < scratch.num_entries; i += step) scratch.entries[i] = {-1, -1, INT64_MIN, kStale};
  if (first == 0) *scratch.blocks_done = 0;
}

// Without versions the last row wins, with them the highest; which one that is takes `update_pick_kernel` to know.
static __global__ void update_find_kernel(Headers headers, BatchKeys keys, RowVersions versions,
                                          UpdateRowsScratch scratch, int64_t num_rows) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; row < num_rows; row += step) {
    scratch.place[row] = -1;
    if (!headers.holds(keys.slots[row])) continue;
    const int64_t place = find_entry(scratch.entries, scratch.num_entries, keys, row);
    scratch.place[row] = place;
    if (versions.given()) {
      fetch_max_relaxed(&scratch.entries[place].best, versions.incoming(row));
    } else {
      fetch_max_relaxed(&scratch.entries[place].winner, row);
    }
  }
}

static __global__ void update_pick_kernel(RowVersions versions, UpdateRowsScratch scratch, int64_t num_rows) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; row < num_rows; row += step) {
    if (scratch.place[row] < 0) continue;
    NamedRecord& entry = scratch.entries[scratch.place[row]];
    const int64_t version = versions.incoming(row);
    if (versions.cells.is_number(version) && version == entry.best) fetch_max_relaxed(&entry.winner, row);
  }
}

// Decides about a record and, where the answer is `kUpdated`, leaves it taken and restamped, its word in `word`.
__device__ inline int64_t decide(const Headers& headers, const RowVersions& versions, int64_t slot, int64_t generation,
                                 int64_t winner, int64_t& word) {
  do {
    word = look(headers, slot).word;
    if (!word_holds(word, generation)) return kStale;
    if (winner < 0) return kVersionRejected;
  } while (!take_if(headers, slot, word));
  if (versions.given() && !versions.accepts(versions.incoming(winner), slot)) {
    publish(headers, slot, word);
    return kVersionRejected;
  }
  mark_patched(headers, slot);
  // Before the other leaves, which may name this one too and then have the last word.
  if (versions.given()) {
    copy_row(versions.leaf.in_table(slot), versions.leaf.in_batch(winner), versions.leaf.bytes);
  }
  return kUpdated;
}

template <typename Team>
__global__ void update_rows_kernel(const __grid_constant__ LeafTable table, Headers headers, BatchKeys keys,
                                   RowVersions versions, UpdateRowsScratch scratch, int64_t num_rows, unsigned lanes) {
  SharedMemory shared;
  const Team team(lanes, shared.take<int64_t>(1));
  const LeafView view = view_leaves(table, shared.take<PieceLeaf>(near_leaves(table)));
  for (int64_t row = team.first_row(); row < num_rows; row += team.row_step()) {
    const int64_t place = scratch.place[row];
    if (place < 0) continue;
    NamedRecord& entry = scratch.entries[place];
    const int64_t winner = entry.winner;
    if (row != (winner < 0 ? entry.owner : winner)) continue;
    const int64_t slot = keys.slots[row];
    int64_t word = 0, status = 0;
    if (team.leads()) {
      status = decide(headers, versions, slot, keys.generations[row], winner, word);
      entry.status = status;
    }
    status = team.broadcast(status);
    if (status != kUpdated) continue;
    move_row<Direction::kIntoTable>(view, team, slot, row);
    team.sync();
    if (team.leads()) publish(headers, slot, word);
  }
}

static __global__ void update_finish_kernel(Journal journal,
                                            const int64_t* slots,  // [num_rows]
                                            uint8_t* status,       // [num_rows]
                                            UpdateRowsScratch scratch, int64_t num_rows, bool versioned) {
  SharedMemory shared;
  int64_t* cells = shared.take<int64_t>(kNoteCells);
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; row < num_rows; row += step) {
    const int64_t place = scratch.place[row];
    int64_t told = place < 0 ? int64_t{kStale} : scratch.entries[place].status;
    if (told == kUpdated && scratch.entries[place].winner != row) told = versioned ? kVersionRejected : kSuperseded;
    status[row] = static_cast<uint8_t>(told);
  }

  if (!is_last_block(scratch.blocks_done, cells)) return;
  note_rows(
      journal, num_rows, [=](int64_t row) { return status[row] == kUpdated; }, [=](int64_t row) { return slots[row]; },
      [](const ControlLock&) {}, cells);
}

inline cudaError_t update_rows_if_launch(const Headers& headers, const std::vector<Leaf>& leaves,
                                         const Journal& journal, const int64_t* slots, const int64_t* generations,
                                         const RowVersions& versions, uint8_t* status, int64_t num_rows,
                                         const UpdateRowsScratch& scratch, cudaStream_t stream) {
  if (num_rows == 0) return cudaSuccess;
  LeafTable table;
  const BatchKeys keys{slots, generations};
  const unsigned all = blocks_for(num_rows, kSlotThreads);
  cudaError_t error = leaf_table(leaves, scratch.far, table, stream);
  if (error != cudaSuccess) return error;
  error =
      launch(update_prepare_kernel, blocks_for(scratch.num_entries, kSlotThreads), kSlotThreads, 0, stream, scratch);
  if (error != cudaSuccess) return error;
  error = launch(update_find_kernel, all, kSlotThreads, 0, stream, headers, keys, versions, scratch, num_rows);
  if (error != cudaSuccess) return error;
  if (versions.given()) {
    error = launch(update_pick_kernel, all, kSlotThreads, 0, stream, versions, scratch, num_rows);
    if (error != cudaSuccess) return error;
  }
  const RowGrid rows = row_grid(table, num_rows);
  error = launch(rows.block_a_row ? update_rows_kernel<BlockTeam> : update_rows_kernel<LaneTeam>, rows.grid,
                 rows.threads, shared_bytes<int64_t>(1) + shared_bytes<PieceLeaf>(near_leaves(table)), stream, table,
                 headers, keys, versions, scratch, num_rows, rows.lanes);
  if (error != cudaSuccess) return error;
  return launch(update_finish_kernel, slot_blocks(num_rows), kSlotThreads, shared_bytes<int64_t>(kNoteCells), stream,
                journal, slots, status, scratch, num_rows, versions.given());
}

template __global__ void update_rows_kernel<LaneTeam>(const __grid_constant__ LeafTable, Headers, BatchKeys,
                                                      RowVersions, UpdateRowsScratch, int64_t, unsigned);
template __global__ void update_rows_kernel<BlockTeam>(const __grid_constant__ LeafTable, Headers, BatchKeys,
                                                       RowVersions, UpdateRowsScratch, int64_t, unsigned);

}  // namespace torchrb
