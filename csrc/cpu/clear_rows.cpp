// Retires every live record: its generation steps and it lives no more.
// One pass over the headers below the length, beyond which nothing lives; one thread.
// Bound by one cache miss a row.
#include <torch/csrc/stable/library.h>

#include "core/control_lock.h"
#include "core/slot_lock.h"
#include "tables.h"

namespace torchrb {
namespace {

constexpr const char* kOp = "clear_rows_";

void clear_rows(std::vector<Tensor> tables, Tensor control, Tensor journal, bool reset_writes) {
  const Headers headers = headers_of(tables, kOp);
  const Ledger ledger = ledger_of(control, journal, tables, kOp);
  const int64_t length = std::atomic_ref<int64_t>(ledger.control[kControlLength]).load(std::memory_order_acquire);
  std::vector<int64_t> retired;
  for (int64_t slot = 0; slot < std::min(length, headers.capacity); ++slot) {
    int64_t word;
    do {
      word = look(headers, slot).word;
    } while (word_live(word) && !take_if(headers, slot, word));
    if (!word_live(word)) continue;
    publish(headers, slot, word_cleared(word));
    retired.push_back(slot);
  }
  ControlLock lock(ledger.control);
  lock.note(ledger.journal, ledger.journal_size, static_cast<int64_t>(retired.size()),
            [&](int64_t i) { return retired[i]; });
  lock.set(kControlCursor, 0);
  lock.set(kControlLength, 0);
  lock.claim(kControlClears, 1);
  if (reset_writes) lock.set(kControlWrites, 0);
}

STABLE_TORCH_LIBRARY_IMPL(torchrb, CPU, m) { m.impl("clear_rows_", TORCH_BOX(&clear_rows)); }

}  // namespace
}  // namespace torchrb
