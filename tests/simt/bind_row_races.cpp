// Two batches appended, a batch written, a patch and a read, each on a stream of its own, all at once.
#include <array>

#include "bind_rows.h"
#include "cuda/append_rows.cuh"
#include "cuda/read_rows.cuh"
#include "cuda/update_rows_if.cuh"
#include "cuda/write_rows.cuh"

namespace torchrb::bound {

// `layout` and the values of whole records are of all leaves, those of the patch of the last leaf alone.
// `sizes`: rows of the first batch, the second, the third (written at `write_slots`), the patch, the read.
void race(const Pointers& tables, const Numbers& strides, int64_t capacity, int64_t* control, int64_t* journal_data,
          int64_t journal_size, const Numbers& layout, const Numbers& sizes, const Pointers& first_values,
          int64_t* first_slots, int64_t* first_generations, const Pointers& second_values, int64_t* second_slots,
          int64_t* second_generations, const Pointers& third_values, const int64_t* write_slots,
          int64_t* write_generations, const Pointers& patch_values, const int64_t* patch_slots,
          const int64_t* patch_generations, uint8_t* patch_status, const Pointers& read_leaves,
          const int64_t* read_slots, int64_t* read_generations) {
  const Headers headers = headers_of(tables, strides, capacity);
  const Journal journal{control, journal_data, journal_size};
  const Numbers patch_layout(layout.end() - 3, layout.end());
  const auto stream = [](intptr_t number) { return reinterpret_cast<cudaStream_t>(number); };
  const size_t num = layout.size() / 3;
  const Scratchpad<AppendRowsScratch> first(num), second(num);
  const Scratchpad<WriteRowsScratch> third(sizes[2], num);
  const Scratchpad<UpdateRowsScratch> patch(sizes[3], size_t{1});
  const Scratchpad<ReadRowsScratch> read(num);
  std::array<cudaError_t, 5> status{};
  simt::together([&] {
    status = {
        append_rows_launch(headers, leaves_of(tables, strides, layout, first_values), journal, first_slots,
                           first_generations, sizes[0], *first, stream(1)),
        append_rows_launch(headers, leaves_of(tables, strides, layout, second_values), journal, second_slots,
                           second_generations, sizes[1], *second, stream(2)),
        write_rows_launch(headers, leaves_of(tables, strides, layout, third_values), journal, write_slots,
                          write_generations, sizes[2], true, *third, stream(3)),
        update_rows_if_launch(headers, leaves_of(tables, strides, patch_layout, patch_values), journal, patch_slots,
                              patch_generations, {}, patch_status, sizes[3], *patch, stream(4)),
        read_rows_launch(headers, leaves_of(tables, strides, layout, read_leaves), read_slots, read_generations,
                         sizes[4], *read, stream(5)),
    };
  });
  for (const cudaError_t one : status) {
    if (one != cudaSuccess) throw std::runtime_error("a launch was refused");
  }
}

SIMT_BIND("race", race);

}  // namespace torchrb::bound
