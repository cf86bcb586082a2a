#include "bind_group_index_update.cpp"
#include "cuda/sample_groups.cuh"

namespace {

// Headers and reward cells by their first byte and stride. `numbers` [4 * groups + 2], `rows` [24 * capacity] and
// `sums` [2 * capacity] are scratch.
cudaError_t sample(const int64_t* seed, int64_t* keys, int64_t words, int32_t* links, int64_t capacity,
                   unsigned char* headers, int64_t header_stride, unsigned char* cells, int64_t cell_stride,
                   Dtype dtype, int64_t elements, int64_t groups, int64_t per_group, int64_t strategy, int64_t* slots,
                   int64_t* drawn, int64_t* flags, int32_t* numbers, unsigned char* rows, double* sums,
                   int64_t most_blocks, cudaStream_t stream) {
  const SampleGroups draw{GroupLinks(keys, words, links, capacity),
                          {headers, header_stride, capacity},
                          {cells, cell_stride, nullptr, 0},
                          {dtype, elements},
                          seed,
                          groups,
                          per_group,
                          strategy,
                          slots,
                          drawn,
                          flags,
                          numbers,
                          numbers + groups,
                          numbers + 2 * groups,
                          numbers + 3 * groups,
                          numbers + 4 * groups,
                          reinterpret_cast<Candidate*>(rows),
                          sums};
  return sample_groups_launch(draw, stream, static_cast<unsigned>(most_blocks));
}

}  // namespace

SIMT_BIND("sample", sample);
