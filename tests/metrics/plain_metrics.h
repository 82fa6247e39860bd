#pragma once

#include <ATen/ATen.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "cache/decoder.h"
#include "data/sample.h"
#include "method/recipe.h"
#include "quant/plain_codec.h"

/// A whole cell once more: transform, codec, windows, attention and every metric of contract
/// section 5 by scalars and loops. Rotations: none or Sylvester's Hadamard.
namespace plain {

using Numbers = std::vector<double>;

/// Numbers by indices.
struct Grid {
  std::vector<int64_t> shape;
  Numbers data;

  explicit Grid(std::vector<int64_t> sizes = {}, double value = 0.0) : shape(std::move(sizes)) {
    size_t count = 1;
    for (const int64_t size : shape) count *= static_cast<size_t>(size);
    data.assign(count, value);
  }
  explicit Grid(const at::Tensor& x) : shape(x.sizes().vec()) {
    const at::Tensor wide = x.to(at::kDouble).contiguous();
    data.assign(wide.const_data_ptr<double>(), wide.const_data_ptr<double>() + wide.numel());
  }
  template <class... Index>
  double& operator()(Index... index) {
    return data[offset({static_cast<int64_t>(index)...})];
  }
  template <class... Index>
  double operator()(Index... index) const {
    return data[offset({static_cast<int64_t>(index)...})];
  }

