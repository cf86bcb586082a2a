// From a test's plain arguments to what the launchers of the ops on rows take.
#pragma once

#include <cstdint>
#include <vector>

#include "bind.h"
#include "cuda/leaf_table.cuh"
#include "cuda/note_rows.cuh"
#include "cuda/scratch.cuh"

namespace torchrb::bound {

using Pointers = std::vector<void*>;
using Numbers = std::vector<int64_t>;

// `strides`: bytes from row to row, for each table.
inline Headers headers_of(const Pointers& tables, const Numbers& strides, int64_t capacity) {
  return {static_cast<unsigned char*>(tables[0]), strides[0], capacity};
}

inline Leaf leaf_of(const Pointers& tables, const Numbers& strides, const Numbers& layout, size_t leaf, void* batch) {
  const int64_t table = layout[3 * leaf], offset = layout[3 * leaf + 1], bytes = layout[3 * leaf + 2];
  auto* data = static_cast<unsigned char*>(tables[table]);
  return {data == nullptr ? nullptr : data + offset, strides[table], static_cast<unsigned char*>(batch), bytes};
}

inline std::vector<Leaf> leaves_of(const Pointers& tables, const Numbers& strides, const Numbers& layout,
                                   const Pointers& batch) {
  std::vector<Leaf> leaves;
  for (size_t i = 0; i < batch.size(); ++i) {
    const Leaf leaf = leaf_of(tables, strides, layout, i, batch[i]);
    if (leaf.bytes > 0) leaves.push_back(leaf);
  }
  return leaves;
}

// Scratch of exactly the size asked for, full of garbage, as an allocator gives it.
template <typename Scratch>
class Scratchpad {
 public:
  template <typename... Sizes>
  explicit Scratchpad(const Sizes&... sizes)
      : memory_((scratch_bytes<Scratch>(sizes...) + sizeof(Line) - 1) / sizeof(Line), kGarbage),
        carver_(reinterpret_cast<unsigned char*>(memory_.data())),
        scratch_(carver_, sizes...) {}
  const Scratch& operator*() const { return scratch_; }

 private:
  struct alignas(16) Line {
    uint64_t words[2];
  };
  static constexpr Line kGarbage{{0xA5A5A5A5A5A5A5A5u, 0x5A5A5A5A5A5A5A5Au}};

  std::vector<Line> memory_;
  Carver carver_;
  Scratch scratch_;
};

}  // namespace torchrb::bound
