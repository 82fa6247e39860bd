#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace kvlab::kernels::cpu {

/// Does items 0 … items − 1 on up to `threads` threads, the caller's among them. Every thread gets
/// a worker of its own from make_worker(), so that scratch memory is the worker's. Which thread
/// does an item must not matter for its result. The first exception is thrown again here.
template <class MakeWorker>
void parallel_for(std::int64_t items, int threads, MakeWorker make_worker) {
  const auto count = static_cast<int>(std::clamp<std::int64_t>(items, 1, threads));
  if (count == 1) {
    auto worker = make_worker();
    for (std::int64_t item = 0; item < items; ++item) worker(item);
    return;
  }
  std::atomic<std::int64_t> next{0};
  std::exception_ptr failure;
  std::mutex failing;
  const auto work = [&] {
    try {
      auto worker = make_worker();
      for (std::int64_t item = next++; item < items; item = next++) worker(item);
    } catch (...) {
      const std::lock_guard lock(failing);
      if (!failure) failure = std::current_exception();
      next = items;
    }
  };
  {
    std::vector<std::jthread> others;
    others.reserve(static_cast<size_t>(count) - 1);
    for (int i = 1; i < count; ++i) others.emplace_back(work);
    work();
  }
  if (failure) std::rethrow_exception(failure);
}

/// Threads worth starting for so many elements: a thread costs about as much as some ten thousand
/// of them.
inline int useful_threads(std::int64_t elements, int threads) {
  return static_cast<int>(std::clamp<std::int64_t>(elements / 32768, 1, threads));
}

}  // namespace kvlab::kernels::cpu
