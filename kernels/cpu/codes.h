#pragma once

#include <cstdint>

#include "kvlab/kernels/layout.h"

/// Codes of single tokens, one a byte, from and to a block's code section.
namespace kvlab::kernels::cpu {

enum class Side { key, value };

template <Side side, int Dim, int Bits>
constexpr Place place_of(int token, int channel) {
  return side == Side::key ? key_place(Dim, Bits, token, channel)
                           : value_place(Dim, Bits, token, channel);
}

template <Side side, int Dim, int Bits>
void unpack_token(const std::uint8_t* packed, int token, std::uint8_t* codes) {
  constexpr int mask = (1 << Bits) - 1;
  for (int c = 0; c < Dim; ++c) {
    const Place place = place_of<side, Dim, Bits>(token, c);
    codes[c] =
        static_cast<std::uint8_t>(packed[place.byte + place.bit / 8] >> place.bit % 8 & mask);
  }
}

template <Side side, int Dim, int Bits>
void pack_token(const std::uint8_t* codes, int token, std::uint8_t* packed) {
  constexpr int mask = (1 << Bits) - 1;
  for (int c = 0; c < Dim; ++c) {
    const Place place = place_of<side, Dim, Bits>(token, c);
    std::uint8_t& byte = packed[place.byte + place.bit / 8];
    const int shift = place.bit % 8;
    byte = static_cast<std::uint8_t>((byte & ~(mask << shift)) | codes[c] << shift);
  }
}

using UnpackToken = void (*)(const std::uint8_t*, int, std::uint8_t*);
using PackToken = void (*)(const std::uint8_t*, int, std::uint8_t*);

template <Side side, int Dim>
UnpackToken unpack_function(int bits) {
  return bits == 2   ? &unpack_token<side, Dim, 2>
         : bits == 4 ? &unpack_token<side, Dim, 4>
                     : &unpack_token<side, Dim, 8>;
}

template <Side side>
UnpackToken unpack_function(int dim, int bits) {
  return dim == 64    ? unpack_function<side, 64>(bits)
         : dim == 128 ? unpack_function<side, 128>(bits)
                      : unpack_function<side, 256>(bits);
}

template <Side side, int Dim>
PackToken pack_function(int bits) {
  return bits == 2   ? &pack_token<side, Dim, 2>
         : bits == 4 ? &pack_token<side, Dim, 4>
                     : &pack_token<side, Dim, 8>;
}

template <Side side>
PackToken pack_function(int dim, int bits) {
  return dim == 64    ? pack_function<side, 64>(bits)
         : dim == 128 ? pack_function<side, 128>(bits)
                      : pack_function<side, 256>(bits);
}

}  // namespace kvlab::kernels::cpu
