// OScaR: Hadamard rotation, one norm a token over all KV heads, rounded zeros, block flushes.
#include "cache/windows.h"
#include "peers/parts.h"
#include "transform/token_hadamard.h"
#include "transform/transform.h"

namespace peers {
namespace {

using kvlab::cache::Windows;
using kvlab::transform::TokenScale;
using kvlab::transform::Transform;

/// Share of the elements that may differ where our own rotation enters: it may be a unit off, which
/// now and then moves a code.
constexpr double kMoved = 2e-3;

/// Its quantizer: every step in the model's type.
void set_codec(const Case& vector, Parts& parts, const std::string& side, const std::string& axis) {
  const std::string type = vector.text("dtype");
  parts.set(side + ".codec.bits", vector.integer("bits"))
      .set(side + ".codec.axis", axis)
      .set(side + ".codec.group", vector.integer("group"))
      .set(side + ".codec.grid", vector.text("grid"))
      .set(side + ".codec.clip", vector.real("clip_ratio"))
      .set(side + ".codec.clip_kind", "range")
      .set(side + ".codec.zero_group", "unit_range")
      .set(side + ".codec.params", vector.text("scale_dtype"))
      .set(side + ".codec.arithmetic", type)
      .set(side + ".codec.decode_arithmetic", vector.text("dequant_dtype"));
}

struct Stored {
  at::Tensor codes, scale, zero;
};

/// Codes, scales and zeros; returns where groups have a range (constant ones are NaN there).
at::Tensor compare(Findings& findings, const std::string& what, const Quantized& ours,
                   const Stored& stored, const at::Tensor& x) {
  const at::Tensor group = stored.scale.ne(0);
  const at::Tensor element = spread(group, x);
  findings.equal(what + " scale", ours.scale.masked_select(group),
                 stored.scale.masked_select(group));
  findings.equal(what + " zero", ours.zero.masked_select(group), stored.zero.masked_select(group));
  findings.equal(what + " codes", ours.codes.masked_select(element),
                 stored.codes.masked_select(element));
  findings.that(ours.values.isfinite().all().item<bool>(), what + " decoded values are finite");
  return element;
}

void check_primitive(const Case& vector, Findings& findings) {
  Parts parts;
  set_codec(vector, parts, "key", shared_axis(vector.text("axis")));
  const at::Tensor input = vector.only("input");
  at::Tensor x = input;
  if (vector.text("axis") == "token") {
    // The function pads the tokens with zeros; whole caches only ever give it complete groups.
    x = at::constant_pad_nd(x, {0, 0, 0, vector.integer("padded_tokens")});
  }
  const Quantized ours = quantize(parts.codec("key"), x);
  const at::Tensor element =
      compare(findings, "primitive", ours,
              {vector.only("codes"), vector.only("scale"), vector.only("zero")}, x)
          .narrow(1, 0, input.size(1));
  findings.equal("values", ours.values.narrow(1, 0, input.size(1)).masked_select(element),
                 vector.only("dequant").masked_select(element));
}

/// The token scale of a name of its code.
std::string token_scale(const std::string& norm) {
  if (norm == "None") return "none";
  if (norm == "norm_max") return "max_heads";
  if (norm == "norm_L1") return "mean_abs_heads";
  return "l2_heads";
}

/// Rotates as the code does, in float32, and compares with what it stored.
at::Tensor compare_rotated(const Case& vector, Findings& findings, const std::string& name,
                           const at::Tensor& x) {
  const std::string type = vector.text("dtype");
  at::Tensor ours = x;
  if (vector.integer("use_hadamard") == 1) {
    ours = rounded(x.to(at::kDouble).matmul(kvlab::transform::hadamard(x.size(2))).to(at::kFloat),
                   type);
  }
  if (!vector.has(name)) return ours;
  const at::Tensor stored = vector.only(name);
  const at::Tensor seen = ours.narrow(1, 0, stored.size(1));
  // Units of the largest number on the way, before or after.
  const at::Tensor size =
      at::maximum(stored.abs().amax(-1, true), x.narrow(1, 0, stored.size(1)).abs().amax(-1, true));
  findings.close(name, seen, stored, ulp(size, type, 2));
  return at::cat({stored, ours.narrow(1, stored.size(1), ours.size(1) - stored.size(1))}, 1);
}

/// Keys [H, n, d] over their norms, and the norms; those are undefined where none are taken.
struct Normalized {
  at::Tensor keys, norms;
};

/// One norm a token over all heads. The code's norm_rsqrt
/// multiplies by the inverse norm when it encodes and by the norm when it decodes, each rounded.
Normalized normalize(const Parts& parts, const at::Tensor& keys, const std::string& type) {
  TokenScale scale = TokenScale::from(parts.recipe().side("key"));
  if (scale.kind == TokenScale::Kind::none) return {keys, {}};
  const auto stored = [&] { return Transform({}, {}, scale).scales(keys.unsqueeze(0)).flatten(); };
  const at::Tensor scaled = Transform({}, {}, scale).forward(keys, 0, stored());
  Normalized result;
  result.keys = rounded(scaled, type).contiguous();
  scale.inverse = false;
  result.norms = stored().to(at::kFloat);
  return result;
}

/// Tokens that the code committed at each length are those that the next token reads quantized.
void check_commits(const Case& vector, Findings& findings, const Windows& windows) {
  if (!vector.has("commit_log")) return;
  const at::Tensor log = vector.tensor("commit_log");
  bool agree = true;
  for (int64_t row = 0; row < log.size(0); ++row) {
    const auto length = log[row][0].item<int64_t>();
    agree = agree && windows.boundary(Windows::Side::key, length) == log[row][1].item<int64_t>() &&
            windows.boundary(Windows::Side::value, length) == log[row][2].item<int64_t>();
  }
  findings.that(agree, "tokens committed at each length");
}

/// A whole cache: what is shared by the comparisons of its sides.
struct Cache {
  const Case& vector;
  Findings& findings;
  Parts parts;
  std::string type;
  int64_t mixed = 0;    // tokens of a block that are mixed, 0: none
  bool turned = false;  // values are rotated on the way in and out

