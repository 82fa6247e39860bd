// Codes and parameters of the packed cache against the codecs in tensor form.

#include <cmath>

#include "catch.h"
#include "kvlab/kernels/cpu.h"
#include "quant/packing.h"
#include "quant/plain_codec.h"
#include "quant/uniform.h"
#include "transform/transform.h"

using namespace kvlab;
namespace kn = kvlab::kernels;

namespace {

constexpr int kHeads = 2;
constexpr int kTokens = 256;

/// A uniform codec's settings as the kernels are told.
struct Told {
  kn::SideFormat format;
  kn::SideEncode encode;
};

Told told(const Settings& codec, int dim) {
  const quant::UniformSpec spec = quant::UniformSpec::from(codec, dim);
  using Spec = quant::UniformSpec;
  Told side;
  side.format.bits = static_cast<int>(spec.bits);
  side.format.axis = spec.axis == Spec::Axis::channel ? kn::Axis::channel : kn::Axis::token;
  side.format.group = static_cast<int>(spec.group);
  side.format.params = spec.params == DType::fp32   ? kn::Type::f32
                       : spec.params == DType::fp16 ? kn::Type::f16
                                                    : kn::Type::bf16;
  side.format.zero = spec.grid == Spec::Grid::symmetric      ? kn::Zero::none
                     : spec.grid == Spec::Grid::rounded_zero ? kn::Zero::offset
                     : spec.code_offset                      ? kn::Zero::offset
                                                             : kn::Zero::value;
  kn::Grid& grid = side.encode.grid;
  grid.bits = side.format.bits;
  grid.zero = side.format.zero;
  grid.params = side.format.params;
  grid.integer_zero = spec.grid == Spec::Grid::rounded_zero;
  grid.half_up = spec.rounding == Spec::Rounding::half_up;
  if (!spec.clip) return side;
  const double ratio = *spec.clip;
  if (spec.clip_kind == Spec::ClipKind::range) {
    grid.range_ratio = static_cast<float>(ratio);
  } else if (spec.clip_calibrated) {
    side.encode.clip = kn::Clip::calibrated;
  } else {
    const bool row = spec.clip_scope == Spec::ClipScope::row;
    side.encode.clip = row ? kn::Clip::row : kn::Clip::group;
    side.encode.clip_index = static_cast<int>(ratio * (row ? dim : side.format.group));
  }
  return side;
}

/// One sequence of kTokens tokens and one more, all but the last packed.
class Packed {
 public:
  explicit Packed(const kn::Format& format, const kn::EncodeSpec& spec) : spec_(spec) {
    view_.format = format;
    view_.rule.group = format.key.axis == kn::Axis::channel ? format.key.group : 1;
    view_.batch = 1;
    view_.kv_heads = kHeads;
    const int blocks = kTokens / kn::block_tokens(format) + 1;
    layout_ = kn::layout_of(format);
    pool_.resize(static_cast<size_t>(blocks) * kHeads * layout_.bytes);
    for (int i = 0; i < blocks; ++i) table_.push_back(i);
    view_.pool = pool_.data();
    view_.block_table = table_.data();
    view_.table_stride = blocks;
    view_.recent_capacity = kn::recent_capacity(view_.rule, 1);
    recent_.resize(static_cast<size_t>(2 * kHeads) * view_.recent_capacity * format.dim);
    view_.recent_key = recent_.data();
    view_.recent_value = recent_.data() + recent_.size() / 2;
    view_.tokens = &tokens_;
  }

  /// x: float32 or bfloat16 [heads, kTokens + 1, dim], for both sides.
  void encode(const at::Tensor& x) {
    const std::int64_t rows = x.size(1) * x.size(2);
    const kn::TokenSource source{x.const_data_ptr(),
                                 x.const_data_ptr(),
                                 x.scalar_type() == at::kFloat ? kn::Type::f32 : kn::Type::bf16,
                                 rows * kHeads,
                                 rows,
                                 x.size(2)};
    kn::cpu::encode(view_, spec_, source, kn::kAllTokens, 1);
  }

