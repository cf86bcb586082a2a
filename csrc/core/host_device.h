// One source for the host and the device: what is marked compiles for both under nvcc and is plain C++ under g++.
#pragma once

#if defined(__CUDACC__)
#define TORCHRB_HOST_DEVICE __host__ __device__
#else
#define TORCHRB_HOST_DEVICE
#endif

#define TORCHRB_ALWAYS_INLINE [[gnu::always_inline]] inline
