#pragma once

namespace kvlab {

/// What the root attribute `schema` of each kind of HDF5 file says: its contents and their version.
inline constexpr const char* kCaptureSchema = "kvlab.capture/1";
inline constexpr const char* kNeedlesSchema = "kvlab.needles/1";
inline constexpr const char* kPartSchema = "kvlab.part/1";
inline constexpr const char* kResultsSchema = "kvlab.results/1";
inline constexpr const char* kRotationSchema = "kvlab.rotation/1";
inline constexpr const char* kTokensSchema = "kvlab.tokens/1";

}  // namespace kvlab
