#pragma once

#include <cstddef>
#include <cstdint>

namespace torch::headeronly {

enum class ScalarType : int32_t {
  Bool,
  Byte,
  Char,
  UInt16,
  Short,
  Half,
  BFloat16,
  UInt32,
  Int,
  Float,
  UInt64,
  Long,
  Double,
};

inline size_t element_size(ScalarType dtype) {
  return dtype < ScalarType::UInt16 ? 1 : dtype < ScalarType::UInt32 ? 2 : dtype < ScalarType::UInt64 ? 4 : 8;
}
inline const char* toString(ScalarType) { return "a dtype"; }

}  // namespace torch::headeronly