  at::Tensor mix(const at::Tensor& keys) const {
    return mixed > 0 ? rounded(kvlab::transform::rotate_tokens(keys, mixed), type) : keys;
  }
  /// Keys in rotated space from decoded ones.
  at::Tensor read_keys(const at::Tensor& decoded, const at::Tensor& norms) const {
    return mix(norms.defined() ? rounded(decoded * norms.reshape({1, -1, 1}), type) : decoded);
  }
  at::Tensor turn(const at::Tensor& values, bool back) const {
    if (!turned) return values;
    const at::Tensor hadamard = kvlab::transform::hadamard(values.size(2));
    return rounded(values.to(at::kDouble).matmul(back ? hadamard.t() : hadamard), type);
  }
  /// Units of the largest number of each token, that of a mixed block.
  at::Tensor units(const at::Tensor& stored, double count) const {
    return ulp(mixed > 0 ? stored.abs().amax() : stored.abs().amax(-1, true), type, count);
  }
};

void check_prompt_keys(const Cache& cache, const at::Tensor& rotated_keys, int64_t committed) {
  const Case& vector = cache.vector;
  Findings& findings = cache.findings;
  const at::Tensor history = cache.mix(rotated_keys.narrow(1, 0, committed));
  const Normalized own = normalize(cache.parts, history, cache.type);
  at::Tensor norms = own.norms, entering = own.keys;
  // Ours are exact. In float32 the code's sum of squares alone is up to three units off.
  const double count = cache.type == "fp32" ? 4 : 1;
  const bool stored = vector.has("K_norms");
  if (stored) {
    norms = vector.only("K_norms");
    findings.close("norms", own.norms, norms, ulp(norms, cache.type, count));
    entering = vector.only("K_normalized");
    // Mixing leaves errors of the size of the block's largest token on small ones.
    const at::Tensor largest = history.abs().amax() / norms.reshape({1, -1, 1});
    findings.close(
        "normalized keys", own.keys, entering,
        cache.mixed > 0 ? ulp(largest, cache.type, count) : cache.units(entering, count));
  }
  const Quantized key = quantize(cache.parts.codec("key"), entering);
  if (vector.has("K_codes")) {
    compare(findings, "key", key,
            {vector.only("K_codes"), vector.only("K_scale"), vector.only("K_zero")}, entering);
  }
  const at::Tensor read = vector.only("K_dequant");
  const int64_t rest = read.size(1) - committed;
  findings.close("keys as read", cache.read_keys(key.values, norms), read.narrow(1, 0, committed),
                 cache.units(read.narrow(1, 0, committed), stored ? 2 : count),
                 stored ? 0.0 : kMoved);
  findings.equal("keys in the window", rotated_keys.narrow(1, committed, rest),
                 read.narrow(1, committed, rest));
}

void check_prompt_values(const Cache& cache, const at::Tensor& values, int64_t committed) {
  const Case& vector = cache.vector;
  Findings& findings = cache.findings;
  at::Tensor history = values.narrow(1, 0, committed);
  const bool stored = vector.has("V_rot");
  history =
      stored ? compare_rotated(vector, findings, "V_rot", history) : cache.turn(history, false);
  const Quantized value = quantize(cache.parts.codec("value"), history);
  if (vector.has("V_codes")) {
    compare(findings, "value", value,
            {vector.only("V_codes"), vector.only("V_scale"), vector.only("V_zero")}, history);
  }
  const at::Tensor read = vector.only("V_dequant");
  const int64_t rest = read.size(1) - committed;
  findings.close("values as read", cache.turn(value.values, true), read.narrow(1, 0, committed),
                 cache.units(read.narrow(1, 0, committed), 2),
                 cache.turned && !stored ? kMoved : 0.0);
  findings.equal("values in the window", values.narrow(1, committed, rest),
                 read.narrow(1, committed, rest));
}

/// Decoding commits the same groups that one pass over all tokens has.
void check_decoded(const Cache& cache, const at::Tensor& rotated_keys, const at::Tensor& values,
                   const Windows& windows) {
  const at::Tensor keys = cache.vector.only("K_dequant_after_decode");
  const int64_t length = keys.size(1);
  const int64_t end = windows.boundary(Windows::Side::key, length);
  const Normalized own =
      normalize(cache.parts, cache.mix(rotated_keys.narrow(1, 0, end)), cache.type);
  const at::Tensor decoded = quantize(cache.parts.codec("key"), own.keys).values;
  cache.findings.close("keys after decoding", cache.read_keys(decoded, own.norms),
                       keys.narrow(1, 0, end), cache.units(keys.narrow(1, 0, end), 2), kMoved);
  cache.findings.close("keys in the window after decoding",
                       rotated_keys.narrow(1, end, length - end), keys.narrow(1, end, length - end),
                       cache.units(keys.narrow(1, end, length - end), 2));

  const at::Tensor read = cache.vector.only("V_dequant_after_decode");
  const int64_t end_v = windows.boundary(Windows::Side::value, length);
  const at::Tensor history = cache.turn(values.narrow(1, 0, end_v), false);
  cache.findings.close("values after decoding",
                       cache.turn(quantize(cache.parts.codec("value"), history).values, true),
                       read.narrow(1, 0, end_v), cache.units(read.narrow(1, 0, end_v), 2), kMoved);
  cache.findings.equal("values in the window after decoding",
                       values.narrow(1, end_v, length - end_v),
                       read.narrow(1, end_v, length - end_v));
}

void check_cache(const Case& vector, Findings& findings) {
  const std::string norm = vector.text("norm_factoring");
  const bool rotates = vector.integer("use_hadamard") == 1;
  Cache cache{vector, findings, {}, vector.text("dtype")};
  cache.turned = rotates && vector.integer("offline_v_hadamard") == 0;
  if (vector.integer("k_token_rotation") == 1) cache.mixed = vector.integer("residual_length");
  set_codec(vector, cache.parts, "key", "channel");
  set_codec(vector, cache.parts, "value", "token");
  cache.parts.set("key.token_scale", token_scale(norm))
      .set("key.token_scale_params", cache.type)
      .set("key.norm_op", norm == "norm_rsqrt" ? "rsqrt" : "sqrt_div")
      .set("window.recent", vector.integer("residual_length"))
      .set("window.flush", vector.text("v_flush_mode") == "block" ? "full" : "kivi");

  const at::Tensor keys = vector.only("K"), values = vector.only("V");
  const int64_t tokens = vector.only("K_dequant").size(1);
  const Windows windows(cache.parts.recipe().settings, keys.size(1));
  const int64_t committed_k = windows.boundary(Windows::Side::key, tokens);
  const int64_t committed_v = windows.boundary(Windows::Side::value, tokens);
  findings.that(
      committed_k == vector.integer("committed_k") && committed_v == vector.integer("committed_v"),
      "tokens that are quantized after the prompt");
  check_commits(vector, findings, windows);
  if (vector.has("Q")) compare_rotated(vector, findings, "Q_rot", vector.only("Q"));
  const at::Tensor rotated_keys = compare_rotated(vector, findings, "K_rot", keys);
  check_prompt_keys(cache, rotated_keys, committed_k);
  check_prompt_values(cache, values, committed_v);
  if (vector.has("K_dequant_after_decode")) check_decoded(cache, rotated_keys, values, windows);
}

}  // namespace

void check_oscar2(const Case& vector, Findings& findings) {
  if (vector.text("mode") == "primitive") {
    check_primitive(vector, findings);
  } else {
    check_cache(vector, findings);
  }
}

}  // namespace peers