  /// Codes, scales and zeros as floats [heads, kTokens, dim], of every element its own.
  struct Read {
    at::Tensor codes, scale, zero;
  };
  Read read(bool key) const {
    const int dim = view_.format.dim;
    const kn::SideFormat& side = key ? view_.format.key : view_.format.value;
    const at::Tensor empty = at::zeros({kHeads, kTokens, dim});
    Read read{empty.clone(), empty.clone(), empty.clone()};
    const int per_block = kn::block_tokens(view_.format);
    std::int64_t i = 0;
    for (int h = 0; h < kHeads; ++h) {
      for (int t = 0; t < kTokens; ++t) {
        const std::uint8_t* block = kn::block_at(view_, layout_.bytes, 0, h, t / per_block);
        for (int c = 0; c < dim; ++c, ++i) {
          const kn::Place place = key ? kn::key_place(dim, side.bits, t % per_block, c)
                                      : kn::value_place(dim, side.bits, t % per_block, c);
          std::uint32_t word = 0;
          std::memcpy(&word, block + (key ? layout_.key_codes : layout_.value_codes) + place.byte,
                      sizeof word);
          const int at = kn::param_index(view_.format, side, t % per_block, c);
          read.codes.mutable_data_ptr<float>()[i] =
              static_cast<float>(word >> place.bit & ((1u << side.bits) - 1));
          read.scale.mutable_data_ptr<float>()[i] = kn::load_number(
              block + (key ? layout_.key_scale : layout_.value_scale), at, side.params);
          if (kn::stores_zero(side)) {
            read.zero.mutable_data_ptr<float>()[i] = kn::load_number(
                block + (key ? layout_.key_zero : layout_.value_zero), at, side.params);
          }
        }
      }
    }
    return read;
  }

  /// The stored norms, float32 [heads, kTokens].
  at::Tensor norms() const {
    at::Tensor norms = at::empty({kHeads, kTokens});
    const int per_block = kn::block_tokens(view_.format);
    for (int h = 0; h < kHeads; ++h) {
      for (int t = 0; t < kTokens; ++t) {
        const std::uint8_t* block = kn::block_at(view_, layout_.bytes, 0, h, t / per_block);
        norms[h][t] = kn::load_number(block + layout_.norm, kn::norm_index(t % per_block),
                                      view_.format.norm_type);
      }
    }
    return norms;
  }

 private:
  kn::EncodeSpec spec_;
  kn::Layout layout_;
  std::vector<std::uint8_t> pool_;
  std::vector<std::int32_t> table_;
  std::vector<std::uint16_t> recent_;
  std::int32_t tokens_ = kTokens + 1;
  kn::CacheView view_;
};

/// Parameters of Encoded as [heads, kTokens, dim], of every element its own.
at::Tensor spread(const at::Tensor& params, int64_t which, const quant::UniformSpec& spec,
                  int dim) {
  at::Tensor chosen = params.to(at::kFloat).select(-1, which);
  chosen = chosen.unsqueeze(quant::group_dim(spec));
  const auto shape = quant::grouped(at::empty({kHeads, kTokens, dim}), spec).sizes().vec();
  return chosen.expand(shape).reshape({kHeads, kTokens, dim});
}

/// Shares of codes and of parameters that differ.
struct Apart {
  double codes = 0;
  double params = 0;
};

double share(const at::Tensor& a, const at::Tensor& b) {
  // NaN parameters are equal here.
  return a.ne(b).logical_and_(a.eq(a)).to(at::kFloat).mean().item<double>();
}

Apart compare(const Packed::Read& read, const at::Tensor& x, const Settings& codec, int dim,
              const at::Tensor& thresholds) {
  const quant::UniformSpec spec = quant::UniformSpec::from(codec, dim);
  const quant::Encoded right = quant::make_uniform(codec, dim)->encode(x, thresholds);
  Apart apart;
  apart.codes = share(read.codes, quant::unpack(right.codes, spec.bits).to(at::kFloat));
  apart.params = share(read.scale, spread(right.params, 0, spec, dim));
  if (right.params.size(-1) > 1) {
    apart.params = std::max(apart.params, share(read.zero, spread(right.params, 1, spec, dim)));
  }
  return apart;
}

/// Keys that need care: normal ones, an outlier channel, a constant one, zeros, ties and a token
/// that overflows halves.
at::Tensor hard_tokens(int dim) {
  at::Tensor x = plain::gaussian({kHeads, kTokens + 1, dim}, 5);
  x.select(2, 3).add_(12.0f);
  x.select(2, 4).fill_(-1.5f);
  x.select(2, 5).zero_();
  x.slice(1, 32, 64).copy_(plain::whole(-3, 3, {kHeads, 32, dim}, 6));
  x.select(1, 70).fill_(2.0f);
  x.select(1, 71).zero_();
  x.select(1, 72).mul_(1e-7f);
  x.select(1, 200)[0][9] = -1.25e5f;
  return x;
}

const char* const kClips[] = {"none", "range", "row", "group", "calibrated"};

}  // namespace

