// Copies rows out, leaf by leaf, with the generation that belongs to the very content copied.
// Each row is copied between two looks at its header, and again if it moved; threads share the rows of the batch.
// Bound by the cache misses of the slots, which are prefetched, and by the bytes moved.
#include <torch/csrc/stable/library.h>

#include <tuple>

#include "core/slot_lock.h"
#include "cpu/parallel.h"
#include "tables.h"

namespace torchrb {
namespace {

constexpr const char* kOp = "read_rows";

int64_t read_row(const Rows& rows, int64_t slot, int64_t row) {
  for (;;) {
    const Look seen = look(rows.headers, slot);
    if (word_count(seen.word) <= 0) return -1;
    for (const Leaf& leaf : rows.leaves) copy_row(leaf.in_batch(row), leaf.in_table(slot), leaf.bytes);
    if (unmoved(rows.headers, slot, seen)) [[likely]]
      return word_generation(seen.word);
  }
}

std::tuple<std::vector<Tensor>, Tensor> read_rows(std::vector<Tensor> tables, std::vector<int64_t> layout,
                                                  std::vector<Tensor> templates, Tensor slots_in) {
  const int64_t* slots = int64_data(slots_in, kOp, "slots");
  const int64_t num_rows = slots_in.numel();
  std::vector<Tensor> leaves = empty_rows(templates, num_rows, slots_in, kOp);
  const Rows rows = rows_of(tables, layout, leaves, num_rows, kOp, "templates");
  const Tensor generations_out = empty_int64({num_rows}, slots_in);
  auto* generations = static_cast<int64_t*>(generations_out.data_ptr());

  visit_rows(rows, slots, num_rows, [&](int64_t row) {
    generations[row] = rows.headers.holds(slots[row]) ? read_row(rows, slots[row], row) : -1;
    if (generations[row] >= 0) return;
    for (const Leaf& leaf : rows.leaves) std::memset(leaf.in_batch(row), 0, static_cast<size_t>(leaf.bytes));
  });
  return {std::move(leaves), generations_out};
}

STABLE_TORCH_LIBRARY_IMPL(torchrb, CPU, m) { m.impl("read_rows", TORCH_BOX(&read_rows)); }

}  // namespace
}  // namespace torchrb
