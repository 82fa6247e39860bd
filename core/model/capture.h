#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "data/probes.h"
#include "model/decoder.h"

namespace kvlab::model {

/// What is stored of a forward over whole passages.
struct CaptureRequest {
  std::vector<int64_t> layers;  // empty: all
  data::ProbeChoice probes;
  DType dtype = DType::fp32;                      // how tensors are stored
  std::map<std::string, std::string> attributes;  // of the root beside those of the schema
};

/// Runs the decoder over tokens int64 [B, T] and writes a kvlab.capture/1 file (contract section
/// 6): q, k, v, k_pre, w_o and hidden_absmax of each layer. Goes layer by layer over all passages,
/// so that one layer is held at a time, and stops at the last layer asked for. The file appears
/// only when all of it is there. Throws Error where a layer does not exist or a value does not fit
/// the stored type.
void write_capture(const Decoder& decoder, const at::Tensor& tokens, const CaptureRequest& request,
                   const std::filesystem::path& out,
                   const std::function<void(int64_t layer)>& progress);

}  // namespace kvlab::model