TEST_CASE("D02 D04 D09 D16 packed codes and parameters are the tensor codec's, all settings",
          "[packed]") {
  const int dim = 128;
  const at::Tensor x = hard_tokens(dim);
  const at::Tensor history = x.slice(1, 0, kTokens);
  const std::vector<float> limits = {1.75f, 2.5f};
  const at::Tensor thresholds = at::tensor(limits);
  for (const char* params : {"fp16", "bf16", "fp32"}) {
    for (const char* grid : {"float_zero", "code_offset", "rounded_zero", "symmetric"}) {
      for (const int bits : {2, 4, 8}) {
        for (const char* rounding : {"half_even", "half_up"}) {
          for (const char* clip : kClips) {
            Settings codec = plain::uniform(
                {{"params", params}, {"bits", bits}, {"rounding", rounding}, {"group", 64}});
            const bool offset = std::string(grid) == "code_offset";
            codec["grid"] = offset ? "float_zero" : grid;
            codec["zero"] = offset ? "code_offset" : "value";
            const std::string kind = clip;
            if (kind != "none") codec["clip"] = 0.92;
            codec["clip_kind"] = kind == "range" ? "range" : "order";
            codec["clip_scope"] = kind == "group" ? "group" : "row";
            codec["clip_source"] = kind == "calibrated" ? "calibrated" : "dynamic";
            Settings by_channel = codec;
            by_channel["axis"] = "channel";
            Told keys = told(by_channel, dim);
            Told values = told(codec, dim);
            keys.encode.thresholds = values.encode.thresholds = limits.data();
            kn::Format format;
            format.dim = dim;
            format.key = keys.format;
            format.value = values.format;
            Packed packed(format, {keys.encode, values.encode});
            packed.encode(x);
            CAPTURE(params, grid, bits, rounding, clip);
            const Apart key = compare(packed.read(true), history, by_channel, dim, thresholds);
            CHECK(key.codes == 0);
            CHECK(key.params == 0);
            const Apart value = compare(packed.read(false), history, codec, dim, thresholds);
            CHECK(value.codes == 0);
            CHECK(value.params == 0);
          }
        }
      }
    }
  }
}

TEST_CASE("D02 every head size and group has the tensor codec's codes", "[packed]") {
  for (const int dim : {64, 128, 256}) {
    for (const int group : {32, 64, 128}) {
      for (const char* axis : {"channel", "token"}) {
        const Settings value_codec = plain::uniform({{"group", group}, {"params", "fp16"}});
        Settings key_codec = value_codec;
        key_codec["axis"] = axis;
        const Told keys = told(key_codec, dim);
        const Told values = told(value_codec, dim);
        kn::Format format;
        format.dim = dim;
        format.key = keys.format;
        format.value = values.format;
        Packed packed(format, {keys.encode, values.encode});
        const at::Tensor x = hard_tokens(dim).to(at::kBFloat16);
        packed.encode(x);
        const at::Tensor history = x.slice(1, 0, kTokens).to(at::kFloat);
        CAPTURE(dim, group, axis);
        const Apart key = compare(packed.read(true), history, key_codec, dim, {});
        const Apart value = compare(packed.read(false), history, value_codec, dim, {});
        CHECK(key.codes == 0);
        CHECK(key.params == 0);
        CHECK(value.codes == 0);
        CHECK(value.params == 0);
      }
    }
  }
}

