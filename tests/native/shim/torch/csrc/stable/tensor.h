// As much of a tensor as the CPU kernels look at, over memory of its own: enough to compile the kernels' sources, word
// for word, into a program without torch, which a sanitizer can see all of.
#pragma once

#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

using AtenTensorHandle = struct TensorData*;

struct TensorData {
  std::shared_ptr<unsigned char> data;
  std::vector<int64_t> sizes;
  torch::headeronly::ScalarType dtype;
};

namespace torch::headeronly {
struct IntHeaderOnlyArrayRef {
  IntHeaderOnlyArrayRef(const int64_t* data, size_t size) : data_(data), size_(size) {}
  const int64_t* data() const { return data_; }
  size_t size() const { return size_; }
  const int64_t* begin() const { return data_; }
  const int64_t* end() const { return data_ + size_; }
  int64_t operator[](size_t i) const { return data_[i]; }

 private:
  const int64_t* data_;
  size_t size_;
};
}  // namespace torch::headeronly

namespace torch::stable {

class Tensor {
 public:
  explicit Tensor(AtenTensorHandle handle) : data_(handle) {}
  AtenTensorHandle get() const { return data_.get(); }
  void* data_ptr() const { return data_->data.get(); }
  int64_t dim() const { return static_cast<int64_t>(data_->sizes.size()); }
  int64_t size(int64_t dim) const { return data_->sizes[static_cast<size_t>(dim)]; }
  int64_t stride(int64_t dim) const {
    int64_t stride = 1;
    for (int64_t i = dim + 1; i < this->dim(); ++i) stride *= size(i);
    return stride;
  }
  int64_t numel() const {
    int64_t numel = 1;
    for (const int64_t size : data_->sizes) numel *= size;
    return numel;
  }
  headeronly::IntHeaderOnlyArrayRef sizes() const { return {data_->sizes.data(), data_->sizes.size()}; }
  headeronly::ScalarType scalar_type() const { return data_->dtype; }
  size_t element_size() const { return headeronly::element_size(data_->dtype); }
  bool is_contiguous() const { return true; }
  bool is_cpu() const { return true; }
  bool is_cuda() const { return false; }
  int32_t get_device_index() const { return -1; }

 private:
  std::shared_ptr<TensorData> data_;
};

inline Tensor make_tensor(std::vector<int64_t> sizes, headeronly::ScalarType dtype) {
  size_t bytes = headeronly::element_size(dtype);
  for (const int64_t size : sizes) bytes *= static_cast<size_t>(size);
  auto* memory = static_cast<unsigned char*>(std::calloc(bytes + 1, 1));
  return Tensor(new TensorData{{memory, std::free}, std::move(sizes), dtype});
}

namespace detail {
template <typename To, typename From>
To to(From value) {
  return static_cast<To>(value);
}
template <typename From>
From from(From value) {
  return value;
}
}  // namespace detail
}  // namespace torch::stable

inline int aoti_torch_get_device_type(AtenTensorHandle, int32_t* type) { return *type = 0; }
inline int aoti_torch_get_device_index(AtenTensorHandle, int32_t* index) { return *index = 0; }
inline int aoti_torch_empty_strided(int64_t dims, const int64_t* sizes, const int64_t*, int32_t dtype, int32_t, int32_t,
                                    AtenTensorHandle* made) {
  const auto tensor =
      torch::stable::make_tensor({sizes, sizes + dims}, static_cast<torch::headeronly::ScalarType>(dtype));
  *made = new TensorData(*tensor.get());
  return 0;
}
#define STABLE_TORCH_ERROR_CODE_CHECK(call) static_cast<void>(call)
