// Each kernel twice: as "<name>" with its bug, and as "<name>_sound".
#include "bind.h"
#include "faults.cuh"
#include "races.cuh"

namespace planted {
namespace {

template <bool sound>
cudaError_t turn_block(unsigned grid, unsigned block, const int* values, int* turned) {
  return launch(missing_syncthreads<sound>, grid, block, shared_bytes<int>(block), nullptr, values, turned);
}
template <bool sound>
cudaError_t turn_warp(unsigned grid, unsigned block, const int* values, int* turned) {
  return launch(missing_syncwarp<sound>, grid, block, shared_bytes<int>(block), nullptr, values, turned);
}
template <bool sound>
cudaError_t turn_by_shuffle(unsigned grid, unsigned block, const int* values, int* turned) {
  return launch(shuffle_as_barrier<sound>, grid, block, shared_bytes<int>(block), nullptr, values, turned);
}
template <bool sound>
cudaError_t sum_up(unsigned grid, unsigned block, const int* values, int* sums, unsigned* tickets, int* total) {
  return launch(missing_fence<sound>, grid, block, 0, nullptr, values, sums, tickets, total);
}
template <bool sound>
cudaError_t sum_up_unread(unsigned grid, unsigned block, const int* values, int* sums, unsigned* tickets, int* total) {
  return launch(missing_fence_of_the_reader<sound>, grid, block, 0, nullptr, values, sums, tickets, total);
}
template <bool sound>
cudaError_t count_blocks(unsigned grid, unsigned block, int* count) {
  return launch(plain_counter<sound>, grid, block, 0, nullptr, count);
}
template <bool sound>
cudaError_t claim(unsigned grid, unsigned block, int* words, int* won) {
  return launch(check_then_act<sound>, grid, block, 0, nullptr, words, won);
}
template <bool sound>
cudaError_t guarded(unsigned grid, unsigned block, int* lock, int* number) {
  return launch(lock_given_back_too_early<sound>, grid, block, 0, nullptr, lock, number);
}
template <bool sound>
void read_while_written(unsigned readers, int* word, void* row, void* read) {
  simt::together([&] {
    auto* const at = static_cast<ulonglong2*>(row);
    launch(write_row, 1, 1, 0, reinterpret_cast<cudaStream_t>(1), word, at);
    launch(torn_read<sound>, 1, readers, 0, reinterpret_cast<cudaStream_t>(2), word, at,
           static_cast<ulonglong2*>(read));
  });
}
template <bool sound>
void write_then_double(unsigned block, int* values, int* doubled) {
  simt::together([&] {
    launch(write_values, 1, block, 0, reinterpret_cast<cudaStream_t>(1), values);
    launch(double_values, 1, block, 0, reinterpret_cast<cudaStream_t>(sound ? 1 : 2), values, doubled);
  });
}

template <bool sound>
cudaError_t shift(unsigned block, const int* values, int* out) {
  return launch(shared_out_of_bounds<sound>, 1, block, 2 * shared_bytes<int>(block), nullptr, values, out);
}
template <bool sound>
cudaError_t copy_rows(unsigned rows, const unsigned char* from, unsigned char* to, int64_t bytes) {
  return launch(misaligned_copy<sound>, 1, rows, 0, nullptr, from, to, bytes);
}
template <bool sound>
cudaError_t copy_some(unsigned block, const int* values, int* out, int n) {
  return launch(global_out_of_bounds<sound>, 1, block, 0, nullptr, values, out, n);
}
template <bool sound>
cudaError_t carve(unsigned block, int* out) {
  return launch(carved_too_much<sound>, 1, block, shared_bytes<int>(block), nullptr, out);
}
template <bool sound>
cudaError_t diverge(unsigned block, int* out) {
  return launch(divergent_barrier<sound>, 1, block, 0, nullptr, out);
}
template <bool sound>
cudaError_t vote(unsigned block, unsigned* out) {
  return launch(not_in_the_mask<sound>, 1, block, 0, nullptr, out);
}
template <bool sound>
cudaError_t wait_in_vain(unsigned block, int* out) {
  return launch(lanes_that_never_come<sound>, 1, block, 0, nullptr, out);
}
template <bool sound>
cudaError_t sum_of_warp(unsigned block, int* out, int n) {
  return launch(reads_a_lane_that_left<sound>, 1, block, 0, nullptr, out, n);
}
template <bool sound>
cudaError_t nap(unsigned block, int* word) {
  return launch(naps_for_ever<sound>, 1, block, 0, nullptr, word);
}

}  // namespace
}  // namespace planted

#define BOTH(name, launcher)                  \
  SIMT_BIND(#name, planted::launcher<false>); \
  SIMT_BIND(#name "_sound", planted::launcher<true>)

BOTH(missing_syncthreads, turn_block);
BOTH(missing_syncwarp, turn_warp);
BOTH(shuffle_as_barrier, turn_by_shuffle);
BOTH(missing_fence, sum_up);
BOTH(missing_fence_of_the_reader, sum_up_unread);
BOTH(plain_counter, count_blocks);
BOTH(check_then_act, claim);
BOTH(lock_given_back_too_early, guarded);
BOTH(torn_read, read_while_written);
BOTH(wrong_stream, write_then_double);
BOTH(shared_out_of_bounds, shift);
BOTH(misaligned_copy, copy_rows);
BOTH(global_out_of_bounds, copy_some);
BOTH(carved_too_much, carve);
BOTH(divergent_barrier, diverge);
BOTH(not_in_the_mask, vote);
BOTH(lanes_that_never_come, wait_in_vain);
BOTH(reads_a_lane_that_left, sum_of_warp);
BOTH(naps_for_ever, nap);
