#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <string>

namespace kvlab::model {

/// Passages of a text as token ids: a kvlab.tokens/1 file (contract section 7).
struct TokensFile {
  at::Tensor tokens;  // int64 [passages, length]
  std::string tokenizer;
  std::string text_sha256;
};

/// Throws Error in one sentence where the file is missing or not of that form.
TokensFile read_tokens(const std::filesystem::path& path);

}  // namespace kvlab::model
