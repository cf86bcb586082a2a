// The scratch of an op from torch's allocator, which hands memory on in the order of the stream.
#pragma once

#include <optional>

#include "cuda/scratch.cuh"
#include "tables.h"

namespace torchrb {

// Keep it until everything is launched.
template <typename Scratch>
class ScratchOn {
 public:
  template <typename... Sizes>
  explicit ScratchOn(const Tensor& like, const Sizes&... sizes) {
    const auto bytes = static_cast<int64_t>(scratch_bytes<Scratch>(sizes...));
    if (bytes > 0) memory_ = empty({&bytes, 1}, ScalarType::Byte, like);
    Carver carver(bytes > 0 ? static_cast<unsigned char*>(memory_->data_ptr()) : nullptr);
    scratch_.emplace(carver, sizes...);
  }
  const Scratch& operator*() const { return *scratch_; }

 private:
  std::optional<Tensor> memory_;
  std::optional<Scratch> scratch_;
};

}  // namespace torchrb
