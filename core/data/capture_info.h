#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/h5.h"
#include "data/description.h"

namespace kvlab::data {

/// What a kvlab.capture/1 file (contract section 6) says of itself.
struct CaptureInfo : Description {
  std::vector<int64_t> positions;  // of the stored queries, ascending
  int64_t first_token = 0;         // of the file that is this one's token 0
  int64_t first_query = 0;         // likewise of the stored queries
  int64_t file_tokens = 0;         // T of the file
  std::string text_sha256;         // this and the next: empty where the file does not say
  std::string created_by;
};

/// Reads and checks everything but the tensors' elements: schema, attributes, tokens, positions,
/// and shape and type of every layer's datasets, optional
/// ones too; all layers hold one type. `content` is the SHA-256
/// of the file's bytes. Throws Error in one sentence that names the file and the object, what was
/// expected and what was found.
CaptureInfo describe_capture(const std::filesystem::path& path, const Stretch& stretch = {});

/// The same from an open file, without `content`. Of a stretch: tokens, positions and queries are
/// counted within it. Throws Error where the file is too short for it or holds no query in it.
CaptureInfo read_capture_info(const h5::File& file, const Stretch& stretch = {});

/// Why the RoPE of a layer ("/layer_010") is not known, or its keys before RoPE are not to be had;
/// nothing where names of attributes and datasets say that they are.
std::optional<std::string> lacks_rope(const h5::File& file, const std::string& group);
std::optional<std::string> lacks_keys_before_rope(const h5::File& file, const std::string& group);

/// "layer_010" for 10.
std::string layer_group(int64_t layer);

/// Storage type of a capture's dataset: float32, float16, or uint16 with the attribute dtype =
/// "bfloat16". Throws Error for anything else.
DType stored_type(const h5::File& file, const std::string& dataset);

}  // namespace kvlab::data
