// From an op's tensors to what kernels work on: the headers and the leaf table of `core/rows.h`. What could make a
// kernel touch memory that is not its own is checked here, from metadata alone, so it serves every device.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "check.h"
#include "core/control.h"
#include "core/rows.h"
#include "core/score.h"

namespace torchrb {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// A contiguous int64 vector's data.
inline int64_t* int64_data(const Tensor& tensor, const char* op, const char* name) {
  check_tensor(tensor, ScalarType::Long, 1, op, name);
  return static_cast<int64_t*>(tensor.data_ptr());
}

inline int64_t* int64_data(const Tensor& tensor, int64_t numel, const char* op, const char* name) {
  int64_t* data = int64_data(tensor, op, name);
  check_numel(tensor, numel, op, name);
  return data;
}

// An uninitialized contiguous tensor of another one's device. (The dispatcher's `new_empty` costs three times as much.)
inline Tensor empty(torch::headeronly::IntHeaderOnlyArrayRef sizes, ScalarType dtype, const Tensor& like) {
  int32_t device_type, device_index;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &device_type));
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(like.get(), &device_index));
  std::vector<int64_t> strides(sizes.size());
  int64_t step = 1;
  for (size_t i = sizes.size(); i-- > 0; step *= std::max<int64_t>(sizes[i], 1)) strides[i] = step;
  AtenTensorHandle handle;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(
      static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(),
      torch::stable::detail::to<int32_t>(torch::stable::detail::from(dtype)), device_type, device_index, &handle));
  return Tensor(handle);
}

inline Tensor empty_int64(std::initializer_list<int64_t> sizes, const Tensor& like) {
  return empty({sizes.begin(), sizes.size()}, ScalarType::Long, like);
}

// Uninitialized rows of each template's dtype and row shape, on the device of `on`.
inline std::vector<Tensor> empty_rows(const std::vector<Tensor>& templates, int64_t num_rows, const Tensor& on,
                                      const char* op) {
  std::vector<Tensor> leaves;
  leaves.reserve(templates.size());
  for (const Tensor& like : templates) {
    check(like.dim() >= 1, op, "templates must have a row dimension.");
    const auto sizes = like.sizes();
    std::vector<int64_t> shape(sizes.begin(), sizes.end());
    shape[0] = num_rows;
    leaves.push_back(empty({shape.data(), shape.size()}, like.scalar_type(), on));
  }
  return leaves;
}

inline Dtype dtype_of(const Tensor& tensor, const char* op, const char* name) {
  switch (tensor.scalar_type()) {
    case ScalarType::Bool:
      return Dtype::kBool;
    case ScalarType::Byte:
      return Dtype::kUInt8;
    case ScalarType::Char:
      return Dtype::kInt8;
    case ScalarType::UInt16:
      return Dtype::kUInt16;
    case ScalarType::Short:
      return Dtype::kInt16;
    case ScalarType::UInt32:
      return Dtype::kUInt32;
    case ScalarType::Int:
      return Dtype::kInt32;
    case ScalarType::Long:
      return Dtype::kInt64;
    case ScalarType::Half:
      return Dtype::kFloat16;
    case ScalarType::BFloat16:
      return Dtype::kBFloat16;
    case ScalarType::Float:
      return Dtype::kFloat32;
    case ScalarType::Double:
      return Dtype::kFloat64;
    default:
      fail(op, name, " must be of a bool, integer or floating-point dtype that orders, got ",
           torch::headeronly::toString(tensor.scalar_type()), ".");
  }
}

// Part of a row that lies in one piece, for prefetching.
struct Span {
  unsigned char* table;
  int64_t stride, bytes;
};

// The rows of a storage, as one op sees them.
struct Rows {
  Headers headers;
  std::vector<Leaf> leaves;
  std::vector<Span> spans;
  int64_t bytes = 0;  // of all leaves of one row

  TORCHRB_ALWAYS_INLINE void prefetch_row(int64_t slot) const {
    if (!headers.holds(slot)) return;
    for (const Span& span : spans) prefetch(span.table + slot * span.stride, span.bytes);
  }
};

inline void check_table(const Tensor& table, int64_t capacity, const char* op) {
  check_dtype(table, ScalarType::Byte, op, "tables");
  check_dim(table, 2, op, "tables");
  check(table.size(0) == capacity, op, "all tables must have the capacity of the first, ", capacity, ", got ",
        table.size(0), ".");
  check(table.size(1) <= 1 || table.stride(1) == 1, op, "a row of a table must be contiguous, got stride ",
        table.stride(1), ".");
  check(capacity <= 1 || table.stride(0) >= table.size(1), op, "rows of a table must not overlap, got stride ",
        table.stride(0), " for ", table.size(1), " bytes.");
}

