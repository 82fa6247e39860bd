#include "quant/codec.h"

#include <functional>

#include "base/error.h"
#include "quant/uniform.h"

namespace kvlab::quant {

std::unique_ptr<Codec> make_codec(const Settings& codec, int64_t head_dim) {
  using Factory = std::function<std::unique_ptr<Codec>(const Settings&, int64_t)>;
  static const std::map<std::string, Factory> factories = {
      {"uniform", make_uniform},
  };
  const std::string kind = get_text(codec, "kind");
  const auto factory = factories.find(kind);
  if (factory == factories.end()) throw Unsupported("codec '" + kind + "' has no tensor form");
  return factory->second(codec, head_dim);
}

}  // namespace kvlab::quant