TEST_CASE("D48 D51 rotated and scaled tokens have the reference's codes away from ties",
          "[packed]") {
  const int dim = 128;
  const at::Tensor x = (plain::gaussian({kHeads, kTokens + 1, dim}, 8) + 0.5f).to(at::kBFloat16);
  const at::Tensor center = plain::gaussian({kHeads, dim}, 9).mul_(0.3f).contiguous();
  const at::Tensor dense = transform::random_orthogonal(dim, 4).to(at::kFloat).contiguous();
  struct Case {
    kn::Rotation::Kind rotation;
    kn::TokenScale scale;
    transform::TokenScale::Kind kind;
    bool first;
    bool inverse;
  };
  using Kind = transform::TokenScale::Kind;
  using Rotate = kn::Rotation::Kind;
  const Case cases[] = {
      {Rotate::hadamard, kn::TokenScale::l2_heads, Kind::l2_heads, false, false},
      {Rotate::hadamard, kn::TokenScale::l2_head, Kind::l2_head, false, true},
      {Rotate::hadamard, kn::TokenScale::max_head, Kind::max_head, false, false},
      {Rotate::dense, kn::TokenScale::l2_heads, Kind::l2_heads, false, true},
      {Rotate::dense, kn::TokenScale::mean_abs_head, Kind::mean_abs_head, false, false},
      {Rotate::dense, kn::TokenScale::l2_head, Kind::l2_head, true, false},
      {Rotate::none, kn::TokenScale::l2_heads, Kind::l2_heads, true, false},
      {Rotate::hadamard, kn::TokenScale::none, Kind::none, false, false}};
  for (const Case& test : cases) {
    const Settings codec = plain::uniform({{"axis", "channel"}, {"group", 32}, {"params", "fp16"}});
    const Settings value_codec = plain::uniform({{"group", 32}, {"params", "fp16"}});
    Told keys = told(codec, dim);
    const Told values = told(value_codec, dim);
    kn::Format format;
    format.dim = dim;
    format.key = keys.format;
    format.value = values.format;
    format.norm = test.scale == kn::TokenScale::none       ? kn::Norm::none
                  : test.scale == kn::TokenScale::l2_heads ? kn::Norm::heads
                                                           : kn::Norm::head;
    format.norm_inverse = test.inverse;
    keys.encode.scale = test.scale;
    keys.encode.scale_first = test.first;
    keys.encode.rotation.kind = test.rotation;
    keys.encode.rotation.matrix = dense.const_data_ptr<float>();
    keys.encode.center = center.const_data_ptr<float>();
    Packed packed(format, {keys.encode, values.encode});
    packed.encode(x);

    transform::TokenScale scale;
    scale.kind = test.kind;
    scale.params = transform::TokenScale::Params::fp16;
    scale.rotate_first = !test.first;
    scale.inverse = test.inverse;
    const at::Tensor rotation = test.rotation == Rotate::none ? at::Tensor()
                                : test.rotation == Rotate::hadamard
                                    ? transform::hadamard(dim).unsqueeze(0)
                                    : dense.to(at::kDouble).unsqueeze(0);
    const transform::Transform reference(center, rotation, scale);
    const at::Tensor history = x.slice(1, 0, kTokens).unsqueeze(0);
    const at::Tensor scales = reference.scales(history);
    std::vector<at::Tensor> heads;
    for (int h = 0; h < kHeads; ++h) {
      const at::Tensor one =
          scales.defined() ? scales[0][scales.size(1) == 1 ? 0 : h] : at::Tensor();
      heads.push_back(reference.forward(history[0][h], h, one));
    }
    const Apart apart = compare(packed.read(true), at::stack(heads), codec, dim, {});
    CAPTURE(static_cast<int>(test.rotation), static_cast<int>(test.scale), test.first,
            test.inverse);
    CHECK(apart.codes < 2e-5);
    CHECK(apart.params < 2e-3);  // a parameter on the edge of two halves
    if (scales.defined()) {
      const at::Tensor right = scales[0].expand({kHeads, kTokens}).to(at::kFloat);
      CHECK(share(packed.norms(), right) < 0.01);
      CHECK(at::allclose(packed.norms(), right, 1e-3, 0.0));
    }
  }
}
