#include "quant/sparse_dense.h"

#include <fmt/format.h>

#include "base/error.h"
#include "quant/packing.h"
#include "quant/parts.h"
#include "quant/rounding.h"

namespace kvlab::quant {
namespace {

struct SparseSpec {
  int64_t bits = 2;
  bool per_channel = false;
  double outliers = 0.01;  // share of the values, half of them at either end
  DType params = DType::fp16;
  bool normed = false;  // decoded values have the mean and deviation of the calibration values
};

/// A quantile, linear between order statistics, over the dimension, which stays as 1.
at::Tensor quantile(const at::Tensor& x, double share, int64_t dim) {
  const at::Tensor sorted = std::get<0>(x.sort(dim));
  const double place = share * static_cast<double>(x.size(dim) - 1);
  const auto below = static_cast<int64_t>(place);
  const int64_t above = std::min(below + 1, x.size(dim) - 1);
  const at::Tensor low = sorted.narrow(dim, below, 1);
  return low + (sorted.narrow(dim, above, 1) - low) * (place - static_cast<double>(below));
}

struct Ends {
  at::Tensor lower, upper;
};

/// The values beyond which outliers lie.
Ends thresholds(const at::Tensor& x, double outliers, int64_t dim) {
  return {quantile(x, outliers / 2.0, dim), quantile(x, 1.0 - outliers / 2.0, dim)};
}

at::Tensor beyond(const at::Tensor& x, const Ends& ends) {
  return x.gt(ends.upper).logical_or_(x.lt(ends.lower));
}

/// Ends of what is left of each row without its outliers.
Ends trimmed(const at::Tensor& x, const at::Tensor& outlier) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return {x.masked_fill(outlier, kInfinity).amin(-1, true),
          x.masked_fill(outlier, -kInfinity).amax(-1, true)};
}

/// Middle and half width. A range of nothing has a width of 1.
struct Range {
  at::Tensor offset, width;
};

Range range_of(const Ends& ends) {
  const at::Tensor width = (ends.upper - ends.lower) / 2.0;
  return {(ends.upper + ends.lower) / 2.0, width.masked_fill(width.eq(0), 1.0)};
}

at::Tensor nearest(const at::Tensor& unit, const at::Tensor& signposts) {
  const int64_t last = signposts.size(0) - 1;
  const at::Tensor thresholds_between =
      (signposts.narrow(0, 0, last) + signposts.narrow(0, 1, last)) / 2.0;
  return at::searchsorted(thresholds_between.contiguous(), unit.contiguous());
}

/// Factor and offset that give the nearest signposts of these values [n] the values' own deviation
/// and mean, [2].
at::Tensor restoring(const at::Tensor& values, const at::Tensor& signposts) {
  const at::Tensor coded = signposts.index_select(0, nearest(values, signposts));
  const at::Tensor spread = coded.std(/*unbiased=*/false);
  const at::Tensor factor =
      at::where(spread.gt(0), values.std(/*unbiased=*/false) / spread, at::ones_like(spread));
  return at::stack({factor, values.mean() - coded.mean() * factor});
}

class SparseDense final : public Codec {
 public:
  explicit SparseDense(SparseSpec spec) : spec_(spec) {}

  Encoded encode(const at::Tensor& x, const at::Tensor& shared) const override {
    if (!shared.defined())
      throw Error("the calibrated signposts of a sparse_dense codec are missing");
    const at::Tensor signposts = signposts_of(shared);
    at::Tensor outlier;
    Encoded encoded;
    Range range;
    if (spec_.per_channel) {
      const Ends ends = calibrated_ends(shared, x.size(2));
      outlier = beyond(x, ends);
      range = range_of(ends);
      encoded.params = at::empty({x.size(0), x.size(1), 0}, scalar_type(spec_.params));
    } else {
      outlier = beyond(x, thresholds(x, spec_.outliers, -1));
      const Range exact = range_of(trimmed(x, outlier));
      encoded.params =
          at::cat({round_to(exact.width, spec_.params), round_to(exact.offset, spec_.params)}, -1)
              .to(scalar_type(spec_.params));
      range = stored_range(encoded);
    }
    const at::Tensor codes = nearest((x - range.offset) / range.width, signposts);
    encoded.codes = pack(codes.masked_fill(outlier, 0).to(at::kByte), spec_.bits);
    // Row by row: how many, which channels, and their values.
    const at::ScalarType place = index_type(x.size(2));
    const at::Tensor counts = outlier.sum(-1);  // [H, n]
    encoded.more = {counts.to(place), outlier.nonzero().select(1, 2).to(place),
                    round_to(x.masked_select(outlier), spec_.params).to(scalar_type(spec_.params))};
    const int64_t row = encoded.codes.size(2) + encoded.more[0].element_size();
    const int64_t one = encoded.more[1].element_size() + encoded.more[2].element_size();
    encoded.token_bytes = counts.sum(0) * one + row * x.size(0);
    encoded.saturated = at::zeros({x.size(0)}, at::kLong);
    encoded.shared = shared;
    return encoded;
  }

  at::Tensor decode(const Encoded& encoded) const override {
    const at::Tensor codes = unpack(encoded.codes, spec_.bits).to(at::kLong);
    at::Tensor signposts = signposts_of(encoded.shared);
    if (spec_.normed) {
      const at::Tensor tail = encoded.shared[0].slice(0, -2);
      signposts = signposts * tail[0] + tail[1];
    }
    const Range range = spec_.per_channel ? range_of(calibrated_ends(encoded.shared, codes.size(2)))
                                          : stored_range(encoded);
    const at::Tensor unit = signposts.index_select(0, codes.flatten()).reshape(codes.sizes());
    at::Tensor values = (unit * range.width + range.offset).contiguous();
    const at::Tensor row = at::arange(codes.size(0) * codes.size(1), at::kLong)
                               .repeat_interleave(encoded.more[0].to(at::kLong).flatten());
    values.view({-1, codes.size(2)})
        .index_put_({row, encoded.more[1].to(at::kLong)}, encoded.more[2].to(at::kFloat));
    return values;
  }

