#pragma once

#include <string>
#include <vector>

namespace kvlab::method {

/// A method file of core/method/presets, as embedded by the build.
struct PresetText {
  std::string id;
  std::string yaml;
};

const std::vector<PresetText>& preset_texts();

}  // namespace kvlab::method
