#include "twin.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

namespace kvlab::gpu_check {
namespace {

int pages_of(const Setup& setup) {
  return (setup.max_tokens + block_tokens(setup.format) - 1) / block_tokens(setup.format);
}

/// More pages than are used, in no order: what a table does not name must stay untouched.
std::vector<std::int32_t> permuted_table(int used, int pages) {
  std::vector<std::int32_t> order(static_cast<std::size_t>(pages));
  std::iota(order.begin(), order.end(), 0);
  Numbers numbers(7);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[numbers.bits() % i]);
  order.resize(static_cast<std::size_t>(used));
  return order;
}

/// Orthogonal: a product of reflections.
std::vector<float> random_rotations(int count, int dim, std::uint64_t seed) {
  Numbers numbers(seed);
  const auto d = static_cast<std::size_t>(dim);
  std::vector<float> all;
  for (int m = 0; m < count; ++m) {
    std::vector<double> matrix(d * d, 0.0);
    for (std::size_t i = 0; i < d; ++i) matrix[i * d + i] = 1.0;
    for (int reflection = 0; reflection < 8; ++reflection) {
      std::vector<double> v(d);
      double length = 0.0;
      for (double& x : v) {
        x = numbers.normal();
        length += x * x;
      }
      for (std::size_t i = 0; i < d; ++i) {
        double dot = 0.0;
        for (std::size_t j = 0; j < d; ++j) dot += matrix[i * d + j] * v[j];
        for (std::size_t j = 0; j < d; ++j) matrix[i * d + j] -= 2.0 * dot / length * v[j];
      }
    }
    all.insert(all.end(), matrix.begin(), matrix.end());
  }
  return all;
}

std::vector<float> draws(std::size_t count, float at, float spread, std::uint64_t seed) {
  Numbers numbers(seed);
  std::vector<float> all(count);
  for (float& x : all) x = at + spread * numbers.normal();
  return all;
}

std::size_t window_size(const Setup& setup, int capacity) {
  return static_cast<std::size_t>(setup.batch) * setup.kv_heads * capacity * setup.format.dim;
}

int matrices(const Setup& setup) { return setup.per_head ? setup.kv_heads : 1; }

Grid grid_of(const Setup& setup, const SideFormat& side) {
  Grid grid;
  grid.bits = side.bits;
  grid.zero = side.zero;
  grid.params = side.params;
  grid.integer_zero = side.zero == Zero::offset && setup.integer_zero;
  grid.half_up = setup.half_up;
  grid.range_ratio = setup.range_ratio;
  if (side.zero == Zero::codebook) {
    const float levels[4] = {-0.9f, -0.25f, 0.3f, 1.0f};
    std::copy(std::begin(levels), std::end(levels), std::begin(grid.levels));
  }
  return grid;
}

SideEncode side_of(const Setup& setup, bool key, const float* matrix, const float* center,
                   const float* thresholds) {
  const SideFormat& side = key ? setup.format.key : setup.format.value;
  SideEncode spec;
  spec.grid = grid_of(setup, side);
  spec.rotation.kind = key ? setup.key_rotation : setup.value_rotation;
  spec.rotation.per_head = setup.per_head;
  spec.rotation.matrix = matrix;
  spec.clip = setup.clip;
  spec.clip_index = (setup.clip == Clip::row ? setup.format.dim : side.group) * 9 / 10;
  if (setup.clip == Clip::calibrated) spec.thresholds = thresholds;
  if (!key) return spec;
  if (setup.center) spec.center = center;
  spec.scale = setup.scale;
  spec.scale_first = setup.scale_first;
  return spec;
}

}  // namespace

