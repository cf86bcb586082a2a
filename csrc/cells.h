// From an op's tensors to the cells of a row that kernels compare: keys, rewards, versions. What the bindings of every
// device check about them is checked here.
#pragma once

#include "core/key_words.h"
#include "core/score.h"
#include "tables.h"

namespace torchrb {

inline KeyCells key_cells_of(const std::vector<Tensor>& tables, const std::vector<int64_t>& key_leaf,
                             const Tensor& key_template, const Tensor& keys, const char* op) {
  check(key_leaf.size() == 3, op, "key_leaf must hold three numbers, got ", key_leaf.size(), ".");
  KeyCells cells{leaf_of(tables, key_leaf, 0, op), dtype_of(key_template, op, "the group key"), 0};
  cells.num_words = cells.cell.bytes / element_bytes(cells.dtype);
  check(cells.num_words * element_bytes(cells.dtype) == cells.cell.bytes, op,
        "a key must be elements of its dtype, got ", cells.cell.bytes, " bytes of ", element_bytes(cells.dtype),
        "-byte elements.");
  check_dim(keys, 2, op, "keys");
  check(keys.size(1) == cells.num_words, op, "keys must hold ", cells.num_words, " words a row, got ", keys.size(1),
        ".");
  return cells;
}

// A leaf whose values are ranked.
struct RankedLeaf {
  Leaf leaf;
  RewardCells cells;
};

inline RankedLeaf reward_of(const std::vector<Tensor>& tables, const std::vector<int64_t>& reward_leaf,
                            const Tensor& reward_template, const char* op) {
  check(reward_leaf.size() == 3, op, "reward_leaf must hold three numbers, got ", reward_leaf.size(), ".");
  RankedLeaf reward{leaf_of(tables, reward_leaf, 0, op), {dtype_of(reward_template, op, "the reward"), 0}};
  reward.cells.elements = reward.leaf.bytes / element_bytes(reward.cells.dtype);
  check(reward.cells.elements > 0 && reward.leaf.bytes == reward.cells.elements * element_bytes(reward.cells.dtype), op,
        "a reward must be one or several elements of its dtype, got ", reward.leaf.bytes, " bytes of ",
        element_bytes(reward.cells.dtype), "-byte elements.");
  return reward;
}

// The stored versions, and as the leaf's batch the incoming ones.
inline RankedLeaf version_of(const std::vector<Tensor>& tables, const std::vector<int64_t>& version_leaf,
                             const Tensor& version, int64_t num_rows, const char* op) {
  check(version_leaf.size() == 3, op, "version_leaf must hold three numbers, got ", version_leaf.size(), ".");
  check_same_device(version, tables[0], op, "version");
  check_contiguous(version, op, "version");
  check_numel(version, num_rows, op, "version");
  RankedLeaf ranked{leaf_of(tables, version_leaf, 0, op), {dtype_of(version, op, "version"), 1}};
  check(ranked.leaf.bytes == element_bytes(ranked.cells.dtype), op, "version must have the dtype of the stored ",
        "leaf, which has ", ranked.leaf.bytes, " bytes a row, got ", element_bytes(ranked.cells.dtype), ".");
  ranked.leaf.batch = static_cast<unsigned char*>(version.data_ptr());
  return ranked;
}

}  // namespace torchrb
