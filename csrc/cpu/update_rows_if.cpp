// Writes parts of records whose slot still holds the given generation, and, with versions, whose stored version gives
// way. Rows of one slot form a chain. Each chain is decided and its winner written while its record is held, so a
// decision is never about another record than the one written; threads share the chains of the batch. Bound by the
// cache misses of the slots, which are prefetched, and by the bytes moved.
#include <torch/csrc/stable/library.h>

#include <optional>

#include "cells.h"
#include "core/control_lock.h"
#include "core/score.h"
#include "core/slot_chains.h"
#include "core/slot_lock.h"
#include "cpu/parallel.h"
#include "tables.h"

namespace torchrb {
namespace {

constexpr const char* kOp = "update_rows_if_";

struct Versions {
  Leaf leaf;
  RewardCells cells;
  bool require_newer;

  int64_t incoming(int64_t row) const { return cells.score(leaf.in_batch(row)); }
  int64_t stored(int64_t slot) const { return cells.score(leaf.in_table(slot)); }
  // A stored NaN always gives way: it scores below every number.
  bool accepts(int64_t version, int64_t slot) const {
    const int64_t old = stored(slot);
    return version > old || (version == old && !require_newer);
  }
};

struct Update {
  const Rows& rows;
  const SlotChains& chains;
  const int64_t* slots;
  const int64_t* generations;
  const std::optional<Versions>& versions;
  uint8_t* status;

  // The row of a chain that is written if any is: the last one, or the last of the highest version. The others get the
  // status of a row that lost. -1: no row of the chain has a chance.
  int64_t find_winner(int64_t last_row, int64_t word) const {
    int64_t winner = -1, highest = 0;
    for (int64_t row = last_row; row >= 0; row = chains.previous(row)) {
      if (!word_holds(word, generations[row])) {
        status[row] = kStale;
        continue;
      }
      status[row] = versions ? kVersionRejected : kSuperseded;
      if (!versions) {
        if (winner < 0) winner = row;
        continue;
      }
      const int64_t version = versions->incoming(row);
      if (versions->cells.is_number(version) && (winner < 0 || version > highest)) {
        winner = row;
        highest = version;
      }
    }
    return winner;
  }

  void run(int64_t last_row) const {
    const int64_t slot = slots[last_row];
    int64_t word, winner;
    do {
      word = look(rows.headers, slot).word;
      winner = find_winner(last_row, word);
      if (winner < 0) return;
    } while (!take_if(rows.headers, slot, word));

    if (!versions || versions->accepts(versions->incoming(winner), slot)) {
      mark_patched(rows.headers, slot);
      if (versions) {
        copy_row(versions->leaf.in_table(slot), versions->leaf.in_batch(winner), versions->leaf.bytes);
      }
      for (const Leaf& leaf : rows.leaves) copy_row(leaf.in_table(slot), leaf.in_batch(winner), leaf.bytes);
      status[winner] = kUpdated;
    }
    publish(rows.headers, slot, word);
  }
};

std::optional<Versions> versions_of(const std::vector<Tensor>& tables, const std::vector<int64_t>& version_leaf,
                                    const std::optional<Tensor>& version, int64_t num_rows, bool require_newer) {
  if (!version.has_value()) return std::nullopt;
  const auto [leaf, cells] = version_of(tables, version_leaf, *version, num_rows, kOp);
  return Versions{leaf, cells, require_newer};
}

Tensor update_rows_if(std::vector<Tensor> tables, Tensor control, Tensor journal, std::vector<int64_t> layout,
                      Tensor slots_in, Tensor generations_in, std::vector<Tensor> values,
                      std::vector<int64_t> version_leaf, std::optional<Tensor> version, bool require_newer) {
  const int64_t* slots = int64_data(slots_in, kOp, "slots");
  const int64_t num_rows = slots_in.numel();
  const int64_t* generations = int64_data(generations_in, num_rows, kOp, "generations");
  Rows rows = rows_of(tables, layout, values, num_rows, kOp, "values");
  const Ledger ledger = ledger_of(control, journal, tables, kOp);
  const auto versions = versions_of(tables, version_leaf, version, num_rows, require_newer);
  if (versions) {
    layout.insert(layout.end(), version_leaf.begin(), version_leaf.end());
    rows.spans = spans_of(tables, layout);
  }
  const Tensor status_out = empty({&num_rows, 1}, ScalarType::Byte, slots_in);
  auto* status = static_cast<uint8_t*>(status_out.data_ptr());

  const SlotChains chains(slots, num_rows, rows.headers.capacity);
  const Update update{rows, chains, slots, generations, versions, status};
  visit_rows(rows, slots, num_rows, [&](int64_t row) {
    if (!rows.headers.holds(slots[row])) {
      status[row] = kStale;
    } else if (chains.is_last(row)) {
      update.run(row);
    }
  });

  std::vector<int64_t> written;
  written.reserve(num_rows);
  for (int64_t row = 0; row < num_rows; ++row) {
    if (status[row] == kUpdated) written.push_back(slots[row]);
  }
  ControlLock(ledger.control)
      .note(ledger.journal, ledger.journal_size, static_cast<int64_t>(written.size()),
            [&](int64_t i) { return written[i]; });
  return status_out;
}

STABLE_TORCH_LIBRARY_IMPL(torchrb, CPU, m) { m.impl("update_rows_if_", TORCH_BOX(&update_rows_if)); }

}  // namespace
}  // namespace torchrb
