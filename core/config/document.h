#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/yaml.h"

namespace kvlab::config {

/// An experiment file with its includes pulled in and the edits of the command line applied.
struct Document {
  yaml::Node root;
  std::string source;  // the file's own text
  bool complete =
      true;  // false where some file could not be read at all, so that keys may be missing
};

/// Reads `file`. `include:` (a path or a list of them) pulls in other files: of two that have the
/// same key at the top the later one wins, the including file last. `edits` are KEY=VALUE, see
/// assign().
Document read_document(const std::filesystem::path& file, const std::vector<std::string>& edits,
                       yaml::Problems& problems);

/// Sets the value at a dotted path: keys of maps and indices of lists ("dataset.0.path"). A list of
/// one takes the keys of its item, a map answers to index 0. Below `grid`, `zip`, `set` and `when`
/// the rest of the path is one dotted key, as written in the file. An empty value (or null) removes
/// a key that is there. Returns what is wrong with the path, nothing where the value was set.
std::optional<std::string> assign(yaml::Node& node, const std::string& path, yaml::Node value);

/// A path of an experiment: absolute, or from the experiment's folder, or from where the command
/// runs, or from the folder of the included file it stands in, whichever holds it first. A problem
/// at `node` where none does.
std::filesystem::path resolve_path(const std::string& path, const std::filesystem::path& folder,
                                   const yaml::Node& node, yaml::Problems& problems);

}  // namespace kvlab::config
