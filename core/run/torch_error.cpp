#include "run/torch_error.h"

#include <fmt/format.h>

#include <cstdlib>

namespace kvlab::run {

std::string sentence(const c10::Error& error) {
  std::string text = error.what_without_backtrace();
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
