#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"

/// Strict reading of the YAML files that users write: every value knows its place, mistakes are
/// collected and not thrown, so that a file's mistakes can be shown all at once.
namespace kvlab::yaml {

using Problems = std::vector<Problem>;

struct Member;

/// A value of a YAML document with the place it was written at.
struct Node {
  enum class Kind { null, scalar, list, map };

  Kind kind = Kind::null;
  /// A scalar by the YAML 1.2 core schema: bool, int64, double or string; a quoted one is always a
  /// string.
  nlohmann::json value;
  std::string text;  // a scalar as written, without quotes
  bool quoted = false;
  std::vector<Node> items;      // of a list
  std::vector<Member> members;  // of a map, in the order written, no key twice
  std::string file;
  int line = 0;  // from 1; 0 where there is no place, as in a command-line edit
  int column = 0;

  bool is_map() const { return kind == Kind::map; }
  bool is_list() const { return kind == Kind::list; }
  bool is_scalar() const { return kind == Kind::scalar; }
  /// The value of `key`, or nullptr (also where this is no map).
  const Node* find(const std::string& key) const;
};

/// One entry of a map; line and column are those of the key.
struct Member {
  std::string key;
  Node value;
  int line = 0;
  int column = 0;
};

/// Reads one document. `file` is the name shown in messages. Syntax errors, repeated keys and
/// aliases to unfinished values become problems; what could be read is returned.
Node parse(const std::string& text, const std::string& file, Problems& problems);

/// The whole text of a file; a problem where it cannot be read.
std::string read_file(const std::filesystem::path& path, Problems& problems);

/// The tree as YAML text that reads back to the same values.
std::string to_text(const Node& node);

/// The node as JSON.
nlohmann::json to_json(const Node& node);

/// Adds a problem at the node's place.
void report(Problems& problems, const Node& node, const std::string& message);

/// What a value is, for "…, found X": "'abc'", "3", "a list", "a map", "nothing".
std::string describe(const Node& node);
std::string describe(const nlohmann::json& value);

/// Typed reads of a scalar; `what` names the value in the problem that is reported where the type
/// or range is wrong.
std::optional<std::string> read_text(const Node& node, const std::string& what, Problems& problems);
std::optional<bool> read_bool(const Node& node, const std::string& what, Problems& problems);
std::optional<double> read_real(const Node& node, const std::string& what, Problems& problems);
std::optional<int64_t> read_int(const Node& node, const std::string& what, Problems& problems,
                                int64_t least = std::numeric_limits<int64_t>::min(),
                                int64_t most = std::numeric_limits<int64_t>::max());

/// " (did you mean 'x'?)" or, where nothing is near, " (valid: a, b, c)"; of many the nearest few.
std::string hint(const std::string& word, const std::vector<std::string>& valid);

/// Strict access to the keys of one map: whatever was not asked for is unknown.
class Fields {
 public:
  /// `what` names the map in messages. A problem where `node` is no map; every get() is then
  /// nullptr.
  Fields(const Node& node, std::string what, Problems& problems);

  /// The value of `key`, or nullptr. The key is valid from now on.
  const Node* get(const std::string& key);

  /// Reports each key that no get() asked for, with the nearest valid one, or with what `explain`
  /// has to say on it.
  void finish(const std::function<std::string(const std::string& key)>& explain = {});

 private:
  const Node& node_;
  std::string what_;
  Problems& problems_;
  std::vector<std::string> valid_;
};

}  // namespace kvlab::yaml
