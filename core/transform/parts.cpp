#include "transform/parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "quant/parts.h"

namespace kvlab::transform {
namespace {

using Type = Param::Type;

std::optional<std::string> refuse_hadamard_of(int64_t head_dim) {
  if (has_hadamard(head_dim)) return std::nullopt;
  return fmt::format(
      "no Hadamard matrix of size {} can be built here (known: Sylvester, Paley and their "
      "products)",
      head_dim);
}

std::optional<std::string> refuse_hadamard(const Settings& side, int64_t head_dim) {
  const int64_t block = get_int(side, "rotate_block");
  if (block == 0) return refuse_hadamard_of(head_dim);
  if (head_dim % block != 0) {
    return fmt::format("a rotate_block of {} channels does not divide the head dimension {}", block,
                       head_dim);
  }
  if (get_int(side, "rotate_heads") > 1) {
    return "rotate_block is a part of a head, rotate_heads several of them: take one";
  }
  return refuse_hadamard_of(block);
}

/// A composition other than OSCAR's default, which `bit_reversal` cuts to U·H.
bool is_recomposed(const Settings& side) { return get_text(side, "composition") != "r_h_pbr"; }

std::optional<std::string> refuse_base(bool reverses_bits, int64_t head_dim) {
  if (auto reason = refuse_hadamard_of(head_dim)) return reason;
  const bool power_of_two = (head_dim & (head_dim - 1)) == 0;
  if (reverses_bits && !power_of_two) {
    return fmt::format("bit reversal needs a head dimension that is a power of two, not {}",
                       head_dim);
  }
  return std::nullopt;
}

std::optional<std::string> refuse_covariance_hadamard(const Settings& side, int64_t head_dim) {
  const bool reverses =
      is_recomposed(side) ? factors_of(get_text(side, "composition")).find('p') != std::string::npos
                          : get_bool(side, "bit_reversal");
  return refuse_base(reverses, head_dim);
}

Param covariance_form() {
  return {.key = "covariance",
          .fallback = "code",
          .choices = {"code", "paper", "own"},
          .help =
              "code and paper: of the queries for keys; for values from the proxy weights of "
              "OSCAR's code, or from the attention output as in its paper. own: of the keys or the "
              "values themselves (ktk and vtv of its code)",
          .no_effect = [](const std::string& name, const Settings& side,
                          int64_t) -> std::optional<std::string> {
            // Every query head has as many rows as the others, so the mean of their covariances is
            // that of all rows together.
            if (name == "key" && get_text(side, "covariance") != "own") {
              return "no effect by algebra: keys use the query covariance in code and paper";
            }
            return std::nullopt;
          }};
}

Param covariance_scope() {
  return {.key = "covariance_scope",
          .fallback = "layer",
          .choices = {"layer", "head"},
          .help = "one rotation for all KV heads of a layer, or one for each"};
}

Param bit_reversal(bool (*used)(const Settings&)) {
  return {.key = "bit_reversal",
          .type = Type::boolean,
          .fallback = true,
          .help = "spread the leading directions over the groups (U·H·P instead of U·H)",
          .used = used,
          .no_effect = [](const std::string&, const Settings& side,
                          int64_t head_dim) -> std::optional<std::string> {
            const bool whole_row =
                get_text(side, "codec.axis") == "token" && get_int(side, "codec.group") >= head_dim;
            if (whole_row || get_text(side, "codec.axis") == "channel") {
              return "no effect by algebra: a permutation of channels moves no element to another "
                     "group";
            }
            return std::nullopt;
          }};
}

Param composition() {
  Param param{.key = "composition",
              .fallback = compositions().front().name,
              .help =
                  "order of the factors, by the names of OSCAR's code: r the eigenvectors, h the "
                  "Hadamard matrix, pbr and br the bit reversal",
              .quiet = true};
  for (const Composition& one : compositions()) param.choices.push_back(one.name);
  return param;
}

bool over_covariance(const Settings& side) { return get_text(side, "learned_over") != "hadamard"; }
bool over_covariance_hadamard(const Settings& side) {
  return get_text(side, "learned_over") == "covariance_hadamard";
}

Param learned_param(Param param) {
  const bool reversal = param.key == "bit_reversal";
  param.used = reversal ? over_covariance_hadamard : over_covariance;
  // Learning is chaotic: from a permuted start it ends elsewhere.
  if (reversal) param.no_effect = {};
  return param;
}

bool mixes_heads(const Settings& side) {
  const std::string rotate = get_text(side, "rotate");
  return (rotate == "hadamard" || rotate == "signed_hadamard") && get_int(side, "rotate_heads") > 1;
}

Param rotate_block() {
  return {.key = "rotate_block",
          .type = Type::integer,
          .fallback = 0,
          .least = 0,
          .most = 1 << 16,
          .help =
              "a Hadamard matrix of its own for each so many channels (SGLang's and Saw-INT4's "
              "order 16); 0: one for the head",
          .quiet = true};
}

Param rotation_params() {
  return {
      .key = "rotation_params",
      .fallback = "fp64",
      .choices = {"fp64", "fp32", "bf16"},
      .help = "type that the matrix is rounded to before it is used; OSCAR's runtime loads bf16",
      .quiet = true};
}

Param rotate_heads() {
  return {.key = "rotate_heads",
          .type = Type::integer,
          .fallback = 1,
          .least = 1,
          .most = 64,
          .help =
              "one Hadamard matrix over adjacent KV heads, side by side: as many as the largest "
              "power of two up to this that divides their number"};
}

/// Whether M keeps the norm that the token scale is taken of.
bool keeps_norm(const Settings& side) {
  if (get_text(side, "basis") != "none") return false;
  return !mixes_heads(side) || get_text(side, "token_scale") == "l2_heads";
}

bool is_l2(const Settings& side) { return get_text(side, "token_scale").starts_with("l2"); }

Param mix_tokens() {
  return {.key = "mix_tokens",
          .type = Type::integer,
          .fallback = 0,
          .least = 0,
          .most = 4096,
          .help =
              "one Hadamard matrix over the tokens of each block of so many, after the rotation "
              "of channels and before the token scale (k_token_rotation of OScaR's code); such "
              "blocks leave the window whole. 0: none",
          .quiet = true};
}

std::vector<Param> token_scale_params() {
  return {
      {.key = "token_scale_params",
       .fallback = "fp32",
       .choices = {"fp32", "fp16", "bf16", "fp8_e4m3", "int8", "adaptive"},
       .help = "type of the stored token scales; int8: log2 in steps of 1/16; adaptive: fp16 below "
               "the threshold, fp8_e4m3 from it on, and a bit that says which"},
      {.key = "token_scale_threshold",
       .type = Type::real,
       .fallback = 1.0,
       .least = 0,
       .help = "norm below which adaptive token scales have 16 bits",
       .used =
           [](const Settings& side) { return get_text(side, "token_scale_params") == "adaptive"; }},
      {.key = "order",
       .fallback = "rotate_scale",
       .choices = {"rotate_scale", "scale_rotate"},
       .help = "rotate before or after the token scale is divided out",
       .used =
           [](const Settings& side) {
             return get_text(side, "rotate") != "none" || get_text(side, "basis") != "none" ||
                    get_text(side, "reorder") != "none";
           },
       .no_effect = [](const std::string&, const Settings& side,
                       int64_t) -> std::optional<std::string> {
         if (is_l2(side) && keeps_norm(side)) {
           return "no effect by algebra: a rotation keeps the L2 norm";
         }
         return std::nullopt;
       }},
      {.key = "norm_op",
       .fallback = "sqrt_div",
       .choices = {"sqrt_div", "rsqrt"},
       .help = "store the norm and divide, or store its inverse and multiply",
       .used = is_l2},
      mix_tokens(),
  };
}

Part token_scale(const char* name, const char* help) {
  return {.family = "token_scale", .name = name, .help = help, .params = token_scale_params()};
}

}  // namespace

const std::vector<Composition>& compositions() {
  static const std::vector<Composition> all = {
      {"r_h_pbr", "uhp"}, {"r_h", "uh"},   {"br", "up"}, {"br_h128", "uph"}, {"h_r_pbr", "hup"},
      {"h_pbr_r", "hpu"}, {"h_pbr", "hp"}, {"pbr", "p"}, {"plain", "u"}};
  return all;
}

std::string factors_of(const std::string& composition) {
  for (const Composition& one : compositions()) {
    if (one.name == composition) return one.factors;
  }
  throw std::logic_error("no composition '" + composition + "'");
}

int64_t token_group(const Settings& side) {
  const int64_t mixed = std::max<int64_t>(1, get_int(side, "mix_tokens"));
  return std::lcm(quant::token_group(below(side, "codec.")), mixed);
}

const std::vector<Part>& transform_parts() {
  static const std::vector<Part> parts = {
      {.family = "space", .name = "post_rope", .help = "as captured"},
      {.family = "space",
       .name = "pre_rope",
       .help = "keys before RoPE, which turns them when they are read; needs k_pre and the rope "
               "attributes of the capture"},

      {.family = "center", .name = "none", .help = "no centre"},
      {.family = "center",
       .name = "head_mean",
       .help = "subtract the mean over the calibration tokens, one vector a KV head (fp32)",
       .calibrated = true},

      {.family = "reorder", .name = "none", .help = "channels as captured"},
      {.family = "reorder",
       .name = "sum",
       .help = "the channels of all heads in ascending order of their sum over the calibration "
               "tokens",
       .calibrated = true},
      {.family = "reorder",
       .name = "abs_max",
       .help = "the same by their largest |x| over the calibration tokens",
       .calibrated = true},

      {.family = "basis", .name = "none", .help = "no basis: M is orthogonal"},
      {.family = "basis",
       .name = "query_pca",
       .help = "F = Σ_Q^½·V, V of the eigenvectors of Σ_Q^½·Cov(K)·Σ_Q^½: coordinates in which an "
               "error of the keys is one of the logits; queries take F⁻ᵀ",
       .calibrated = true},
      {.family = "basis",
       .name = "balanced",
       .help = "T = c·Λ^−¼·Uᵀ·Lᵀ, L·Lᵀ the loss Hessian and U·Λ·Uᵀ = Lᵀ·M·L with the second moment "
               "M: data and loss are equally large along every direction",
       .params = {{.key = "basis_damping",
                   .type = Type::real,
                   .fallback = 0.01,
                   .least = 0,
                   .most = 1,
                   .help = "share of the mean eigenvalue that is added to Hessian and moment"}},
       .calibrated = true},

      {.family = "rotate", .name = "none", .help = "no rotation"},
      {.family = "rotate",
       .name = "hadamard",
       .help = "normalized Hadamard matrix",
       .params = {rotate_heads(), rotate_block()},
       .refuse = refuse_hadamard},
      {.family = "rotate",
       .name = "random_orthogonal",
       .help = "Haar-distributed orthogonal matrix, drawn from the seed",
       .params = {{.key = "rotate_split",
                   .type = Type::real,
                   .fallback = 0.0,
                   .least = 0.0,
                   .most = 1.0,
                   .help = "share of the channels, the first ones, that get a matrix of their own "
                           "beside the others'; 0: one matrix",
                   .quiet = true}},
       .uses_seed = true},
      {.family = "rotate",
       .name = "file",
       .help = "file:PATH, a kvlab.rotation/1 file (and the centre in it)",
       .params = {rotation_params()}},
      {.family = "rotate",
       .name = "covariance",
       .help = "eigenvectors of the covariance (U)",
       .params = {covariance_form(), covariance_scope(), rotation_params()},
       .calibrated = true},
      {.family = "rotate",
       .name = "covariance_hadamard",
       .help = "eigenvectors, Hadamard, bit reversal (U·H·P)",
       .params = {covariance_form(), covariance_scope(), composition(),
                  bit_reversal([](const Settings& side) { return !is_recomposed(side); }),
                  rotation_params()},
       .calibrated = true,
       .refuse = refuse_covariance_hadamard},
      {.family = "rotate",
       .name = "learned",
       .help = "R_base·expm(A−Aᵀ), A learned on the calibration sample",
       .params = {{.key = "objective",
                   .fallback = "output",
                   .choices = {"output", "channel_variance"},
                   .help = "what is made small: the error of the attention output (OptR), or how "
                           "unequal the channels' mean squares are (their variance over the square "
                           "of their mean)"},
                  {.key = "learned_over",
                   .fallback = "hadamard",
                   .choices = {"hadamard", "covariance", "covariance_hadamard"},
                   .help = "the base rotation that learning starts from"},
                  learned_param(covariance_form()),
                  learned_param(covariance_scope()),
                  learned_param(bit_reversal(nullptr)),
                  rotation_params()},
       .learned = true,
       .calibrated = true,
       .refuse = [](const Settings& side, int64_t head_dim) -> std::optional<std::string> {
         const std::string base = get_text(side, "learned_over");
         if (base == "hadamard") return refuse_hadamard_of(head_dim);
         if (base == "covariance_hadamard") {
           return refuse_base(get_bool(side, "bit_reversal"), head_dim);
         }
         return std::nullopt;
       }},
      {.family = "rotate",
       .name = "signed_hadamard",
       .help = "D₁·H·D₂, signs drawn from the seed before and after the Hadamard matrix",
       .params = {rotate_heads(), rotate_block()},
       .uses_seed = true,
       .refuse = refuse_hadamard},

      {.family = "token_scale", .name = "none", .help = "no token scale", .params = {mix_tokens()}},
      token_scale("l2_heads", "L2 norm of a token over all KV heads, one number a token"),
      token_scale("l2_head", "L2 norm of a token within each KV head"),
      token_scale("max_head", "largest |x| of a token within each KV head"),
      token_scale("mean_abs_head", "mean |x| of a token within each KV head"),
      token_scale("max_heads", "largest |x| of a token over all KV heads, one number a token"),
      token_scale("mean_abs_heads", "mean |x| of a token over all KV heads, one number a token"),
  };
  return parts;
}

}  // namespace kvlab::transform
