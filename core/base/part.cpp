#include "base/part.h"

#include <stdexcept>

namespace kvlab {
namespace {

const nlohmann::json& at(const Settings& settings, const std::string& key) {
  const auto found = settings.find(key);
  if (found == settings.end()) throw std::logic_error("setting '" + key + "' is missing");
  return found->second;
}

}  // namespace

Settings below(const Settings& settings, const std::string& prefix) {
  Settings result;
  for (auto it = settings.lower_bound(prefix);
       it != settings.end() && it->first.starts_with(prefix); ++it) {
    result.emplace(it->first.substr(prefix.size()), it->second);
  }
  return result;
}

int64_t get_int(const Settings& settings, const std::string& key) {
  return at(settings, key).get<int64_t>();
}
double get_real(const Settings& settings, const std::string& key) {
  return at(settings, key).get<double>();
}
bool get_bool(const Settings& settings, const std::string& key) {
  return at(settings, key).get<bool>();
}
std::string get_text(const Settings& settings, const std::string& key) {
  return at(settings, key).get<std::string>();
}

}  // namespace kvlab
