#include "bind.h"
#include "cuda/group_advantage.cuh"

SIMT_BIND("float32", torchrb::group_advantage_launch<float>);
SIMT_BIND("float64", torchrb::group_advantage_launch<double>);
