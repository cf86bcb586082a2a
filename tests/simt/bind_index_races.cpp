// A batch appended, a batch written and an index brought up to date, each on a stream of its own, all at once.
#include <array>

#include "bind_group_index_update.cpp"
#include "bind_rows.h"
#include "cuda/append_rows.cuh"
#include "cuda/write_rows.cuh"

namespace torchrb::bound {

// The key is the first leaf, of int64. `sizes`: rows appended, rows written.
void race(const Pointers& tables, const Numbers& strides, int64_t capacity, int64_t* control, int64_t* journal_data,
          int64_t journal_size, const Numbers& layout, const Numbers& sizes, const Pointers& first_values,
          int64_t* first_slots, int64_t* first_generations, const Pointers& second_values, const int64_t* write_slots,
          int64_t* write_generations, int64_t* keys, int32_t* links, int64_t* state, int64_t block_entries,
          int64_t threads) {
  const Headers headers = headers_of(tables, strides, capacity);
  const Journal journal{control, journal_data, journal_size};
  const Leaf key = leaf_of(tables, strides, layout, 0, nullptr);
  const IndexUpdate index{GroupLinks(keys, 1, links, capacity),
                          headers,
                          {key, Dtype::kInt64, 1},
                          state,
                          control,
                          journal_data,
                          journal_size,
                          false,
                          block_entries};
  const auto stream = [](intptr_t number) { return reinterpret_cast<cudaStream_t>(number); };
  const Scratchpad<AppendRowsScratch> first(layout.size() / 3);
  const Scratchpad<WriteRowsScratch> second(sizes[1], layout.size() / 3);
  std::array<cudaError_t, 3> status{};
  simt::together([&] {
    status = {
        append_rows_launch(headers, leaves_of(tables, strides, layout, first_values), journal, first_slots,
                           first_generations, sizes[0], *first, stream(1)),
        write_rows_launch(headers, leaves_of(tables, strides, layout, second_values), journal, write_slots,
                          write_generations, sizes[1], true, *second, stream(2)),
        group_index_update_launch(index, stream(3), static_cast<unsigned>(threads)),
    };
  });
  for (const cudaError_t one : status) {
    if (one != cudaSuccess) throw std::runtime_error("a launch was refused");
  }
}

SIMT_BIND("race", race);

}  // namespace torchrb::bound
