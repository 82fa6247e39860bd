#include "model/tokens_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/h5.h"
#include "base/names.h"
#include "base/schemas.h"
#include "model/needles_file.h"

namespace kvlab::model {
namespace {

h5::File open(const std::filesystem::path& path, const std::string& schema,
              const std::string& script) {
  h5::File file = h5::File::open(path);
  const auto found = file.attribute_or<std::string>("/", "schema", "");
  if (found != schema) {
    throw Error(fmt::format("{}: has schema '{}', expected '{}' (datasets/{} makes one)",
                            path.string(), found, schema, script));
  }
  return file;
}

/// A dataset of token ids, int64 [rows, length].
at::Tensor read_ids(const h5::File& file, const std::string& dataset, const std::string& form) {
  if (!file.exists(dataset) || file.is_group(dataset)) {
    throw Error(
        fmt::format("{}: has no {}, expected int32 {}", file.path().string(), dataset, form));
  }
  const h5::Info info = file.info(dataset);
  using Kind = h5::Element::Kind;
  const bool whole =
      info.element.kind == Kind::integer || info.element.kind == Kind::unsigned_integer;
  if (!whole || info.shape.size() != 2 || info.count() == 0) {
    throw Error(fmt::format("{}: {} is {} [{}], expected int32 {}", file.path().string(), dataset,
                            info.element.name(), fmt::join(info.shape, ", "), form));
  }
  return at::tensor(file.read<int64_t>(dataset), at::kLong).view(info.shape);
}

}  // namespace

TokensFile read_tokens(const std::filesystem::path& path) {
  const h5::File file = open(path, kTokensSchema, "tokenize_text.py");
  TokensFile result;
  result.tokens = read_ids(file, "/tokens", "[passages, length]");
  result.tokenizer = file.attribute_or<std::string>("/", "tokenizer", "");
  result.text_sha256 = file.attribute_or<std::string>("/", "text_sha256", "");
  return result;
}

void check_tokens(const at::Tensor& tokens, int64_t vocabulary, const std::filesystem::path& file,
                  const std::string& what, int64_t first) {
  const at::Tensor wrong = tokens.lt(0).logical_or_(tokens.ge(vocabulary)).nonzero();
  if (wrong.size(0) == 0) return;
  const auto row = wrong[0][0].item<int64_t>(), column = wrong[0][1].item<int64_t>();
  throw Error(fmt::format(
      "{}: token {} of {} {} is {}, outside the model's vocabulary of {}: the tokens "
      "are of another tokenizer",
      file.string(), column, what, first + row, tokens[row][column].item<int64_t>(), vocabulary));
}

Needles read_needles(const std::filesystem::path& path, const std::string& task) {
  const h5::File file = open(path, kNeedlesSchema, "make_needles.py");
  Needles needles;
  needles.prompts = read_ids(file, "/" + task + "/prompts", "[trials, length]");
  needles.answers = read_ids(file, "/" + task + "/answers", "[trials, m]");
  if (needles.prompts.size(0) != needles.answers.size(0) || needles.prompts.size(1) < 2) {
    throw Error(fmt::format("{}: /{} has {} of {} and {}", path.string(), task,
                            counted(needles.prompts.size(0), "prompt"),
                            counted(needles.prompts.size(1), "token"),
                            counted(needles.answers.size(0), "answer")));
  }
  return needles;
}

}  // namespace kvlab::model
