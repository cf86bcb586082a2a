// Device memory that lives for one call, cut into pieces. An op's `<Op>Scratch` takes its pieces from a `Carver`; made
// once over nothing it tells how much there must be.
#pragma once

#include <cstddef>
#include <cstdint>

namespace torchrb {

class Carver {
 public:
  explicit Carver(unsigned char* memory) : memory_(memory) {}  // aligned to 16 bytes, or null

  template <typename T>
  T* take(int64_t num) {
    constexpr size_t kAlignment = 16;
    used_ = (used_ + kAlignment - 1) / kAlignment * kAlignment;
    T* piece = memory_ != nullptr ? reinterpret_cast<T*>(memory_ + used_) : nullptr;
    used_ += static_cast<size_t>(num) * sizeof(T);
    return piece;
  }
  size_t used() const { return used_; }

 private:
  unsigned char* memory_;
  size_t used_ = 0;
};

template <typename Scratch, typename... Sizes>
inline size_t scratch_bytes(const Sizes&... sizes) {
  Carver measure(nullptr);
  Scratch(measure, sizes...);
  return measure.used();
}

}  // namespace torchrb
