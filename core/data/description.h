#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace kvlab::data {

/// Which tokens of a capture are meant: `count` from `first` on, all that follow where it is 0.
struct Stretch {
  int64_t first = 0;
  int64_t count = 0;
  bool operator==(const Stretch&) const = default;
};

/// What is known of a source of samples without loading its tensors.
struct Description {
  int64_t batch = 1;
  int64_t kv_heads = 0;
  int64_t q_heads = 0;
  int64_t tokens = 0;
  int64_t head_dim = 0;
  int64_t probes = 0;  // query positions that a choice gets; for a capture all it holds
  DType dtype = DType::fp32;
  bool has_w_o = false;
  std::map<int64_t, std::string> no_keys_before_rope;  // layers of a capture, and why
  bool uses_seed = false;
  std::vector<int64_t> layers;
  std::string model;               // a capture's, empty where the file does not say
  std::string content;             // identity: SHA-256, 64 hex digits
  std::vector<int32_t> token_ids;  // captures: all of /tokens
};

}  // namespace kvlab::data
