#pragma once

#include <string>
#include <vector>

#include "twin.h"

/// What the checks compare: formats, and what is done to tokens before they are quantized.
namespace kvlab::gpu_check {

struct Named {
  std::string name;
  Setup setup;
};

SideFormat side(Axis axis, int group, int bits, Zero zero = Zero::value, Type params = Type::f16);
Format format_of(int dim, const SideFormat& key, const SideFormat& value);
WindowRule rule_of(const Format& format, Flush flush, int sink, int recent);

/// The format with no windows.
Named named(const std::string& name, const Format& format);

/// Every width, axis, group, zero and parameter type; rotations, norms and centres.
std::vector<Named> all_setups();

}  // namespace kvlab::gpu_check
