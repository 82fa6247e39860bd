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
  param.used = param.key == "bit_reversal" ? over_covariance_hadamard : over_covariance;
  return param;
}

bool is_l2(const Settings& side) { return get_text(side, "token_scale").starts_with("l2"); }

std::vector<Param> token_scale_params() {
  return {
      {.key = "token_scale_params",
       .fallback = "fp32",
       .choices = {"fp32", "fp16", "bf16"},
       .help = "type of the stored token scales"},
      {.key = "order",
       .fallback = "rotate_scale",
       .choices = {"rotate_scale", "scale_rotate"},
       .help = "rotate before or after the token scale is divided out",
       .used = [](const Settings& side) { return get_text(side, "rotate") != "none"; },
       .no_effect = [](const std::string&, const Settings& side,
                       int64_t) -> std::optional<std::string> {
         if (is_l2(side)) return "no effect by algebra: a rotation keeps the L2 norm";
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
      {.family = "center", .name = "none", .help = "no centre"},
      {.family = "center",
       .name = "head_mean",
       .help = "subtract the mean over the calibration tokens, one vector a KV head (fp32)",
       .calibrated = true},

      {.family = "rotate", .name = "none", .help = "no rotation"},
      {.family = "rotate",
       .name = "hadamard",
       .help = "normalized Hadamard matrix",
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
       .help = "R_base·expm(A−Aᵀ), A learned for the attention output (OptR)",
       .params = {{.key = "learned_over",
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

      {.family = "token_scale", .name = "none", .help = "no token scale"},
      token_scale("l2_heads", "L2 norm of a token over all KV heads, one number a token"),
      token_scale("l2_head", "L2 norm of a token within each KV head"),
      token_scale("max_head", "largest |x| of a token within each KV head"),
      token_scale("mean_abs_head", "mean |x| of a token within each KV head"),
  };
  return parts;
}

}  // namespace kvlab::transform
