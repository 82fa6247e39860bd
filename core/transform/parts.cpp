#include "transform/parts.h"

#include <fmt/format.h>

namespace kvlab::transform {
namespace {

using Type = Param::Type;

std::optional<std::string> refuse_hadamard(const Settings&, int64_t head_dim) {
  if (has_hadamard(head_dim)) return std::nullopt;
  return fmt::format(
      "no Hadamard matrix of size {} can be built here (known: Sylvester, Paley and their "
      "products)",
      head_dim);
}

std::optional<std::string> refuse_covariance_hadamard(const Settings& side, int64_t head_dim) {
  if (auto reason = refuse_hadamard(side, head_dim)) return reason;
  const bool power_of_two = (head_dim & (head_dim - 1)) == 0;
  if (get_bool(side, "bit_reversal") && !power_of_two) {
    return fmt::format("bit reversal needs a head dimension that is a power of two, not {}",
                       head_dim);
  }
  return std::nullopt;
}

Param covariance_form() {
  return {.key = "covariance",
          .fallback = "code",
          .choices = {"code", "paper"},
          .help =
              "value covariance from the proxy weights of OSCAR's code, or from the attention "
              "output as in its paper",
          .no_effect = [](const std::string& name, const Settings&,
                          int64_t) -> std::optional<std::string> {
            // Every query head has as many rows as the others, so the mean of their covariances is
            // that of all rows together.
            if (name == "key") return "no effect by algebra: keys use the query covariance in both";
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
  };
}

Part token_scale(const char* name, const char* help) {
  return {.family = "token_scale", .name = name, .help = help, .params = token_scale_params()};
}

}  // namespace

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
       .params = {rotate_heads()},
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
       .help = "file:PATH, a kvlab.rotation/1 file (and the centre in it)"},
      {.family = "rotate",
       .name = "covariance",
       .help = "eigenvectors of the covariance (U)",
       .params = {covariance_form(), covariance_scope()},
       .calibrated = true},
      {.family = "rotate",
       .name = "covariance_hadamard",
       .help = "eigenvectors, Hadamard, bit reversal (U·H·P)",
       .params = {covariance_form(), covariance_scope(), bit_reversal(nullptr)},
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
                  learned_param(bit_reversal(nullptr))},
       .learned = true,
       .calibrated = true,
       .refuse = [](const Settings& side, int64_t head_dim) -> std::optional<std::string> {
         const std::string base = get_text(side, "learned_over");
         if (base == "hadamard") return refuse_hadamard(side, head_dim);
         if (base == "covariance_hadamard") return refuse_covariance_hadamard(side, head_dim);
         return std::nullopt;
       }},
      {.family = "rotate",
       .name = "signed_hadamard",
       .help = "D₁·H·D₂, signs drawn from the seed before and after the Hadamard matrix",
       .params = {rotate_heads()},
       .uses_seed = true,
       .refuse = refuse_hadamard},

      {.family = "token_scale", .name = "none", .help = "no token scale"},
      token_scale("l2_heads", "L2 norm of a token over all KV heads, one number a token"),
      token_scale("l2_head", "L2 norm of a token within each KV head"),
      token_scale("max_head", "largest |x| of a token within each KV head"),
      token_scale("mean_abs_head", "mean |x| of a token within each KV head"),
  };
  return parts;
}

}  // namespace kvlab::transform
