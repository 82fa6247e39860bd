#pragma once

#include <array>
#include <map>
#include <string>

#include "calibrate/torch_file.h"

namespace kvlab::calibrate::torch_file {

/// What torch calls the storages of its types.
struct StorageType {
  const char* name;
  at::ScalarType type;
};
inline constexpr std::array kStorageTypes = {
    StorageType{"FloatStorage", at::kFloat},       StorageType{"HalfStorage", at::kHalf},
    StorageType{"BFloat16Storage", at::kBFloat16}, StorageType{"DoubleStorage", at::kDouble},
    StorageType{"LongStorage", at::kLong},         StorageType{"IntStorage", at::kInt},
};

/// The value of the pickle `folder`data.pkl among the archive's entries. file: its name, for
/// messages. Throws Error as read does.
Value unpickle(const std::string& file, const std::map<std::string, std::string>& entries,
               const std::string& folder);

}  // namespace kvlab::calibrate::torch_file
