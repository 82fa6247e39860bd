#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace kvlab {

/// Dotted key to scalar (bool, integer, real, string): the flat form of a recipe or of a part of
/// one. A whole recipe has keys such as "key.codec.bits"; a side of it "codec.bits"; a codec's own
/// "bits".
using Settings = std::map<std::string, nlohmann::json>;

/// The settings below `prefix` (which ends in a dot), with the prefix taken off.
Settings below(const Settings& settings, const std::string& prefix);

/// Typed reads. Throw std::logic_error where the key is missing: the schema fills every default
/// before.
int64_t get_int(const Settings& settings, const std::string& key);
double get_real(const Settings& settings, const std::string& key);
bool get_bool(const Settings& settings, const std::string& key);
std::string get_text(const Settings& settings, const std::string& key);

/// One typed parameter of a part.
struct Param {
  enum class Type {
    boolean,
    integer,
    real,
    choice,
    optional_real,  // a number, or "none"
    text,
  };

  std::string key;  // relative to its owner
  Type type = Type::choice;
  nlohmann::json fallback;
  std::vector<std::string> choices = {};
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
  std::string help = {};
  /// Whether the parameter means anything beside the other settings of its owner's side (for a
  /// codec: of the codec). A parameter that does not is dropped from the resolved recipe. Empty:
  /// always.
  std::function<bool(const Settings&)> used = {};
  /// Left out of the resolved recipe while it has its default: a switch to what one published code
  /// does otherwise, which other methods need not mention.
  bool quiet = false;
  /// A reason why the parameter changes no result although it is used ("no effect by algebra: …"),
  /// given the side's name ("key" or "value"), its settings and the head size. Empty: it does have
  /// an effect.
  std::function<std::optional<std::string>(const std::string& name, const Settings& side,
                                           int64_t head_dim)>
      no_effect = {};
};

/// A named choice within a family ("codec", "rotate", "center", "token_scale"), with its own
/// parameters. Parameters of a codec are read below "codec.", those of the others stand beside the
/// choice itself.
struct Part {
  std::string family;
  std::string name;
  std::string help;
  std::vector<Param> params = {};
  /// Learns on the calibration sample, as the keys below `calibrate` say.
  bool learned = false;
  /// Needs a calibration sample.
  bool calibrated = false;
  /// Draws random numbers: results depend on the cell's seed.
  bool uses_seed = false;
  /// A sentence why these settings of a side cannot be had at this head size; nothing where they
  /// can.
  std::function<std::optional<std::string>(const Settings& side, int64_t head_dim)> refuse = {};
};

}  // namespace kvlab
