#include "run/torch_error.h"

#include <fmt/format.h>

#include <cstdlib>
#include <string_view>

namespace kvlab::run {

namespace {

/// The GPU's errors go on with advice for programmers.
std::string sentence_of_gpu(const std::string& text) {
  constexpr std::string_view before = "Tried to allocate ";
  const size_t at = text.find(before);
  if (!text.starts_with("CUDA out of memory") || at == std::string::npos) {
    return text.substr(0, text.find('\n'));
  }
  const size_t begin = at + before.size();
  return fmt::format(
      "out of memory on the GPU: {} more were asked for; fewer --jobs or tokens, or a dtype of 16 "
      "bits, need less",
      text.substr(begin, text.find(". ", begin) - begin));
}

}  // namespace

std::string sentence(const c10::Error& error) {
  std::string text = error.what_without_backtrace();
  if (text.starts_with("CUDA")) return sentence_of_gpu(text);
  if (text.find("DefaultCPUAllocator") == std::string::npos) return text;
  constexpr std::string_view before = "tried to allocate ";
  const size_t at = text.find(before);
  const double bytes =
      at == std::string::npos ? 0 : std::strtod(text.c_str() + at + before.size(), nullptr);
  return fmt::format(
      "out of memory: {:.1f} GB more were asked for; fewer --jobs, tokens or probes need less",
      bytes / 1e9);
}

}  // namespace kvlab::run
