#pragma once

#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace kvlab::torch_cuda {

/// What kvlab_torch_error says.
std::string& last_error();

/// The stream of all work here. One, as libtorch keeps a workspace for each that it has met.
c10::cuda::CUDAStream own_stream();

/// Frees what libtorch keeps for later, once the GPU has nothing to do.
void clean_up();

/// 0, or 1 with the error kept, whatever `work` throws: the form of every function of this library.
template <class Work>
int guarded(Work&& work) {
  try {
    work();
    clean_up();
    return 0;
  } catch (const c10::Error& error) {
    // Advice follows on more lines.
    const std::string text = error.what_without_backtrace();
    last_error() = text.substr(0, text.find('\n'));
  } catch (const std::exception& error) {
    last_error() = error.what();
  }
  try {
    clean_up();
  } catch (const std::exception&) {
    // The first error is the one that tells.
  }
  return 1;
}

}  // namespace kvlab::torch_cuda
