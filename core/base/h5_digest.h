#pragma once

#include <string>

#include "base/h5.h"

namespace kvlab::h5 {

/// SHA-256 over all that a group holds: names, types, shapes, values and attributes of everything
/// in it, however it is laid out in the file. The group's own attribute `sha256` is left out.
std::string digest(const File& file, const std::string& group);

/// Stores the group's digest as its attribute `sha256`.
void seal(File& file, const std::string& group);

/// Whether the group has a seal, be it right or not.
bool is_sealed(const File& file, const std::string& group);

/// Whether the group's contents are those that were sealed. False where it has no seal.
bool is_intact(const File& file, const std::string& group);

}  // namespace kvlab::h5
