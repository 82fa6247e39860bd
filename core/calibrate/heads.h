#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace kvlab::calibrate {

/// Calls fn(head) for all heads, on as many threads as libtorch may use here. Operations within run
/// on one thread each, whatever that number is, so that no sum is taken in another order: what a
/// calibration makes is stored and used by later runs, and learning is chaotic.
template <class Fn>
void for_each_head(int64_t heads, const Fn& fn) {
  const int threads = at::get_num_threads();
  std::atomic<int64_t> next{0};
  std::exception_ptr error;
  std::mutex error_mutex;
  const auto work = [&] {
    at::set_num_threads(1);
    try {
      for (int64_t head = next++; head < heads; head = next++) fn(head);
    } catch (...) {
      const std::lock_guard lock(error_mutex);
      error = std::current_exception();
    }
  };
  std::vector<std::thread> others;
  for (int64_t i = 1; i < std::min<int64_t>(threads, heads); ++i) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
  at::set_num_threads(threads);
  if (error) std::rethrow_exception(error);
}

/// What fn(head) makes of each head, stacked.
template <class Fn>
at::Tensor stack_heads(int64_t heads, const Fn& fn) {
  std::vector<at::Tensor> made(static_cast<size_t>(heads));
  for_each_head(heads, [&](int64_t head) { made[static_cast<size_t>(head)] = fn(head); });
  return at::stack(made);
}

}  // namespace kvlab::calibrate
