#include "data/capture_info.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/names.h"
#include "base/schemas.h"
#include "data/file_hash.h"

namespace kvlab::data {
namespace {

constexpr std::string_view kFamily = "kvlab.capture/";
constexpr std::string_view kLayerPrefix = "layer_";

using Shape = std::vector<int64_t>;

template <class... Args>
[[noreturn]] void fail(const h5::File& file, const std::string& object,
                       fmt::format_string<Args...> text, Args&&... args) {
  throw Error(fmt::format("{}: {} {}", file.path().string(), object,
                          fmt::format(text, std::forward<Args>(args)...)));
}

std::string dimensions(const Shape& shape) { return counted(std::ssize(shape), "dimension"); }

std::string text_of(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

void check_schema(const h5::File& file) {
  if (!file.has_attribute("/", "schema")) {
    fail(file, "/", "has no attribute 'schema', expected '{}': not a capture", kCaptureSchema);
  }
  const auto schema = file.attribute<std::string>("/", "schema");
  if (schema == kCaptureSchema) return;
  if (schema.starts_with(kFamily)) {
    fail(file, "/", "has schema '{}', this program reads version '{}' only", schema,
         kCaptureSchema);
  }
  fail(file, "/", "has schema '{}', expected '{}'", schema, kCaptureSchema);
}

int64_t positive_attribute(const h5::File& file, const std::string& name) {
  if (!file.has_attribute("/", name)) {
    fail(file, "/", "has no attribute '{}', expected a positive integer", name);
  }
  const auto value = file.attribute<int64_t>("/", name);
  if (value < 1) fail(file, "/", "has {} = {}, expected a positive integer", name, value);
  return value;
}

void check_rope(const h5::File& file) {
  if (!file.has_attribute("/", "rope")) fail(file, "/", "has no attribute 'rope', expected 'post'");
  const auto rope = file.attribute<std::string>("/", "rope");
  if (rope != "post") {
    fail(file, "/", "has rope = '{}', expected 'post': q and k must be stored after RoPE", rope);
  }
}

/// Shape of an integer dataset of the given rank, none of whose sizes is 0.
Shape integer_shape(const h5::File& file, const std::string& dataset, size_t rank,
                    std::string_view form) {
  if (!file.exists(dataset)) fail(file, dataset, "is missing, expected int32 {}", form);
  const h5::Info info = file.info(dataset);
  using Kind = h5::Element::Kind;
  if (info.element.kind != Kind::integer && info.element.kind != Kind::unsigned_integer) {
    fail(file, dataset, "holds {}, expected int32 {}", info.element.name(), form);
  }
  if (info.shape.size() != rank) {
    fail(file, dataset, "has {}, expected {}: {}", dimensions(info.shape), rank, form);
  }
  if (info.count() == 0) {
    fail(file, dataset, "has shape {}, expected at least one entry", text_of(info.shape));
  }
  return info.shape;
}

std::vector<int64_t> read_positions(const h5::File& file, int64_t tokens) {
  const std::string name = "/positions";
  integer_shape(file, name, 1, "[P]");
  std::vector<int64_t> positions = file.read<int64_t>(name);
  for (size_t i = 0; i < positions.size(); ++i) {
    if (positions[i] < 0 || positions[i] >= tokens) {
      fail(file, name, "has {} at index {}, expected 0 to {} (T − 1 of /tokens)", positions[i], i,
           tokens - 1);
    }
    if (i > 0 && positions[i] <= positions[i - 1]) {
      fail(file, name, "has {} after {} at index {}, expected ascending positions", positions[i],
           positions[i - 1], i);
    }
  }
  return positions;
}

void check_shape(const h5::File& file, const std::string& dataset, const Shape& expected,
                 std::string_view form) {
  if (!file.exists(dataset)) fail(file, dataset, "is missing, expected {}", form);
  const Shape found = file.info(dataset).shape;
  if (found.size() != expected.size()) {
    fail(file, dataset, "has {}, expected {}: {} = {}", dimensions(found), expected.size(), form,
         text_of(expected));
  }
  if (found != expected) {
    fail(file, dataset,
         "has shape {}, expected {} = {}, as the attributes, /tokens and /positions say",
         text_of(found), form, text_of(expected));
  }
}

/// True where the layer holds W_O.
bool check_w_o(const h5::File& file, const std::string& dataset, const CaptureInfo& info) {
  if (!file.exists(dataset)) return false;
  const Shape shape = file.info(dataset).shape;
  const int64_t columns = info.q_heads * info.head_dim;
  if (shape.size() != 2) {
    fail(file, dataset, "has {}, expected 2: [D, Hq·d]", dimensions(shape));
  }
  if (shape[0] < 1 || shape[1] != columns) {
    fail(file, dataset, "has shape {}, expected [D, Hq·d] with Hq·d = {}", text_of(shape), columns);
  }
  stored_type(file, dataset);
  return true;
}

std::optional<int64_t> layer_number(std::string_view group) {
  group.remove_prefix(kLayerPrefix.size());
  int64_t number = 0;
  const auto [end, code] = std::from_chars(group.begin(), group.end(), number);
  if (code != std::errc() || end != group.end() || number < 0) return std::nullopt;
  return number;
}

std::vector<int64_t> find_layers(const h5::File& file) {
  std::vector<int64_t> layers;
  for (const std::string& name : file.children("/")) {
    if (!name.starts_with(kLayerPrefix)) continue;
    const std::string group = "/" + name;
    const auto number = layer_number(name);
    if (!number || layer_group(*number) != name || !file.is_group(group)) {
      fail(file, group, "is not a layer, expected a group named {}NNN", kLayerPrefix);
    }
    const auto layer =
        file.has_attribute(group, "layer") ? file.attribute<int64_t>(group, "layer") : *number;
    if (layer != *number) {
      fail(file, group, "has attribute layer = {}, expected {}", layer, *number);
    }
    layers.push_back(*number);
  }
  if (layers.empty()) fail(file, "/", "holds no layer, expected groups named {}NNN", kLayerPrefix);
  std::sort(layers.begin(), layers.end());
  return layers;
}

void check_layer(const h5::File& file, const std::string& group, CaptureInfo* info) {
  const Shape side = {info->batch, info->kv_heads, info->tokens, info->head_dim};
  check_shape(file, group + "/q", {info->batch, info->q_heads, info->probes, info->head_dim},
              "[B, Hq, P, d]");
  check_shape(file, group + "/k", side, "[B, Hkv, T, d]");
  check_shape(file, group + "/v", side, "[B, Hkv, T, d]");
  const bool first = group == "/" + layer_group(info->layers.front());
  if (first) info->dtype = stored_type(file, group + "/k");
  for (const char* name : {"/q", "/k", "/v"}) {
    const DType type = stored_type(file, group + name);
    if (type != info->dtype) {
      fail(file, group + name, "holds {}, expected {} as /{}/k", name_of(type),
           name_of(info->dtype), layer_group(info->layers.front()));
    }
  }
  info->has_w_o = check_w_o(file, group + "/w_o", *info) && (first || info->has_w_o);
  for (const char* name : {"/k_pre", "/grad_k", "/grad_v"}) {
    if (!file.exists(group + name)) continue;
    check_shape(file, group + name, side, "[B, Hkv, T, d]");
    stored_type(file, group + name);
  }
  if (file.exists(group + "/hidden_absmax")) {
    check_shape(file, group + "/hidden_absmax", {info->batch, info->tokens}, "[B, T]");
  }
}

void check_token_class(const h5::File& file, const Shape& tokens) {
  const std::string name = "/token_class";
  if (!file.exists(name)) return;
  integer_shape(file, name, 2, "[B, T]");
  check_shape(file, name, tokens, "[B, T]");
  if (!file.has_attribute(name, "names")) {
    fail(file, name, "has no attribute 'names', expected the name of each class");
  }
}

/// Leaves what lies in the stretch.
void cut(const h5::File& file, const Stretch& stretch, CaptureInfo* info) {
  const int64_t all = info->tokens;
  const int64_t end = stretch.count > 0 ? stretch.first + stretch.count : all;
  if (stretch.first >= all) {
    fail(file, "/tokens", "holds {}, numbered from 0: none is left from {} on",
         counted(all, "token"), stretch.first);
  }
  if (end > all) {
    fail(file, "/tokens", "holds {}, but those from {} to {} were asked for", counted(all, "token"),
         stretch.first, end - 1);
  }
  const auto begin_of = [&](int64_t token) {
    return std::lower_bound(info->positions.begin(), info->positions.end(), token);
  };
  info->first_token = stretch.first;
  info->first_query = begin_of(stretch.first) - info->positions.begin();
  info->positions = {begin_of(stretch.first), begin_of(end)};
  for (int64_t& position : info->positions) position -= stretch.first;
  info->probes = static_cast<int64_t>(info->positions.size());
  info->tokens = end - stretch.first;
  if (info->positions.empty()) {
    const std::string which = stretch.first == 0
                                  ? fmt::format("in the first {}", counted(end, "token"))
                                  : fmt::format("among tokens {} to {}", stretch.first, end - 1);
    fail(file, "/positions", "says that no stored query lies {}", which);
  }
  std::vector<int32_t> ids;
  for (int64_t b = 0; b < info->batch; ++b) {
    const auto sequence = info->token_ids.begin() + b * all;
    ids.insert(ids.end(), sequence + stretch.first, sequence + end);
  }
  info->token_ids = std::move(ids);
}

}  // namespace

std::string layer_group(int64_t layer) { return fmt::format("{}{:03}", kLayerPrefix, layer); }

DType stored_type(const h5::File& file, const std::string& dataset) {
  const h5::Element element = file.info(dataset).element;
  using Kind = h5::Element::Kind;
  if (element == h5::Element{Kind::real, 4}) return DType::fp32;
  if (element == h5::Element{Kind::real, 2}) return DType::fp16;
  if (element != h5::Element{Kind::unsigned_integer, 2}) {
    fail(file, dataset, "holds {}, expected float32, float16, or uint16 with dtype = 'bfloat16'",
         element.name());
  }
  if (!file.has_attribute(dataset, "dtype")) {
    fail(file, dataset, "holds uint16 without the attribute dtype, expected dtype = 'bfloat16'");
  }
  const auto dtype = file.attribute<std::string>(dataset, "dtype");
  if (dtype != "bfloat16") {
    fail(file, dataset, "has dtype = '{}', expected 'bfloat16' on uint16", dtype);
  }
  return DType::bf16;
}

std::optional<std::string> lacks_rope(const h5::File& file, const std::string& group) {
  const auto has = [&](const char* name) {
    return file.has_attribute(group, name) || file.has_attribute("/", name);
  };
  const auto lacks = [&](const char* name) {
    return fmt::format("{}: has no attribute {}, which keys before RoPE need", file.path().string(),
                       name);
  };
  if (!has("rope_layout")) return lacks("rope_layout");
  const std::string holder = file.has_attribute(group, "rope_layout") ? group : std::string("/");
  const bool turns = file.attribute<std::string>(holder, "rope_layout") != "none";
  if (turns && !has("rope_theta")) return lacks("rope_theta");
  return std::nullopt;
}

std::optional<std::string> lacks_keys_before_rope(const h5::File& file, const std::string& group) {
  if (file.exists(group + "/k_pre")) return lacks_rope(file, group);
  return fmt::format("{}: {}/k_pre is missing: a method before RoPE needs the keys before RoPE",
                     file.path().string(), group);
}

CaptureInfo read_capture_info(const h5::File& file, const Stretch& stretch) {
  check_schema(file);
  CaptureInfo info;
  info.model = file.attribute_or<std::string>("/", "model", "");
  info.text_sha256 = file.attribute_or<std::string>("/", "text_sha256", "");
  info.created_by = file.attribute_or<std::string>("/", "created_by", "");
  info.q_heads = positive_attribute(file, "n_q_heads");
  info.kv_heads = positive_attribute(file, "n_kv_heads");
  info.head_dim = positive_attribute(file, "head_dim");
  if (info.q_heads % info.kv_heads != 0) {
    fail(file, "/", "has n_q_heads = {}, expected a multiple of n_kv_heads = {}", info.q_heads,
         info.kv_heads);
  }
  check_rope(file);
  const Shape tokens = integer_shape(file, "/tokens", 2, "[B, T]");
  info.batch = tokens[0];
  info.tokens = info.file_tokens = tokens[1];
  info.token_ids = file.read<int32_t>("/tokens");
  info.positions = read_positions(file, info.tokens);
  info.probes = static_cast<int64_t>(info.positions.size());
  info.layers = find_layers(file);
  check_token_class(file, tokens);
  for (const int64_t layer : info.layers) {
    const std::string group = "/" + layer_group(layer);
    check_layer(file, group, &info);
    if (auto lacking = lacks_keys_before_rope(file, group)) {
      info.no_keys_before_rope[layer] = *lacking;
    }
  }
  if (stretch != Stretch{}) cut(file, stretch, &info);
  return info;
}

CaptureInfo describe_capture(const std::filesystem::path& path, const Stretch& stretch) {
  CaptureInfo info = read_capture_info(h5::File::open(path), stretch);
  info.content = cached_sha256(path);
  return info;
}

}  // namespace kvlab::data
