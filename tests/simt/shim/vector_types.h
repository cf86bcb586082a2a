// CUDA's vector types, with their alignment.
#pragma once

struct uint3 {
  unsigned x, y, z;
};

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

#define SIMT_VECTOR_2(name, type)         \
  struct alignas(2 * sizeof(type)) name { \
    type x, y;                            \
  };                                      \
  inline name make_##name(type x, type y) { return {x, y}; }
#define SIMT_VECTOR_4(name, type)                                 \
  struct alignas(sizeof(type) < 4 ? 4 * sizeof(type) : 16) name { \
    type x, y, z, w;                                              \
  };                                                              \
  inline name make_##name(type x, type y, type z, type w) { return {x, y, z, w}; }

SIMT_VECTOR_2(char2, signed char)
SIMT_VECTOR_2(uchar2, unsigned char)
SIMT_VECTOR_2(short2, short)
SIMT_VECTOR_2(ushort2, unsigned short)
SIMT_VECTOR_2(int2, int)
SIMT_VECTOR_2(uint2, unsigned)
SIMT_VECTOR_2(longlong2, long long)
SIMT_VECTOR_2(ulonglong2, unsigned long long)
SIMT_VECTOR_2(float2, float)
SIMT_VECTOR_2(double2, double)
SIMT_VECTOR_4(uchar4, unsigned char)
SIMT_VECTOR_4(ushort4, unsigned short)
SIMT_VECTOR_4(int4, int)
SIMT_VECTOR_4(uint4, unsigned)
SIMT_VECTOR_4(float4, float)

#undef SIMT_VECTOR_2
#undef SIMT_VECTOR_4
