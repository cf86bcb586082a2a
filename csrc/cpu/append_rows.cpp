// Writes whole records at the cursor, the oldest overwritten first.
// Each row is taken, written leaf by leaf and published on its own; threads share the rows of the batch.
// Bound by the bytes moved: the batch is read once in order, the ring written once nearly in order. (Stores past the
// cache were measured slower here than fetching the rows ahead, for short and long rows and batches of up to 19 MB.)
#include <torch/csrc/stable/library.h>

#include <tuple>

#include "core/control_lock.h"
#include "core/slot_lock.h"
#include "cpu/parallel.h"
#include "tables.h"

namespace torchrb {
namespace {

constexpr const char* kOp = "append_rows_";
std::tuple<Tensor, Tensor> append_rows(std::vector<Tensor> tables, Tensor control, Tensor journal,
                                       std::vector<int64_t> layout, std::vector<Tensor> values, int64_t num_rows) {
  check(num_rows >= 0, kOp, "num_rows must not be negative, got ", num_rows, ".");
  const Rows rows = rows_of(tables, layout, values, num_rows, kOp, "values");
  const Ledger ledger = ledger_of(control, journal, tables, kOp);
  const int64_t capacity = rows.headers.capacity;
  check(capacity > 0 || num_rows == 0, kOp, "tables have no rows to write to.");
  const Tensor slots_out = empty_int64({num_rows}, control), generations_out = empty_int64({num_rows}, control);
  if (num_rows == 0) return {slots_out, generations_out};
  auto* slots = static_cast<int64_t*>(slots_out.data_ptr());
  auto* generations = static_cast<int64_t*>(generations_out.data_ptr());

  int64_t cursor, sequence, epoch;
  {
    ControlLock lock(ledger.control);
    cursor = lock.get(kControlCursor);
    check(cursor >= 0 && cursor < capacity, kOp, "the cursor must be below the capacity ", capacity, ", got ", cursor,
          ".");
    lock.set(kControlCursor, (cursor + num_rows) % capacity);
    sequence = lock.claim(kControlStamp, num_rows);
    epoch = lock.get(kControlEpoch);
  }
  for (int64_t row = 0, slot = cursor; row < num_rows; ++row, slot = slot + 1 == capacity ? 0 : slot + 1) {
    slots[row] = slot;
  }

  // Where the batch wraps over itself only the last turn is written. A row of turn t is the (t + 1)-th write of its
  // slot, so the earlier rows' generations follow from that of the one that stays.
  const int64_t first_kept = std::max<int64_t>(0, num_rows - capacity);
  visit_rows(rows, slots + first_kept, num_rows - first_kept, [&](int64_t kept) {
    const int64_t row = first_kept + kept, slot = slots[row];
    const int64_t word = take(rows.headers, slot);
    restamp(rows.headers, slot, stamp_of(sequence + row));
    for (const Leaf& leaf : rows.leaves) copy_row(leaf.in_table(slot), leaf.in_batch(row), leaf.bytes);
    const int64_t next = word_renewed(word, row / capacity + 1, epoch);
    publish(rows.headers, slot, next);
    for (int64_t turn = row, generation = word_generation(next); turn >= 0; turn -= capacity, --generation) {
      generations[turn] = generation;
    }
  });

  ControlLock lock(ledger.control);
  lock.note(ledger.journal, ledger.journal_size, num_rows, [&](int64_t row) { return slots[row]; });
  lock.set(kControlLength, std::max(lock.get(kControlLength), std::min(cursor + num_rows, capacity)));
  lock.claim(kControlWrites, num_rows);
  return {slots_out, generations_out};
}

STABLE_TORCH_LIBRARY_IMPL(torchrb, CPU, m) { m.impl("append_rows_", TORCH_BOX(&append_rows)); }

}  // namespace
}  // namespace torchrb
