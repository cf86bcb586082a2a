// Writes rows at given slots, whole records or parts of records; among equal slots the last row stays.
// The rows that stay are found first, then each is taken, written and published; threads share the rows of the batch.
// Bound by the cache misses of the slots, which are prefetched, and by the bytes moved.
#include <torch/csrc/stable/library.h>

#include "core/control_lock.h"
#include "core/slot_chains.h"
#include "core/slot_lock.h"
#include "cpu/parallel.h"
#include "tables.h"

namespace torchrb {
namespace {

constexpr const char* kOp = "write_rows_";

Tensor write_rows(std::vector<Tensor> tables, Tensor control, Tensor journal, std::vector<int64_t> layout,
                  Tensor slots_in, std::vector<Tensor> values, bool renew) {
  const int64_t* slots = int64_data(slots_in, kOp, "slots");
  const int64_t num_rows = slots_in.numel();
  const Rows rows = rows_of(tables, layout, values, num_rows, kOp, "values");
  const Ledger ledger = ledger_of(control, journal, tables, kOp);
  const Tensor generations_out = empty_int64({num_rows}, slots_in);
  auto* generations = static_cast<int64_t*>(generations_out.data_ptr());
  const SlotChains chains(slots, num_rows, rows.headers.capacity);
  int64_t sequence = 0, epoch = 0;
  if (renew) {
    ControlLock lock(ledger.control);
    sequence = lock.claim(kControlStamp, num_rows);
    epoch = lock.get(kControlEpoch);
  }

  visit_rows(rows, slots, num_rows, [&](int64_t row) {
    const int64_t slot = slots[row];
    if (!rows.headers.holds(slot)) {
      generations[row] = -1;
      return;
    }
    if (!chains.is_last(row)) return;
    const int64_t word = take(rows.headers, slot);
    if (renew) {
      restamp(rows.headers, slot, stamp_of(sequence + row));
    } else {
      mark_patched(rows.headers, slot);
    }
    for (const Leaf& leaf : rows.leaves) copy_row(leaf.in_table(slot), leaf.in_batch(row), leaf.bytes);
    const int64_t next = renew ? word_renewed(word, chains.length(row), epoch) : word;
    publish(rows.headers, slot, next);
    // Each earlier row of this slot was one write before.
    int64_t generation = word_generation(next);
    for (int64_t same = row; same >= 0; same = chains.previous(same)) {
      generations[same] = generation;
      generation -= renew ? 1 : 0;
    }
  });

  std::vector<int64_t> written;
  written.reserve(num_rows);
  int64_t reach = 0;
  for (int64_t row = 0; row < num_rows; ++row) {
    if (!rows.headers.holds(slots[row])) continue;
    written.push_back(slots[row]);
    reach = std::max(reach, slots[row] + 1);
  }
  ControlLock lock(ledger.control);
  lock.note(ledger.journal, ledger.journal_size, static_cast<int64_t>(written.size()),
            [&](int64_t i) { return written[i]; });
  if (renew) lock.set(kControlLength, std::max(lock.get(kControlLength), reach));
  return generations_out;
}

STABLE_TORCH_LIBRARY_IMPL(torchrb, CPU, m) { m.impl("write_rows_", TORCH_BOX(&write_rows)); }

}  // namespace
}  // namespace torchrb
