#pragma once

#include <string>
#include <utility>
#include <vector>

namespace kvlab::bench {

/// What a benchmark measures; its name (contract section 8) is made of this and read back from it.
struct CaseName {
  std::string operation;  // encode, decode, append, dequantize
  std::string backend;
  std::string format;
  int batch = 1;
  int tokens = 0;
  int q_heads = 32;
  int kv_heads = 8;
  int dim = 128;
  int group = 0;  // of keys; 0: there is none
  bool cold = true;
  std::string variant = {};  // "key:value" of what else tells it from others; or nothing
};

/// "decode/backend:cuda/format:f1/batch:1/…".
std::string text_of(const CaseName& name);

/// A name's operation and the pairs behind it, in their order.
struct NameParts {
  std::string operation;
  std::vector<std::pair<std::string, std::string>> pairs;

  /// Empty where there is none.
  std::string value(const std::string& key) const;
};
NameParts parts_of(const std::string& name);

}  // namespace kvlab::bench