inline Headers headers_of(const std::vector<Tensor>& tables, const char* op) {
  check(!tables.empty(), op, "tables must not be empty; the first one holds the headers.");
  const Tensor& table = tables[0];
  check_dim(table, 2, op, "tables");
  check_table(table, table.size(0), op);
  check(table.size(1) >= kHeaderBytes, op, "a row of the first table starts with a header of ", kHeaderBytes,
        " bytes, got rows of ", table.size(1), ".");
  auto* data = static_cast<unsigned char*>(table.data_ptr());
  const bool aligned = reinterpret_cast<uintptr_t>(data) % 8 == 0 && (table.size(0) <= 1 || table.stride(0) % 8 == 0);
  check(aligned, op,
        "headers must be aligned to 8 bytes; make the rows of the first table a multiple of 8 bytes long.");
  return {data, table.stride(0), table.size(0)};
}

// The place of leaf `i` of a layout in the tables; its `batch` is still unset.
inline Leaf leaf_of(const std::vector<Tensor>& tables, const std::vector<int64_t>& layout, size_t i, const char* op) {
  const int64_t table = layout[3 * i], offset = layout[3 * i + 1], bytes = layout[3 * i + 2];
  check(table >= 0 && table < static_cast<int64_t>(tables.size()), op, "layout names table ", table, " of ",
        tables.size(), ".");
  if (tables[0].is_cuda()) check_same_device(tables[table], tables[0], op, "tables");
  check_table(tables[table], tables[0].size(0), op);
  const int64_t width = tables[table].size(1);
  check(offset >= 0 && bytes >= 0 && bytes <= width && offset <= width - bytes, op, "layout places ", bytes,
        " bytes at offset ", offset, " of rows of ", width, ".");
  auto* data = static_cast<unsigned char*>(tables[table].data_ptr());
  return {data == nullptr ? nullptr : data + offset, tables[table].stride(0), nullptr, bytes};
}

inline std::vector<Span> spans_of(const std::vector<Tensor>& tables, const std::vector<int64_t>& layout) {
  constexpr int64_t kGap = 64;  // a shorter one is not worth a second stream
  struct Piece {
    int64_t table, begin, end;
    bool operator<(const Piece& other) const {
      return table < other.table || (table == other.table && begin < other.begin);
    }
  };
  std::vector<Piece> pieces{{0, 0, kHeaderBytes}};
  for (size_t i = 0; i + 2 < layout.size(); i += 3) {
    if (layout[i + 2] > 0) pieces.push_back({layout[i], layout[i + 1], layout[i + 1] + layout[i + 2]});
  }
  std::sort(pieces.begin(), pieces.end());
  std::vector<Span> spans;
  for (size_t i = 0; i < pieces.size();) {
    Piece whole = pieces[i++];
    for (; i < pieces.size() && pieces[i].table == whole.table && pieces[i].begin <= whole.end + kGap; ++i) {
      whole.end = std::max(whole.end, pieces[i].end);
    }
    const Tensor& table = tables[whole.table];
    spans.push_back(
        {static_cast<unsigned char*>(table.data_ptr()) + whole.begin, table.stride(0), whole.end - whole.begin});
  }
  return spans;
}

// The leaf table of `layout`, with `batch[leaf]` on the other side: contiguous, `[num_rows, ...]`.
inline Rows rows_of(const std::vector<Tensor>& tables, const std::vector<int64_t>& layout,
                    const std::vector<Tensor>& batch, int64_t num_rows, const char* op, const char* batch_name) {
  Rows rows{headers_of(tables, op), {}, {}};
  check(layout.size() == 3 * batch.size(), op, "layout must hold three numbers for each of ", batch.size(), ' ',
        batch_name, ", got ", layout.size(), ".");
  rows.leaves.reserve(batch.size());
  const bool on_gpu = tables[0].is_cuda();  // the dispatcher calls a CPU kernel only when every tensor is there
  for (size_t i = 0; i < batch.size(); ++i) {
    const Tensor& values = batch[i];
    Leaf leaf = leaf_of(tables, layout, i, op);
    if (on_gpu) check_same_device(values, tables[0], op, batch_name);
    check_contiguous(values, op, batch_name);
    const int64_t bytes = values.numel() * static_cast<int64_t>(values.element_size());
    check(values.dim() >= 1 && values.size(0) == num_rows && bytes == num_rows * leaf.bytes, op, batch_name, '[', i,
          "] must be ", num_rows, " rows of ", leaf.bytes, " bytes, got ", bytes, " bytes.");
    if (leaf.bytes == 0) continue;
    leaf.batch = static_cast<unsigned char*>(values.data_ptr());
    rows.leaves.push_back(leaf);
    rows.bytes += leaf.bytes;
  }
  rows.spans = spans_of(tables, layout);
  return rows;
}

// `control` and `journal`, of the ops that write.
struct Ledger {
  int64_t* control;
  int64_t* journal;
  int64_t journal_size;
};

inline Ledger ledger_of(const Tensor& control, const Tensor& journal, const std::vector<Tensor>& tables,
                        const char* op) {
  check_same_device(control, tables[0], op, "control");
  check_same_device(journal, tables[0], op, "journal");
  return {int64_data(control, kControlSize, op, "control"), int64_data(journal, op, "journal"), journal.numel()};
}

}  // namespace torchrb
