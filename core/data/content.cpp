#include "data/content.h"

#include "base/hash.h"
#include "data/synthetic_params.h"
#include "data/synthetic_spec.h"

namespace kvlab::data {

std::string synthetic_content(const Settings& params) {
  const Settings all = with_defaults(params);
  nlohmann::json used;
  for (const Param& param : synthetic_params()) {
    if (param.used && !param.used(all)) continue;
    // 17 and 17.0 are the same number.
    used[param.key] = param.type == Param::Type::real ? nlohmann::json(get_real(all, param.key))
                                                      : all.at(param.key);
  }
  const nlohmann::json identity = {{"generator", kGeneratorVersion}, {"params", used}};
  return sha256(identity.dump());
}

}  // namespace kvlab::data
