#include "bind.h"
#include "cuda/draw_permuted.cuh"

SIMT_BIND("draw_permuted", torchrb::draw_permuted_launch);
