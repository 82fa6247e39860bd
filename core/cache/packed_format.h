#pragma once

#include <optional>
#include <string>

#include "base/dtype.h"
#include "base/part.h"
#include "kvlab/kernels/cache.h"

/// From recipes, which are data, to what kernels/ takes.
namespace kvlab::cache {

/// How a packed cache holds a recipe.
struct PackedFormat {
  kernels::Format format;
  /// Where both sides are passthrough its sink has no end, so that every token stays as captured.
  kernels::WindowRule rule;
  bool quantized = true;  // false: both sides are passthrough
};

/// Why the packed backends cannot hold this recipe, as a sentence; nothing where they can.
/// recipe: a whole recipe's settings. captured: the type of keys and values.
std::optional<std::string> packed_refusal(const Settings& recipe, int64_t head_dim, DType captured);

/// Throws Unsupported with that sentence.
PackedFormat packed_format(const Settings& recipe, int64_t head_dim, DType captured);

/// How one side is encoded, but for its tensors. side: its settings, not passthrough.
kernels::SideEncode side_encode(const Settings& side, int64_t head_dim);

kernels::Type kernel_type(DType type);

/// The same for the query heads that read its KV heads.
std::optional<std::string> heads_refusal(int64_t q_heads, int64_t kv_heads);

/// The same for what a sample holds, "keys" for example, with NaN or infinite numbers among it: a
/// kernel does not tell a token that a query does not see, or whose weight is 0, from one that it
/// reads, and 0 · NaN is NaN.
std::string nonfinite_refusal(const std::string& what);

}  // namespace kvlab::cache