 private:
  /// One codebook a layer: every head's row ends with it, and with factor and offset of decoding.
  at::Tensor signposts_of(const at::Tensor& shared) const {
    const int64_t levels = int64_t{1} << spec_.bits;
    const int64_t behind = spec_.normed ? 2 : 0;
    return shared[0].narrow(0, shared.size(1) - levels - behind, levels);
  }

  static Ends calibrated_ends(const at::Tensor& shared, int64_t d) {
    return {shared.narrow(1, 0, d).unsqueeze(1), shared.narrow(1, d, d).unsqueeze(1)};
  }

  static Range stored_range(const Encoded& encoded) {
    const at::Tensor stored = encoded.params.to(at::kFloat);
    const at::Tensor width = stored.narrow(-1, 0, 1);
    return {stored.narrow(-1, 1, 1), width.masked_fill(width.eq(0), 1.0)};
  }

  SparseSpec spec_;
};

SparseSpec sparse_spec(const Settings& codec) {
  SparseSpec spec;
  spec.bits = get_int(codec, "bits");
  spec.per_channel = get_text(codec, "axis") == "channel";
  spec.outliers = get_real(codec, "sparse");
  spec.params = float_type(codec, "params");
  spec.normed = get_bool(codec, "signpost_norm");
  return spec;
}

}  // namespace

Part sparse_dense_part() {
  std::vector<Param> params = params_like_uniform({"bits", "axis", "params", "row"});
  for (Param& param : params) {
    if (param.key != "row") continue;
    param.help =
        "what has its own ends on axis token: the row of each KV head, or that of all heads "
        "together, as in KVQuant's code";
  }
  params.push_back({.key = "sparse",
                    .type = Param::Type::real,
                    .fallback = 0.01,
                    .least = 0.0,
                    .most = 0.5,
                    .help = "share of the values that are kept as they are, half at either end"});
  params.push_back({.key = "signpost_steps",
                    .type = Param::Type::integer,
                    .fallback = 50,
                    .least = 1,
                    .most = 10000,
                    .help = "most steps of the k-means that finds the signposts"});
  params.push_back({.key = "signpost_norm",
                    .type = Param::Type::boolean,
                    .fallback = false,
                    .help = "decode to signposts that are stretched and moved so that the "
                            "calibration values keep their mean and deviation (KVQuant's Q-Norm)",
                    .quiet = true});
  return {.family = "codec",
          .name = "sparse_dense",
          .help =
              "k-means signposts between calibrated (axis channel) or own (axis token) ends, "
              "outliers kept apart",
          .params = std::move(params),
          .calibrated = true,
          .refuse = [](const Settings& side, int64_t head_dim) -> std::optional<std::string> {
            const int64_t bits = get_int(side, "codec.bits");
            if (head_dim * bits % 8 != 0) {
              return fmt::format("{} codes of {} bits do not fill whole bytes", head_dim, bits);
            }
            return std::nullopt;
          }};
}

std::unique_ptr<Codec> make_sparse_dense(const Settings& codec, int64_t) {
  return std::make_unique<SparseDense>(sparse_spec(codec));
}

at::Tensor learn_sparse_dense(const Settings& codec, const at::Tensor& x,
                              const at::Tensor& weight) {
  const SparseSpec spec = sparse_spec(codec);
  // Values between their ends and their weights, all heads' one after the other; a head at a time
  // keeps memory low.
  at::Tensor unit = at::empty({x.numel()}, at::kFloat);
  at::Tensor weights = weight.defined() ? at::empty({x.numel()}, at::kFloat) : at::Tensor();
  int64_t count = 0;
  std::vector<at::Tensor> ends;
  for (int64_t head = 0; head < x.size(0); ++head) {
    const at::Tensor one = x.narrow(0, head, 1);
    const Ends found = thresholds(one, spec.outliers, spec.per_channel ? 1 : -1);
    const at::Tensor inner = beyond(one, found).logical_not();
    const Range range = range_of(spec.per_channel ? found : trimmed(one, inner.logical_not()));
    const at::Tensor values = ((one - range.offset) / range.width).masked_select(inner);
    unit.narrow(0, count, values.size(0)).copy_(values);
    if (weight.defined()) {
      weights.narrow(0, count, values.size(0))
          .copy_(weight.narrow(0, head, 1).masked_select(inner));
    }
    count += values.size(0);
    if (spec.per_channel) ends.push_back(at::cat({found.lower, found.upper}, -1).squeeze(1));
  }
  unit = unit.narrow(0, 0, count);
  at::Tensor learned =
      kmeans_scalars(unit, weights.defined() ? weights.narrow(0, 0, count) : at::Tensor(),
                     int64_t{1} << spec.bits, get_int(codec, "signpost_steps"))
          .to(at::kFloat);
  if (spec.normed) learned = at::cat({learned, restoring(unit, learned)});
  const at::Tensor signposts = learned.unsqueeze(0).expand({x.size(0), -1});
  if (!spec.per_channel) return signposts.contiguous();
  return at::cat({at::cat(ends), signposts}, 1);
}

}  // namespace kvlab::quant
