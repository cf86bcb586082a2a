#include "bind.h"
#include "cuda/group_index_update.cuh"

namespace {

using namespace torchrb;

// `block_entries`: up to how many one block does alone; `threads`: of a block otherwise. `keys` [capacity, words],
// `links` [size], headers and key cells by their first byte and stride.
cudaError_t update(int64_t* keys, int64_t words, int32_t* links, int64_t capacity, int64_t* state,
                   const int64_t* control, const int64_t* journal, int64_t ring, unsigned char* headers,
                   int64_t header_stride, unsigned char* cells, int64_t cell_stride, int64_t cell_bytes, Dtype dtype,
                   bool rebuild, int64_t block_entries, int64_t threads, cudaStream_t stream) {
  const IndexUpdate update{GroupLinks(keys, words, links, capacity),
                           {headers, header_stride, capacity},
                           {{cells, cell_stride, nullptr, cell_bytes}, dtype, words},
                           state,
                           control,
                           journal,
                           ring,
                           rebuild,
                           block_entries};
  return group_index_update_launch(update, stream, static_cast<unsigned>(threads));
}

void size(int64_t* links_size, int64_t capacity) { *links_size = GroupLinks::size(capacity); }

}  // namespace

SIMT_BIND("update", update);
SIMT_BIND("size", size);