 private:
  size_t offset(std::initializer_list<int64_t> index) const {
    size_t place = 0;
    size_t axis = 0;
    for (const int64_t i : index)
      place = place * static_cast<size_t>(shape[axis++]) + static_cast<size_t>(i);
    return place;
  }
};

/// One side as the cache has it.
struct Side {
  bool quantized = true;
  Grid captured, read;     // [B, H, T, d]; `read` is decoded over the span, captured elsewhere
  Grid entering_norm;      // [B, H, T], over the span
  Grid saturated;          // [H]
  double token_bytes = 0;  // of codes and parameters of one token, all heads and sequences
  double code_bytes = 0, param_bytes = 0, scale_bytes = 0;  // its parts, and scales
  double center_bytes = 0;
};

inline double stored_scale(double measured, const std::string& type, bool inverse) {
  if (measured == 0.0) return 1.0;
  const double number = inverse ? 1.0 / measured : measured;
  const float rounded = round_to(static_cast<float>(number), type);
  return rounded == 0.0f ? 1.0 : static_cast<double>(rounded);
}

/// Encodes and decodes tokens [begin, end) of x [B, H, T, d]; center [H, d] or empty.
inline Side make_side(const at::Tensor& x, const kvlab::Settings& side, const Numbers& center,
                      int64_t begin, int64_t end) {
  using kvlab::get_int;
  using kvlab::get_text;
  Side made;
  made.captured = made.read = Grid(x);
  const int64_t batch = x.size(0), heads = x.size(1), tokens = x.size(2), d = x.size(3);
  made.entering_norm = Grid({batch, heads, tokens});
  made.saturated = Grid({heads});
  const kvlab::Settings codec = kvlab::below(side, "codec.");
  made.quantized = get_text(codec, "kind") != "passthrough";
  if (!made.quantized) return made;

  const std::string kind = get_text(side, "token_scale");
  const bool rotated = get_text(side, "rotate") == "hadamard";
  const bool rotate_first = get_text(side, "order") == "rotate_scale";
  const bool inverse = kind.rfind("l2", 0) == 0 && get_text(side, "norm_op") == "rsqrt";
  const double root = std::sqrt(static_cast<double>(d));
  const auto turn = [&](const Numbers& row) {  // Sylvester's matrix is its own inverse
    if (!rotated) return row;
    Numbers turned(row.size(), 0.0);
    for (size_t i = 0; i < row.size(); ++i) {
      for (size_t j = 0; j < row.size(); ++j) {
        turned[j] += (std::popcount(i & j) % 2 == 0 ? row[i] : -row[i]) / root;
      }
    }
    return turned;
  };
  const auto centre = [&](int64_t h, int64_t c) {
    return center.empty() ? 0.0 : center[static_cast<size_t>(h * d + c)];
  };

  const int64_t n = end - begin;
  for (int64_t b = 0; b < batch; ++b) {
    at::Tensor entering = at::zeros({heads, n, d}, at::kFloat);
    Grid scales({heads, n}, 1.0);
    for (int64_t t = 0; t < n; ++t) {
      std::vector<Numbers> before, measured_on;
      for (int64_t h = 0; h < heads; ++h) {
        Numbers row;
        for (int64_t c = 0; c < d; ++c)
          row.push_back(made.captured(b, h, begin + t, c) - centre(h, c));
        before.push_back(row);
        measured_on.push_back(rotate_first ? turn(row) : row);
      }
      Numbers squares, largest, means;
      for (const Numbers& row : measured_on) {
        double square = 0, most = 0, sum = 0;
        for (const double v : row) {
          square += v * v;
          most = std::max(most, std::fabs(v));
          sum += std::fabs(v);
        }
        squares.push_back(square);
        largest.push_back(most);
        means.push_back(sum / static_cast<double>(d));
      }
      double all = 0;
      for (const double square : squares) all += square;
      for (int64_t h = 0; h < heads; ++h) {
        const auto i = static_cast<size_t>(h);
        if (kind != "none") {
          const double measured = kind == "l2_heads"   ? std::sqrt(all)
                                  : kind == "l2_head"  ? std::sqrt(squares[i])
                                  : kind == "max_head" ? largest[i]
                                                       : means[i];
          scales(h, t) = stored_scale(measured, get_text(side, "token_scale_params"), inverse);
        }
        Numbers row = rotate_first ? turn(before[i]) : before[i];
        for (double& v : row) v = inverse ? v * scales(h, t) : v / scales(h, t);
        if (!rotate_first) row = turn(row);
        double norm = 0;
        for (int64_t c = 0; c < d; ++c) {
          const auto v = static_cast<float>(row[static_cast<size_t>(c)]);
          entering[h][t][c] = v;
          norm += static_cast<double>(v) * v;
        }
        made.entering_norm(b, h, begin + t) = std::sqrt(norm);
      }
    }
    const Coded coded = quantize(entering, codec);
    const Grid values(coded.values);
    for (int64_t h = 0; h < heads; ++h) {
      made.saturated(h) += static_cast<double>(coded.saturated[h].item<int64_t>());
      for (int64_t t = 0; t < n; ++t) {
        Numbers row;
        for (int64_t c = 0; c < d; ++c) {
          row.push_back(inverse ? values(h, t, c) / scales(h, t) : values(h, t, c) * scales(h, t));
        }
        row = turn(row);
        for (int64_t c = 0; c < d; ++c)
          made.read(b, h, begin + t, c) = row[static_cast<size_t>(c)] + centre(h, c);
      }
    }
  }

  // Bytes of one token: codes, and its share of the parameters.
  const double rows = static_cast<double>(batch * heads);
  const double size = get_text(codec, "params") == "fp32" ? 4 : 2;
  const double numbers = get_text(codec, "grid") == "symmetric" ? 1 : 2;
  const bool per_token = get_text(codec, "axis") == "token";
  const auto group = static_cast<double>(per_token ? std::min(get_int(codec, "group"), d)
                                                   : get_int(codec, "group"));
  made.code_bytes = rows * static_cast<double>(d * get_int(codec, "bits")) / 8;
  made.param_bytes = rows * static_cast<double>(d) / group * numbers * size;
  if (kind != "none") {
    const double scale_size = get_text(side, "token_scale_params") == "fp32" ? 4 : 2;
    made.scale_bytes = scale_size * (kind == "l2_heads" ? static_cast<double>(batch) : rows);
  }
  if (!center.empty()) made.center_bytes = static_cast<double>(heads * d * 4);
  return made;
}

/// Every metric, flattened, under its name.
inline std::map<std::string, Numbers> metrics_of(const kvlab::data::Sample& sample,
                                                 const kvlab::method::Recipe& recipe,
                                                 const Rule& rule, const Numbers& key_center) {
  const int64_t batch = sample.batch(), kv = sample.kv_heads(), heads = sample.q_heads(),
                tokens = sample.tokens();
  const int64_t d = sample.head_dim(), probes = sample.positions.size(0), share = heads / kv;
  const int64_t begin = std::min(rule.sink, tokens);
  const int64_t unit = std::lcm(rule.keys ? rule.key_group : 1, rule.values ? rule.value_group : 1);
  const int64_t end = begin + (tokens - begin) / unit * unit;
  const Side key = make_side(sample.k, recipe.side("key"), key_center, begin, end);
  const Side value = make_side(sample.v, recipe.side("value"), {}, begin, end);
  const Grid q(sample.q), w_o(sample.w_o);

  std::map<std::string, Numbers> m;
  const auto square = [](double x) { return x * x; };
  const auto row_error = [&](const Side& side, int64_t b, int64_t h, int64_t t) {
    double sum = 0;
    for (int64_t c = 0; c < d; ++c)
      sum += square(side.read(b, h, t, c) - side.captured(b, h, t, c));
    return sum;
  };
  const auto row_square = [&](const Side& side, int64_t b, int64_t h, int64_t t) {
    double sum = 0;
    for (int64_t c = 0; c < d; ++c) sum += square(side.captured(b, h, t, c));
    return sum;
  };

  // Errors over the span.
  for (const auto& [name, side] :
       {std::pair{std::string("k"), &key}, std::pair{std::string("v"), &value}}) {
    for (int64_t h = 0; h < kv; ++h) {
      double error = 0, total = 0;
      for (int64_t b = 0; b < batch; ++b) {
        for (int64_t t = begin; t < end; ++t) {
          error += row_error(*side, b, h, t);
          total += row_square(*side, b, h, t);
        }
      }
      m[name + "_mse"].push_back(error / static_cast<double>(batch * (end - begin) * d));
      m[name + "_nmse"].push_back(error / total);
    }
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t h = 0; h < kv; ++h) {
        for (int64_t t = 0; t < tokens; ++t) {
          m[name + "_norm"].push_back(std::sqrt(row_square(*side, b, h, t)));
          m[name + "_se"].push_back(t >= begin && t < end
                                        ? row_error(*side, b, h, t)
                                        : std::numeric_limits<double>::quiet_NaN());
        }
        for (int64_t first = begin; first < end; first += 32) {
          for (int64_t c = 0; c < d; ++c) {
            double error = 0;
            for (int64_t t = first; t < std::min(first + 32, end); ++t) {
              error += square(side->read(b, h, t, c) - side->captured(b, h, t, c));
            }
            m[name + "_se_channels"].push_back(error);
          }
        }
      }
    }
  }
  for (int64_t h = 0; h < kv; ++h) {
    m["saturated"].push_back(key.saturated(h) + value.saturated(h));
    m["nonfinite"].push_back(0);
  }

  for (int64_t i = 0; i < probes; ++i) {
    m["position"].push_back(sample.positions[i].item<double>());
  }

  // Attention.
  std::vector<Decoder::Seen> steps;
  Decoder decoder(rule);
  for (int64_t p = 0; p < tokens; ++p) steps.push_back(decoder.step());
  Grid exact_out({batch, heads, probes, d}), from_key({batch, heads, probes, d}),
      from_value({batch, heads, probes, d});
  for (int64_t j = 0; j < heads; ++j) {
    double logit = 0, kl = 0, top = 0, cosine = 0, error = 0, error_k = 0, error_v = 0, norm = 0;
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t i = 0; i < probes; ++i) {
        const auto p = sample.positions[i].item<int64_t>();
        const Decoder::Seen& seen = steps[static_cast<size_t>(p)];
        const int64_t h = j / share;
        const auto decoded = [&](int64_t t, int64_t history) {
          return t >= begin && t < begin + history;
        };
        Numbers exact, read;
        for (int64_t t = 0; t <= p; ++t) {
          double a = 0, r = 0;
          for (int64_t c = 0; c < d; ++c) {
            a += q(b, j, i, c) * key.captured(b, h, t, c);
            r += q(b, j, i, c) * (decoded(t, seen.key) ? key.read : key.captured)(b, h, t, c);
          }
          exact.push_back(a / std::sqrt(static_cast<double>(d)));
          read.push_back(r / std::sqrt(static_cast<double>(d)));
        }
        const auto normalizer = [](const Numbers& logits) {
          double most = logits[0], sum = 0;
          for (const double l : logits) most = std::max(most, l);
          for (const double l : logits) sum += std::exp(l - most);
          return most + std::log(sum);
        };
        const double exact_sum = normalizer(exact), read_sum = normalizer(read);
        double squares = 0;
        for (int64_t t = 0; t <= p; ++t) {
          const auto s = static_cast<size_t>(t);
          const double w = std::exp(exact[s] - exact_sum), w_read = std::exp(read[s] - read_sum);
          squares += square(read[s] - exact[s]);
          kl += w * ((exact[s] - exact_sum) - (read[s] - read_sum));
          for (int64_t c = 0; c < d; ++c) {
            const double v = value.captured(b, h, t, c);
            const double v_read =
                (decoded(t, seen.value) ? value.read : value.captured)(b, h, t, c);
            exact_out(b, j, i, c) += w * v;
            from_key(b, j, i, c) += (w_read - w) * v;
            from_value(b, j, i, c) += w_read * (v_read - v);
          }
        }
        logit += squares / static_cast<double>(p + 1);
        const auto strongest = [](const Numbers& x) {
          return std::distance(x.begin(), std::max_element(x.begin(), x.end()));
        };
        top += strongest(exact) == strongest(read) ? 1 : 0;
        double dot = 0, exact_square = 0, read_square = 0, probe_error = 0;
        for (int64_t c = 0; c < d; ++c) {
          const double o = exact_out(b, j, i, c), e = from_key(b, j, i, c) + from_value(b, j, i, c);
          dot += o * (o + e);
          exact_square += square(o);
          read_square += square(o + e);
          probe_error += square(e);
          error_k += square(from_key(b, j, i, c));
          error_v += square(from_value(b, j, i, c));
        }
        cosine += dot / std::sqrt(exact_square * read_square);
        error += probe_error;
        norm += exact_square;
      }
    }
    const auto count = static_cast<double>(batch * probes);
    m["logit_mse"].push_back(logit / count);
    m["attn_kl"].push_back(kl / count);
    m["attn_top1"].push_back(top / count);
    m["out_cos"].push_back(cosine / count);
    m["out_rel"].push_back(std::sqrt(error / norm));
    m["out_rel_k"].push_back(std::sqrt(error_k / norm));
    m["out_rel_v"].push_back(std::sqrt(error_v / norm));
  }
  double wo_error = 0, wo_key = 0, wo_value = 0, wo_norm = 0;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t i = 0; i < probes; ++i) {
      for (int64_t row = 0; row < w_o.shape[0]; ++row) {
        double o = 0, ek = 0, ev = 0;
        for (int64_t j = 0; j < heads; ++j) {
          for (int64_t c = 0; c < d; ++c) {
            const double w = w_o(row, j * d + c);
            o += w * exact_out(b, j, i, c);
            ek += w * from_key(b, j, i, c);
            ev += w * from_value(b, j, i, c);
          }
        }
        wo_error += square(ek + ev);
        wo_key += square(ek);
        wo_value += square(ev);
        wo_norm += square(o);
      }
    }
  }
  m["wo_rel"] = {std::sqrt(wo_error / wo_norm)};
  m["wo_rel_k"] = {std::sqrt(wo_key / wo_norm)};
  m["wo_rel_v"] = {std::sqrt(wo_value / wo_norm)};
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t j = 0; j < heads; ++j) {
      for (int64_t i = 0; i < probes; ++i) {
        double se = 0, ss = 0;
        for (int64_t c = 0; c < d; ++c) {
          se += square(from_key(b, j, i, c) + from_value(b, j, i, c));
          ss += square(exact_out(b, j, i, c));
        }
        m["out_se"].push_back(se);
        m["out_ss"].push_back(ss);
      }
    }
  }

  // Norm imbalance: per sequence, then averaged.
  const auto spread = [](const Numbers& x) {
    return *std::max_element(x.begin(), x.end()) / *std::min_element(x.begin(), x.end());
  };
  double over_heads = 0;
  for (int64_t b = 0; b < batch; ++b) {
    Numbers norms;
    for (int64_t t = 0; t < tokens; ++t) {
      double sum = 0;
      for (int64_t h = 0; h < kv; ++h) sum += row_square(key, b, h, t);
      norms.push_back(std::sqrt(sum));
    }
    over_heads += spread(norms) / static_cast<double>(batch);
  }
  m["tni_ratio_heads"] = {over_heads};
  const int64_t block = rule.key_group > 1 ? rule.key_group : 32;
  const double levels =
      std::pow(2.0, static_cast<double>(kvlab::get_int(recipe.settings, "key.codec.bits"))) - 1;
  for (int64_t h = 0; h < kv; ++h) {
    double ratio = 0, ratio_in = 0, cv = 0, block_ratio = 0, bound = 0, block_mse = 0;
    for (int64_t b = 0; b < batch; ++b) {
      Numbers norms, entering;
      double mean = 0, variance = 0;
      for (int64_t t = 0; t < tokens; ++t) norms.push_back(std::sqrt(row_square(key, b, h, t)));
      for (int64_t t = begin; t < end; ++t) entering.push_back(key.entering_norm(b, h, t));
      for (const double n : norms) mean += n / static_cast<double>(tokens);
      for (const double n : norms) variance += square(n - mean) / static_cast<double>(tokens);
      const auto sequences = static_cast<double>(batch);
      ratio += spread(norms) / sequences;
      ratio_in += spread(entering) / sequences;
      cv += std::sqrt(variance) / mean / sequences;
      const int64_t blocks = (end - begin) / block;
      for (int64_t k = 0; k < blocks; ++k) {
        const auto first = norms.begin() + begin + k * block;
        const Numbers part(first, first + block);
        const double gap = *std::max_element(part.begin(), part.end()) -
                           *std::min_element(part.begin(), part.end());
        double errors = 0;
        for (int64_t t = 0; t < block; ++t) errors += row_error(key, b, h, begin + k * block + t);
        const double weight = 1.0 / (sequences * static_cast<double>(blocks));
        block_ratio += spread(part) * weight;
        bound += gap * gap / (12 * levels * levels) * weight;
        block_mse += errors / static_cast<double>(block) * weight;
      }
    }
    m["tni_ratio"].push_back(ratio);
    m["tni_ratio_in"].push_back(ratio_in);
    m["tni_cv"].push_back(cv);
    if ((end - begin) / block == 0)
      block_ratio = bound = block_mse = std::numeric_limits<double>::quiet_NaN();
    m["tni_block_ratio"].push_back(block_ratio);
    m["tni_bound"].push_back(bound);
    m["tni_block_mse"].push_back(block_mse);
  }

  // Memory at the last step.
  const double captured_token = static_cast<double>(batch * kv * d * kvlab::size_of(sample.dtype));
  const auto token_elements = static_cast<double>(batch * kv * d);
  struct Bytes {
    double codes = 0, params = 0, scales = 0, window = 0, centers = 0;
    double all() const { return codes + params + scales + window + centers; }
  };
  const auto held = [&](const Decoder::Seen& seen, int64_t length) {
    Bytes bytes;
    for (const auto& [side, history] : {std::pair{&key, seen.key}, std::pair{&value, seen.value}}) {
      const auto n = static_cast<double>(history);
      bytes.codes += n * side->code_bytes;
      bytes.params += n * side->param_bytes;
      bytes.scales += n * side->scale_bytes;
      bytes.window += (static_cast<double>(length) - n) * captured_token;
      bytes.centers += side->center_bytes;
    }
    return bytes;
  };
  const Decoder::Seen& last = steps.back();
  const Bytes now = held(last, tokens);
  m["bits_per_element"] = {8 * now.all() / (2 * token_elements * static_cast<double>(tokens))};
  m["bits_per_element_hist"] = {8 * (now.codes + now.params + now.scales) /
                                (token_elements * static_cast<double>(last.key + last.value))};
  m["bytes_codes"] = {now.codes};
  m["bytes_params"] = {now.params};
  m["bytes_scales"] = {now.scales};
  m["bytes_window"] = {now.window};
  m["bytes_centers"] = {now.centers};
  m["bytes_padding"] = {0};
  m["rotation_bytes"] = {0};  // Hadamard matrices are not stored
  const bool buffered = (rule.flush == "full" || rule.flush == "kivi") && rule.recent > 0;
  const int64_t cycle = buffered ? rule.recent : rule.flush == "ring" && unit == 1 ? 8 : unit;
  Decoder longer(rule);
  int64_t length = 0;
  for (const auto& [name, most] : {std::pair{"bits_at_8k", 8192}, std::pair{"bits_at_32k", 32768},
                                   std::pair{"bits_at_128k", 131072}}) {
    double sum = 0;
    while (length < most) {
      const Decoder::Seen seen = longer.step();
      if (++length > most - cycle) {
        sum += 8 * held(seen, length).all() / (2 * token_elements * static_cast<double>(length));
      }
    }
    m[name] = {sum / static_cast<double>(cycle)};
  }
  return m;
}

}  // namespace plain
