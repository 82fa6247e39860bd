#include "method/schema.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "quant/parts.h"
#include "transform/parts.h"

namespace kvlab::method {
namespace {

const std::string kCodecPrefix = "codec.";

const std::vector<Part>& parts_of(const std::string& family) {
  return family == "codec" ? quant::codec_parts() : transform::transform_parts();
}

std::string choice_key(const std::string& family) {
  return family == "codec" ? "codec.kind" : family;
}

std::string key_of(const std::string& family, const Param& param) {
  return family == "codec" ? kCodecPrefix + param.key : param.key;
}

Param choice_of(const std::string& family) {
  Param choice{.key = choice_key(family), .fallback = nullptr};
  for (const Part& part : parts_of(family)) {
    if (part.family != family) continue;
    if (choice.fallback.is_null()) choice.fallback = part.name;
    choice.choices.push_back(part.name + ":" == kFilePrefix ? kFilePrefix + "PATH" : part.name);
    choice.help += (choice.help.empty() ? "" : "; ") + part.name + ": " + part.help;
  }
  return choice;
}

std::vector<Param> compose_side() {
  std::vector<Param> params;
  for (const std::string& family : kFamilies) {
    params.push_back(choice_of(family));
    for (const Part& part : parts_of(family)) {
      if (part.family != family) continue;
      for (Param param : part.params) {
        param.key = key_of(family, param);
        const bool known = std::any_of(params.begin(), params.end(),
                                       [&](const Param& other) { return other.key == param.key; });
        if (!known) params.push_back(std::move(param));
      }
    }
  }
  return params;
}

const Param* find_in(const std::vector<Param>& params, const std::string& key) {
  const auto found = std::find_if(params.begin(), params.end(),
                                  [&](const Param& param) { return param.key == key; });
  return found == params.end() ? nullptr : &*found;
}

using Type = Param::Type;
constexpr double kMostTokens = 1 << 24;

Param tokens(const char* key, int64_t fallback, const char* help,
             std::function<bool(const Settings&)> used = {}) {
  return {.key = key,
          .type = Type::integer,
          .fallback = fallback,
          .least = 0,
          .most = kMostTokens,
          .help = help,
          .used = std::move(used)};
}

std::function<bool(const Settings&)> when(const char* key, std::vector<std::string> values) {
  return [key, values = std::move(values)](const Settings& settings) {
    return std::find(values.begin(), values.end(), get_text(settings, key)) != values.end();
  };
}

const std::vector<Param>& window_params() {
  const auto dynamic = when("flush", {"dynamic"});
  const auto fixed = [dynamic](const Settings& settings) { return !dynamic(settings); };
  static const std::vector<Param> params = {
      tokens("sink", 0, "first tokens that stay in full precision"),
      tokens("recent", 0, "R, latest tokens that stay in full precision", fixed),
      {.key = "flush",
       .fallback = "block",
       .choices = {"block", "full", "kivi", "ring", "dynamic"},
       .help = "when tokens leave the window (contract section 4.3); dynamic: a block leaves when "
               "`min` tokens are behind it, or `max` where its largest token norm is more than "
               "`tni` times its smallest"},
      {.key = "tni",
       .type = Type::real,
       .fallback = 2.0,
       .least = 1,
       .help = "largest ratio of token norms (over all KV heads) in a block that leaves early",
       .used = dynamic},
      tokens("min", 0, "tokens behind a block of even norms when it leaves", dynamic),
      tokens("max", 128, "tokens behind a block of uneven norms when it leaves", dynamic),
  };
  return params;
}

const std::vector<Param>& protect_params() {
  static const std::vector<Param> params = {
      {.key = "kind",
       .fallback = "none",
       .choices = {"none", "low_norm", "massive", "first"},
       .help = "which tokens of the history stay in full precision: a pool of those with the "
               "smallest L1 norm of the key, or the largest |hidden state| (hidden_absmax of the "
               "capture, else the first ones), or the first ones. Each group's tokens compete with "
               "the pool when they leave the window; those that win do not shape their group's "
               "range, those that lose their place are read by their codes"},
      {.key = "tokens",
       .type = Type::integer,
       .fallback = 5,
       .least = 1,
       .most = 1024,
       .help = "tokens of the pool, one pool a layer and sequence",
       .used = when("kind", {"low_norm", "massive", "first"})},
  };
  return params;
}

const std::vector<Param>& evict_params() {
  static const std::vector<Param> params = {
      {.key = "kind",
       .fallback = "none",
       .choices = {"none", "streaming", "heavy_hitter"},
       .help =
           "which tokens are dropped, for good: none; all but the first and the latest; all but "
           "these and those that got the most attention so far"},
      tokens("sink", 4, "first tokens that are never dropped",
             when("kind", {"streaming", "heavy_hitter"})),
      tokens("recent", 1020, "latest tokens, the own one among them, that are never dropped",
             when("kind", {"streaming", "heavy_hitter"})),
      tokens("heavy", 512, "tokens kept beside these for the attention they got",
             when("kind", {"heavy_hitter"})),
  };
  return params;
}

const std::vector<Param>& calibrate_params() {
  constexpr double kMany = 1 << 20;
  static const std::vector<Param> params = {
      {.key = "tokens",
       .type = Type::integer,
       .fallback = 1024,
       .least = 1,
       .most = 4096,
       .help = "tokens of the calibration set that learning uses"},
      {.key = "steps",
       .type = Type::integer,
       .fallback = 80,
       .least = 0,
       .most = kMany,
       .help = "steps of Adam, each over the whole batch"},
      {.key = "lr",
       .type = Type::real,
       .fallback = 0.02,
       .least = 0,
       .most = 10,
       .help = "learning rate"},
      {.key = "lambda",
       .type = Type::real,
       .fallback = 1.0,
       .least = 0,
       .help = "weight of the output error beside the KL divergence of the weights"},
      {.key = "margin",
       .type = Type::real,
       .fallback = 0.0,
       .least = 0,
       .most = 1,
       .help = "share of the held-out loss that a head must win to leave its base rotation"},
      {.key = "check_every",
       .type = Type::integer,
       .fallback = 20,
       .least = 1,
       .most = kMany,
       .help = "steps between looks at the held-out loss"},
      {.key = "queries",
       .type = Type::integer,
       .fallback = 64,
       .least = 1,
       .most = kMany,
       .help = "query positions of the loss, the last ones of a sequence"},
      {.key = "bits",
       .type = Type::integer,
       .fallback = 2,
       .least = 1,
       .most = 8,
       .help = "bits of the quantizer inside the loss"},
      {.key = "group",
       .type = Type::integer,
       .fallback = 128,
       .least = 1,
       .most = kMany,
       .help = "group of the quantizer inside the loss"},
      {.key = "clip_key",
       .type = Type::optional_real,
       .fallback = 0.96,
       .least = 0,
       .help = "clip ratio for keys inside the loss"},
      {.key = "clip_value",
       .type = Type::optional_real,
       .fallback = 0.92,
       .least = 0,
       .help = "clip ratio for values inside the loss"},
      {.key = "sink",
       .type = Type::integer,
       .fallback = 64,
       .least = 0,
       .most = kMany,
       .help = "first tokens that the loss keeps in full precision"},
      {.key = "recent",
       .type = Type::integer,
       .fallback = 256,
       .least = 0,
       .most = kMany,
       .help = "latest tokens that the loss keeps in full precision"},
  };
  return params;
}

}  // namespace

const std::vector<Param>& side_params() {
  static const std::vector<Param> params = compose_side();
  return params;
}

const std::vector<Param>& section_params(const std::string& section) {
  if (section == "window") return window_params();
  if (section == "protect") return protect_params();
  if (section == "evict") return evict_params();
  return calibrate_params();
}

std::vector<std::string> used_in_section(const std::string& section, const Settings& settings) {
  std::vector<std::string> keys;
  for (const Param& param : section_params(section)) {
    if (!param.used || param.used(settings)) keys.push_back(param.key);
  }
  return keys;
}

const Param* find_param(const std::string& key) {
  const size_t dot = key.find('.');
  if (dot == std::string::npos) return nullptr;
  const std::string owner = key.substr(0, dot);
  const std::string rest = key.substr(dot + 1);
  for (const std::string& section : kSections) {
    if (owner == section) return find_in(section_params(section), rest);
  }
  if (owner == "key" || owner == "value") return find_in(side_params(), rest);
  return nullptr;
}

const Part& selected(const Settings& side, const std::string& family) {
  std::string name = get_text(side, choice_key(family));
  if (name.starts_with(kFilePrefix)) name.resize(kFilePrefix.size() - 1);
  for (const Part& part : parts_of(family)) {
    if (part.family == family && part.name == name) return part;
  }
  throw std::logic_error("no part '" + name + "' in family '" + family + "'");
}

const Param* declared(const Settings& side, const std::string& key) {
  for (const std::string& family : kFamilies) {
    for (const Param& param : selected(side, family).params) {
      if (key_of(family, param) == key) return &param;
    }
  }
  return nullptr;
}

std::vector<std::string> used_keys(const Settings& side) {
  const Settings codec = below(side, kCodecPrefix);
  if (quant::is_passthrough(codec)) return {choice_key("codec")};
  std::vector<std::string> keys;
  for (const std::string& family : kFamilies) {
    keys.push_back(choice_key(family));
    for (const Param& param : selected(side, family).params) {
      const bool used = !param.used || param.used(family == "codec" ? codec : side);
      if (used) keys.push_back(key_of(family, param));
    }
  }
  return keys;
}

Settings default_settings() {
  Settings settings;
  for (const Param& param : side_params()) {
    for (const std::string& side : kSides) settings[side + "." + param.key] = param.fallback;
  }
  for (const std::string& section : kSections) {
    for (const Param& param : section_params(section)) {
      settings[section + "." + param.key] = param.fallback;
    }
  }
  return settings;
}

}  // namespace kvlab::method
