#include "kvlab/kernels/layout.h"

#include <set>

#include "cache_fixture.h"
#include "catch.h"

using namespace plain;
using kn::Format;
using kn::Layout;
using kn::Place;

namespace {

/// Every code of a block owns its bits, and all bits are owned.
template <class PlaceOf>
void check_bijection(int dim, int bits, int tokens, PlaceOf place_of) {
  CAPTURE(dim, bits, tokens);
  std::vector<int> owners(static_cast<size_t>(tokens * dim * bits / 8) * 8, 0);
  for (int t = 0; t < tokens; ++t) {
    for (int c = 0; c < dim; ++c) {
      const Place place = place_of(dim, bits, t, c);
      REQUIRE(place.byte % 4 == 0);
      REQUIRE(place.bit % 8 + bits <= 8);
      for (int i = 0; i < bits; ++i) {
        ++owners.at(static_cast<size_t>(place.byte) * 8 + place.bit + i);
      }
    }
  }
  for (const int count : owners) REQUIRE(count == 1);
}

}  // namespace

TEST_CASE("every code of a block has bits of its own", "[kernels]") {
  for (const int dim : {64, 128, 256}) {
    for (const int bits : {2, 4, 8}) {
      for (const int tokens : {64, 128}) {
        check_bijection(dim, bits, tokens, kn::key_place);
        check_bijection(dim, bits, tokens, kn::value_place);
      }
    }
  }
}

TEST_CASE("a lane's word holds what one AND of mma.m16n8k16's A operand wants", "[kernels]") {
  // d = 128, 2 bits: lane 4g + t, key rows g and g + 8; the halves of a word are channels next to
  // each other.
  CHECK(kn::key_place(128, 2, 0, 0).byte == 0);
  CHECK(kn::key_place(128, 2, 0, 0).bit == 0);
  CHECK(kn::key_place(128, 2, 0, 1).bit == 16);
  CHECK(kn::key_place(128, 2, 8, 0).bit == 2);
  CHECK(kn::key_place(128, 2, 0, 8).byte == 16);    // lane 1
  CHECK(kn::key_place(128, 2, 1, 0).byte == 64);    // lane 4
  CHECK(kn::key_place(128, 2, 0, 32).byte == 4);    // its next word
  CHECK(kn::key_place(128, 2, 16, 0).byte == 512);  // the next tile
  CHECK(kn::value_place(128, 2, 1, 0).bit == 16);
  CHECK(kn::value_place(128, 2, 0, 8).bit == 2);
  CHECK(kn::value_place(128, 2, 8, 0).bit == 4);
  CHECK(kn::value_place(128, 2, 2, 0).byte == 16);
  CHECK(kn::value_place(128, 2, 0, 1).byte == 64);
  CHECK(kn::value_place(128, 2, 0, 16).bit == 8);
  CHECK(kn::value_place(128, 2, 0, 32).byte == 4);
}

TEST_CASE("sections lie one behind the other", "[kernels]") {
  const Layout f1 = kn::layout_of(kn::f1());
  CHECK(f1.value_codes == 64 * 32);
  CHECK(f1.key_scale == 2 * 64 * 32);
  CHECK(f1.key_zero == f1.key_scale + 128);
  CHECK(f1.value_scale == f1.key_zero + 128);
  CHECK(f1.value_zero == f1.value_scale + 128);
  CHECK(f1.bytes == 64 * 72);
  CHECK(kn::payload_bytes(kn::f1(), 8) == 64 * 72);
  const Layout f2 = kn::layout_of(kn::f2());
  CHECK(f2.key_zero == f2.key_scale + 2 * 128 * 2);
  CHECK(f2.norm == f2.key_zero + 2 * 128 * 2 + 2 * 64 * 4 * 2);
  CHECK(f2.bytes == 64 * 98);
}

TEST_CASE("parameters of a block have places of their own", "[kernels]") {
  for (const char* name : {"k:token,g32,b2;v:token,g64,b2", "k:channel,g32,b2;v:token,g128,b2",
                           "k:channel,g128,b2;v:token,g32,b2"}) {
    const Format format = kn::format_named(name, 128);
    std::set<int> norms;
    for (int t = 0; t < kn::block_tokens(format); ++t) norms.insert(kn::norm_index(t));
    CHECK(static_cast<int>(norms.size()) == kn::block_tokens(format));
    CHECK(*norms.rbegin() == kn::block_tokens(format) - 1);
    for (const kn::SideFormat& side : {format.key, format.value}) {
      std::set<int> places;
      for (int t = 0; t < kn::block_tokens(format); ++t) {
        for (int c = 0; c < format.dim; ++c) places.insert(kn::param_index(format, side, t, c));
      }
      CHECK(static_cast<int>(places.size()) == kn::block_params(format, side));
      CHECK(*places.begin() == 0);
      CHECK(*places.rbegin() == kn::block_params(format, side) - 1);
    }
  }
}

TEST_CASE("D60 a pattern of its own for every channel comes back where q = 0 averages",
          "[kernels]") {
  // Values with channel c at level c % 4 of token-wise grids that hold the levels exactly.
  for (const int dim : {64, 128, 256}) {
    for (const int bits : {2, 4, 8}) {
      Format format = kn::f1(dim);
      format.key.bits = format.value.bits = bits;
      const int top = (1 << bits) - 1;
      const int n = 77;
      Captured x = captured(1, 1, n, dim);
      const auto level = [&](int t, int c) {
        if (c % 32 == 0) return 0;  // every group holds the whole range
        if (c % 32 == 1) return top;
        return (c * 7 + c / 32 + t * 3) % (top + 1);
      };
      for (int t = 0; t < n; ++t) {
        for (int c = 0; c < dim; ++c) {
          x.value[x.row(0, 0, t) + static_cast<size_t>(c)] =
              kn::to_bf16(static_cast<float>(level(t, c)));
        }
      }
      Cache cache({format, {}, 1, 128, 1}, {n});
      const kn::EncodeSpec spec = spec_of(format);
      prefill(cache, spec, x);
      const std::vector<float> query(static_cast<size_t>(dim), 0.0f);
      std::vector<float> output(query.size());
      kn::AttendArgs args;
      args.query = query.data();
      args.query_type = args.output_type = kn::Type::f32;
      args.q_heads = 1;
      args.scale = 1;
      args.output = output.data();
      kn::cpu::attend(cache.view(), args, 1);
      CAPTURE(dim, bits);
      for (int c = 0; c < dim; ++c) {
        double sum = 0;
        for (int t = 0; t < n; ++t) sum += level(t, c);
        CAPTURE(c);
        REQUIRE(std::fabs(output[static_cast<size_t>(c)] - sum / n) < 1e-5 * top);
      }
    }
  }
}
