#include "bind.h"
#include "cuda/draw_uniform.cuh"

SIMT_BIND("draw_uniform", torchrb::draw_uniform_launch);
