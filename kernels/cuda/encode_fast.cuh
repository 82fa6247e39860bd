#pragma once

#include "kvlab/kernels/cuda.h"

namespace kvlab::kernels::cuda {

/// What a launch of an encoder works on: one layer, or `count` layers that lie in device memory and
/// differ in nothing but addresses.
struct EncodeWork {
  const Layer& first;
  const Layer* layers = nullptr;
  int count = 1;
  TokenSource source;
  int step = kAllTokens;
  int max_tokens = 0;
};

/// The sides that are still to be encoded.
struct Sides {
  bool key = true;
  bool value = true;
};

/// Encodes what the fast encoders take (2 bits, d = 128, 16-bit tokens, no centre and no clip but
/// one of whole tokens at a place in their order; of a decoding step what leaves the ring by one
/// token or by whole tiles) and says what is left.
Sides encode_fast(const EncodeWork& work, Stream stream);

}  // namespace kvlab::kernels::cuda
