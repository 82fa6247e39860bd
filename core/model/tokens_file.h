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

/// Throws Error where a token of int64 [rows, length] is none of the model's. `what` a row is,
/// `first` the number of the first.
void check_tokens(const at::Tensor& tokens, int64_t vocabulary, const std::filesystem::path& file,
                  const std::string& what, int64_t first);

}  // namespace kvlab::model