std::uint64_t Numbers::bits() {
  // splitmix64
  std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

float Numbers::uniform() { return static_cast<float>(bits() >> 40) * 0x1p-24f; }

float Numbers::normal() {
  float sum = -6.0f;
  for (int i = 0; i < 12; ++i) sum += uniform();
  return sum;
}

Twin::Twin(const Setup& setup)
    : setup_(setup),
      pool_(static_cast<std::size_t>(pages_of(setup) * setup.batch + 2) * setup.kv_heads *
            layout_of(setup.format).bytes),
      table_(permuted_table(pages_of(setup) * setup.batch, pages_of(setup) * setup.batch + 2)),
      tokens_(std::vector<std::int32_t>(static_cast<std::size_t>(setup.batch), 0)),
      sink_key_(window_size(setup, setup.rule.sink)),
      sink_value_(window_size(setup, setup.rule.sink)),
      recent_key_(window_size(setup, recent_capacity(setup.rule, setup.step_tokens))),
      recent_value_(window_size(setup, recent_capacity(setup.rule, setup.step_tokens))),
      key_matrix_(random_rotations(matrices(setup), setup.format.dim, 11)),
      value_matrix_(random_rotations(matrices(setup), setup.format.dim, 12)),
      center_(draws(static_cast<std::size_t>(setup.kv_heads) * setup.format.dim, 0.0f, 1.0f, 13)),
      thresholds_(draws(static_cast<std::size_t>(setup.kv_heads), 1.5f, 0.1f, 14)),
      pages_(pages_of(setup)) {
  host.format = setup.format;
  host.rule = setup.rule;
  host.batch = setup.batch;
  host.kv_heads = setup.kv_heads;
  host.table_stride = pages_;
  host.sink_capacity = setup.rule.sink;
  host.recent_capacity = recent_capacity(setup.rule, setup.step_tokens);
  host.sink_stride =
      static_cast<std::int64_t>(setup.kv_heads) * host.sink_capacity * setup.format.dim;
  host.recent_stride =
      static_cast<std::int64_t>(setup.kv_heads) * host.recent_capacity * setup.format.dim;
  const Grid key = grid_of(setup, setup.format.key);
  const Grid value = grid_of(setup, setup.format.value);
  std::copy(std::begin(key.levels), std::end(key.levels), host.key_levels);
  std::copy(std::begin(value.levels), std::end(value.levels), host.value_levels);
  device = host;
  const auto point = [this](CacheView& view, bool gpu) {
    const auto at = [gpu](auto& both) { return gpu ? both.device.data() : both.host.data(); };
    view.pool = at(pool_);
    view.block_table = at(table_);
    view.tokens = at(tokens_);
    view.sink_key = at(sink_key_);
    view.sink_value = at(sink_value_);
    view.recent_key = at(recent_key_);
    view.recent_value = at(recent_value_);
  };
  point(host, false);
  point(device, true);
  host_spec.key =
      side_of(setup, true, key_matrix_.host.data(), center_.host.data(), thresholds_.host.data());
  host_spec.value =
      side_of(setup, false, value_matrix_.host.data(), nullptr, thresholds_.host.data());
  device_spec.key = side_of(setup, true, key_matrix_.device.data(), center_.device.data(),
                            thresholds_.device.data());
  device_spec.value =
      side_of(setup, false, value_matrix_.device.data(), nullptr, thresholds_.device.data());
}

void Twin::set_tokens(const std::vector<int>& tokens) {
  // The views point into these arrays: copy, never replace.
  std::copy(tokens.begin(), tokens.end(), tokens_.host.begin());
  tokens_.device.upload(tokens_.host);
}

std::unique_ptr<Tokens> Twin::draw(int count, std::uint64_t seed) const {
  const int dim = setup_.format.dim;
  const int pitch = dim + 8;
  const int heads = setup_.batch * setup_.kv_heads;
  const std::size_t size = static_cast<std::size_t>(heads) * count * pitch;
  std::vector<std::uint8_t> arrays[2];
  for (int side = 0; side < 2; ++side) {
    arrays[side].resize(size * static_cast<std::size_t>(size_of(setup_.source)), 0xff);
    Numbers numbers(seed * 2 + static_cast<std::uint64_t>(side));
    for (int row = 0; row < heads * count; ++row) {
      const int kind = row % 101;
      for (int c = 0; c < dim; ++c) {
        float x = numbers.normal() * (c % 29 == 3 ? 8.0f : 1.0f) + (c % 13 == 5 ? 3.0f : 0.0f);
        if (kind == 50) x = 0.7f;
        if (kind == 60) x = 0.0f;
        if (kind == 70 && c % 2 == 0) x = -0.0f;
        if (kind == 80) x *= 1e-3f;
        store_number(arrays[side].data(), static_cast<std::int64_t>(row) * pitch + c, setup_.source,
                     x);
      }
    }
  }
  auto tokens = std::make_unique<Tokens>(Tokens{
      Both<std::uint8_t>(std::move(arrays[0])), Both<std::uint8_t>(std::move(arrays[1])), {}, {}});
  TokenSource& source = tokens->on_host;
  source.key = tokens->key.host.data();
  source.value = tokens->value.host.data();
  source.type = setup_.source;
  source.token_stride = pitch;
  source.head_stride = static_cast<std::int64_t>(count) * pitch;
  source.batch_stride = source.head_stride * setup_.kv_heads;
  tokens->on_device = source;
  tokens->on_device.key = tokens->key.device.data();
  tokens->on_device.value = tokens->value.device.data();
  return tokens;
}

namespace {

std::string place_name(int sequence, int head, const char* side, int token) {
  return "sequence " + std::to_string(sequence) + ", head " + std::to_string(head) + ", " + side +
         ", token " + std::to_string(token) + " of the history";
}

/// Differences of one side of a block, with the GPU's numbers overwritten by the host's.
struct SideDifference {
  int codes = 0;
  int far_codes = 0;
  int params = 0;
  int far_params = 0;
};

bool near(float a, float b, Type type) {
  const float step = type == Type::f32 ? 1e-5f : type == Type::f16 ? 0x1p-9f : 0x1p-6f;
  return std::fabs(a - b) <= step * std::fmax(std::fabs(a), std::fabs(b)) + 1e-6f;
}

void compare_param(const std::uint8_t* host, std::uint8_t* device, int index, Type type,
                   SideDifference& found) {
  const float a = load_number(host, index, type);
  const float b = load_number(device, index, type);
  if (a != b) {
    ++found.params;
    if (!near(a, b, type)) ++found.far_params;
  }
  store_number(device, index, type, a);
}

SideDifference compare_side(const Format& format, bool key, int tokens, const std::uint8_t* host,
                            std::uint8_t* device) {
  const Layout at = layout_of(format);
  const SideFormat& side = key ? format.key : format.value;
  const int codes = key ? at.key_codes : at.value_codes;
  const int scales = key ? at.key_scale : at.value_scale;
  const int zeros = key ? at.key_zero : at.value_zero;
  const std::uint32_t mask = (1u << side.bits) - 1u;
  SideDifference found;
  for (int token = 0; token < tokens; ++token) {
    for (int c = 0; c < format.dim; ++c) {
      const Place place = key ? key_place(format.dim, side.bits, token, c)
                              : value_place(format.dim, side.bits, token, c);
      std::uint32_t a;
      std::uint32_t b;
      std::memcpy(&a, host + codes + place.byte, 4);
      std::memcpy(&b, device + codes + place.byte, 4);
      const int difference =
          static_cast<int>(a >> place.bit & mask) - static_cast<int>(b >> place.bit & mask);
      if (difference != 0) {
        ++found.codes;
        if (std::abs(difference) > 1) ++found.far_codes;
        b = (b & ~(mask << place.bit)) | (a & mask << place.bit);
        std::memcpy(device + codes + place.byte, &b, 4);
      }
      const int group = side.axis == Axis::token ? c : token;
      if (group % side.group != 0) continue;
      const int index = param_index(format, side, token, c);
      compare_param(host + scales, device + scales, index, side.params, found);
      if (stores_zero(side)) compare_param(host + zeros, device + zeros, index, side.params, found);
    }
    if (key && format.norm != Norm::none) {
      compare_param(host + at.norm, device + at.norm, norm_index(token), format.norm_type, found);
    }
  }
  return found;
}

}  // namespace

std::vector<std::string> Twin::compare_pools(bool exact, std::string& note) const {
  std::vector<std::string> failures;
  std::vector<std::uint8_t> gpu = pool_.device.download();
  std::int64_t codes = 0;
  std::int64_t differing = 0;
  std::int64_t params = 0;
  const Layout at = layout_of(setup_.format);
  const int held = block_tokens(setup_.format);
  for (int b = 0; b < setup_.batch; ++b) {
    const int tokens = tokens_.host[static_cast<std::size_t>(b)];
    const HistoryEnds ends = history_ends(setup_.rule, tokens);
    const int begin = history_begin(host, tokens);
    for (int head = 0; head < setup_.kv_heads; ++head) {
      for (int block = 0; block < pages_; ++block) {
        const std::uint8_t* mine = block_at(host, at.bytes, b, head, block);
        std::uint8_t* theirs = gpu.data() + (mine - host.pool);
        for (const bool key : {true, false}) {
          const int count =
              std::clamp((key ? ends.key : ends.value) - begin - block * held, 0, held);
          const SideDifference found = compare_side(setup_.format, key, count, mine, theirs);
          codes += static_cast<std::int64_t>(count) * setup_.format.dim;
          differing += found.codes;
          params += found.params;
          const bool wrong =
              exact ? found.codes + found.params > 0 : found.far_codes + found.far_params > 0;
          if (wrong) {
            failures.push_back(place_name(b, head, key ? "keys" : "values", block * held) + ": " +
                               std::to_string(found.codes) + " codes differ (" +
                               std::to_string(found.far_codes) + " by more than 1), " +
                               std::to_string(found.params) + " parameters (" +
                               std::to_string(found.far_params) + " by more than a rounding)");
          }
        }
      }
    }
  }
  if (differing > 2 + codes / 1000) {
    failures.push_back(std::to_string(differing) + " of " + std::to_string(codes) +
                       " codes differ");
  }
  // What is left holds everything that no token owns: zeros in begun blocks, poison in all others.
  for (std::size_t i = 0; i < gpu.size() && failures.empty(); ++i) {
    if (gpu[i] == pool_.host[i]) continue;
    failures.push_back("byte " + std::to_string(i % static_cast<std::size_t>(at.bytes)) +
                       " of block " + std::to_string(i / static_cast<std::size_t>(at.bytes)) +
                       " of the pool, which no token owns, is " + std::to_string(gpu[i]) +
                       ", on the CPU " + std::to_string(pool_.host[i]));
  }
  note += std::to_string(differing) + "/" + std::to_string(codes) + " codes, " +
          std::to_string(params) + " parameters differ";
  return failures;
}

std::vector<std::string> Twin::compare_windows() const {
  std::vector<std::string> failures;
  const auto compare = [&](const char* name, const Both<std::uint16_t>& window) {
    const std::vector<std::uint16_t> gpu = window.device.download();
    for (std::size_t i = 0; i < gpu.size(); ++i) {
      if (gpu[i] == window.host[i]) continue;
      failures.push_back(std::string(name) + ": number " + std::to_string(i) + " differs");
      return;
    }
  };
  compare("sink keys", sink_key_);
  compare("sink values", sink_value_);
  compare("recent keys", recent_key_);
  compare("recent values", recent_value_);
  return failures;
}

void Twin::copy_to_device() {
  pool_.device.upload(pool_.host);
  sink_key_.device.upload(sink_key_.host);
  sink_value_.device.upload(sink_value_.host);
  recent_key_.device.upload(recent_key_.host);
  recent_value_.device.upload(recent_value_.host);
}

}  // namespace kvlab::gpu_check
