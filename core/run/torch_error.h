#pragma once

#include <c10/util/Exception.h>

#include <string>

namespace kvlab::run {

/// What libtorch says of an error, as one sentence: no stack trace, and memory that could not be
/// had with its size.
std::string sentence(const c10::Error& error);

}  // namespace kvlab::run
