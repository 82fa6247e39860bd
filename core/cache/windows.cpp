#include "cache/windows.h"

#include <algorithm>
#include <numeric>

#include "quant/parts.h"
#include "transform/parts.h"

namespace kvlab::cache {

Windows::Windows(const Settings& recipe, int64_t tokens) : tokens_(tokens) {
  const Settings key = below(recipe, "key.");
  const Settings value = below(recipe, "value.");
  keys_ = !quant::is_passthrough(below(key, "codec."));
  values_ = !quant::is_passthrough(below(value, "codec."));
  const auto unit_of = [](bool quantized, const Settings& side) {
    return quantized ? transform::token_group(side) : int64_t{1};
  };
  group_ = std::lcm(unit_of(keys_, key), unit_of(values_, value));
  if (!keys_ && !values_) return;

  sink_ = get_int(recipe, "window.sink");
  recent_ = get_int(recipe, "window.recent");
  begin_ = std::min(sink_, tokens);
  const std::string flush = get_text(recipe, "window.flush");
  flush_ = flush == "full"      ? Flush::full
           : flush == "kivi"    ? Flush::kivi
           : flush == "ring"    ? Flush::ring
           : flush == "dynamic" ? Flush::dynamic
                                : Flush::block;
  if (flush_ == Flush::dynamic) recent_ = get_int(recipe, "window.min");
  if (recent_ == 0 && (flush_ == Flush::full || flush_ == Flush::kivi)) flush_ = Flush::block;
  unit_ = flush_ == Flush::ring && group_ == 1 ? 8 : group_;
}

int64_t Windows::boundary(Side side, int64_t p) const {
  if (!quantizes(side)) return begin_;
  switch (flush_) {
    case Flush::kivi:
      if (side == Side::value) return std::max(begin_, p - recent_);
      [[fallthrough]];
    case Flush::full:
      return begin_ + recent_ * (std::max<int64_t>(0, p - begin_) / recent_);
    case Flush::block:
    case Flush::ring:
    case Flush::dynamic:
      break;
  }
  const int64_t room = p + 1 - begin_ - std::max<int64_t>(recent_, 1);
  return begin_ + unit_ * (std::max<int64_t>(0, room) / unit_);
}

int64_t Windows::cycle() const {
  return flush_ == Flush::full || flush_ == Flush::kivi ? recent_ : unit_;
}

Windows Windows::at_length(int64_t tokens) const {
  Windows other = *this;
  other.tokens_ = tokens;
  other.begin_ = std::min(sink_, tokens);
  return other;
}

Windows Windows::behind_sink(int64_t tokens) const {
  Windows other = *this;
  other.sink_ = 0;
  return other.at_length(tokens);
}

}  // namespace kvlab::cache
