#include "case_name.h"

#include <fmt/format.h>

namespace kvlab::bench {

std::string text_of(const CaseName& name) {
  std::string text = fmt::format("{}/backend:{}/format:{}/batch:{}/tokens:{}/heads:{}x{}/dim:{}",
                                 name.operation, name.backend, name.format, name.batch, name.tokens,
                                 name.q_heads, name.kv_heads, name.dim);
  if (name.group > 0) text += fmt::format("/group:{}", name.group);
  text += name.cold ? "/cache:cold" : "/cache:hot";
  if (!name.variant.empty()) text += "/" + name.variant;
  return text;
}

std::string NameParts::value(const std::string& key) const {
  for (const auto& [name, value] : pairs) {
    if (name == key) return value;
  }
  return {};
}

NameParts parts_of(const std::string& name) {
  NameParts parts;
  size_t begin = name.find('/');
  parts.operation = name.substr(0, begin);
  while (begin != std::string::npos) {
    const size_t end = name.find('/', begin + 1);
    const std::string pair = name.substr(begin + 1, end - begin - 1);
    const size_t colon = pair.find(':');
    if (colon != std::string::npos) {
      parts.pairs.emplace_back(pair.substr(0, colon), pair.substr(colon + 1));
    }
    begin = end;
  }
  return parts;
}

}  // namespace kvlab::bench
