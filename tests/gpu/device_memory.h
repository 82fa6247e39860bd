#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

/// GPU memory of the checks. Fresh memory is poisoned: every byte 0xFF, so that floats in it are
/// NaN.
namespace kvlab::gpu_check {

inline void demand(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    cudaGetLastError();
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
  }
}

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t size) : size_(size) {
    demand(cudaMalloc(reinterpret_cast<void**>(&data_), bytes() + 1), "cudaMalloc");
    demand(cudaMemset(data_, 0xff, bytes()), "cudaMemset");
  }
  explicit DeviceArray(const std::vector<T>& host) : DeviceArray(host.size()) { upload(host); }
  DeviceArray(DeviceArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(other.size_) {}
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  DeviceArray& operator=(DeviceArray&&) = delete;
  ~DeviceArray() { cudaFree(data_); }

  T* data() const { return data_; }
  std::size_t bytes() const { return size_ * sizeof(T); }

  void upload(const std::vector<T>& host) {
    demand(cudaMemcpy(data_, host.data(), bytes(), cudaMemcpyHostToDevice), "copy to the GPU");
  }
  std::vector<T> download() const {
    std::vector<T> host(size_);
    demand(cudaMemcpy(host.data(), data_, bytes(), cudaMemcpyDeviceToHost), "copy from the GPU");
    return host;
  }

 private:
  T* data_ = nullptr;
  std::size_t size_;
};

}  // namespace kvlab::gpu_check
