#include "config/resolver.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/h5.h"
#include "base/hash.h"
#include "base/schemas.h"
#include "config/reader.h"
#include "method/schema.h"

namespace kvlab::config {

Resolver::Resolver(const Experiment& experiment, const Refuse& refuse,
                   const std::vector<std::string>& axes, const std::vector<Point>& points,
                   Report problem)
    : experiment_(experiment),
      refuse_(refuse),
      axes_(axes),
      points_(points),
      problem_(std::move(problem)),
      whole_models_(has_models(experiment)) {}

const Resolved& Resolver::at(const Place& place, const DatasetInfo& data) {
  const int64_t head_dim = data.head_dim;
  const MethodUse& use = experiment_.methods[place.method];
  const auto& rules = use.recipe.layers;
  const auto rule = std::find_if(rules.begin(), rules.end(), [&](const method::LayerRule& one) {
    return one.first <= place.layer && place.layer <= one.last;
  });
  if (rule != rules.end()) met_layers_.insert({place.method, rule - rules.begin()});
  const auto key = std::tuple(place.method, place.point, rule - rules.begin(), head_dim,
                              data.q_heads, data.kv_heads, data.dtype);
  const auto found = resolved_.find(key);
  if (found != resolved_.end()) return found->second;

  Resolved result;
  result.recipe = at_point(use.recipe, axes_, points_[place.point]);
  if (!whole_models_) result.recipe = method::on_layer(result.recipe, place.layer);
  result.canonical = method::canonical(result.recipe, head_dim);
  result.requested = method::requested(result.recipe, head_dim);
  result.unsupported = method::unsupported(result.recipe, head_dim);
  if (!result.unsupported) {
    result.unsupported = refuse_(experiment_.backend, result.recipe, data);
  }
  result.needs_calibration = method::needs_calibration(result.recipe);
  result.uses_seed = method::uses_seed(result.recipe);
  result.notes = method::notes(result.recipe, head_dim);
  // A whole model's cell holds the recipes of all its layers.
  for (size_t i = 0; i < result.recipe.layers.size(); ++i) {
    const method::LayerRule& one = result.recipe.layers[i];
    if (one.first < data.model_layers)
      met_layers_.insert({place.method, static_cast<ptrdiff_t>(i)});
    const std::string layers = fmt::format("{}-{}", one.first, one.last);
    result.canonical["layers"][layers] = method::canonical(one.recipe, head_dim);
    if (!result.unsupported) result.unsupported = method::unsupported(one.recipe, head_dim);
    if (!result.unsupported) {
      result.unsupported = refuse_(experiment_.backend, one.recipe, data);
    }
    result.needs_calibration |= method::needs_calibration(one.recipe);
    result.uses_seed |= method::uses_seed(one.recipe);
  }
  for (const std::string& axis : axes_) {
    const auto reason = method::no_effect(result.recipe, axis, head_dim);
    if (!reason) continue;
    const std::string note = axis + ": " + *reason;
    if (std::find(result.notes.begin(), result.notes.end(), note) == result.notes.end()) {
      result.notes.push_back(note);
    }
  }
  for (const std::string& side : method::kSides) {
    if (const auto path = method::rotation_file(result.recipe, side)) {
      const RotationSource& source = rotation_source(*path, use.mark);
      result.rotations[side] = source.hash;
      result.learned_from[*path] = source.calibration;
    }
  }
  return resolved_.emplace(key, std::move(result)).first->second;
}

const Resolver::RotationSource& Resolver::rotation_source(const std::string& path,
                                                          const Mark& mark) {
  const auto found = rotation_files_.find(path);
  if (found != rotation_files_.end()) return found->second;
  RotationSource source;
  try {
    const h5::File file = h5::File::open(path);
    const auto schema = file.attribute_or<std::string>("/", "schema", "");
    if (schema != kRotationSchema) {
      problem_(mark, fmt::format("{} is no rotation file: expected schema {}, found '{}'", path,
                                 kRotationSchema, schema));
    }
    source.calibration = file.attribute_or<std::string>("/", "calibration", "");
  } catch (const Error& error) {
    problem_(mark, error.what());
  }
  source.hash = sha256_file(path);
  return rotation_files_.emplace(path, std::move(source)).first->second;
}

std::vector<std::pair<Mark, std::string>> Resolver::idle_layers() const {
  std::vector<std::pair<Mark, std::string>> idle;
  for (size_t method = 0; method < experiment_.methods.size(); ++method) {
    const MethodUse& use = experiment_.methods[method];
    for (size_t i = 0; i < use.recipe.layers.size(); ++i) {
      if (met_layers_.contains({method, static_cast<ptrdiff_t>(i)})) continue;
      const method::LayerRule& rule = use.recipe.layers[i];
      idle.emplace_back(use.mark,
                        fmt::format("'layers' of method '{}': no dataset has a layer in {}-{}",
                                    use.label, rule.first, rule.last));
    }
  }
  return idle;
}

}  // namespace kvlab::config
