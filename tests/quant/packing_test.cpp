#include "quant/packing.h"

#include <vector>

#include "catch.h"
#include "quant/plain_codec.h"

using kvlab::quant::pack;
using kvlab::quant::unpack;

namespace {

at::Tensor bytes(const std::vector<int64_t>& values) { return at::tensor(values, at::kByte); }

}  // namespace

TEST_CASE("codes are packed low bits first, in the order of the channels", "[packing]") {
  // By hand: 2 bits 0,1,2,3 → 0b11100100; 3 bits 1…7,0 → 24 bits 1 | 2<<3 | 3<<6 | …, low byte
  // first.
  CHECK(at::equal(pack(bytes({0, 1, 2, 3, 3, 0, 0, 1}), 2), bytes({0xE4, 0x43})));
  CHECK(at::equal(pack(bytes({1, 0, 0, 1, 1, 1, 0, 1}), 1), bytes({0xB9})));
  CHECK(at::equal(pack(bytes({1, 2, 3, 4, 5, 6, 7, 0}), 3), bytes({0xD1, 0x58, 0x1F})));
  CHECK(at::equal(pack(bytes({0xA, 0x5, 0xF, 0x0}), 4), bytes({0x5A, 0x0F})));
  CHECK(at::equal(pack(bytes({200, 7, 255}), 8), bytes({200, 7, 255})));
}

TEST_CASE("packed codes of every width come back, code i at bit i·bits", "[packing]") {
  const auto bits = GENERATE(range<int64_t>(1, 9));
  const at::Tensor codes = plain::whole(0, (1 << bits) - 1, {3, 5, 40}, 17).to(at::kByte);
  const at::Tensor packed = pack(codes, bits);
  REQUIRE(packed.sizes() == at::IntArrayRef({3, 5, 40 * bits / 8}));
  CHECK(at::equal(unpack(packed, bits), codes));

  const at::Tensor row = packed[2][4];
  for (int64_t i = 0; i < 40; ++i) {
    int64_t code = 0;
    for (int64_t bit = 0; bit < bits; ++bit) {
      const int64_t place = i * bits + bit;
      code |= (row[place / 8].item<int64_t>() >> (place % 8) & 1) << bit;
    }
    CHECK(code == codes[2][4][i].item<int64_t>());
  }
}

TEST_CASE("packing leaves its input alone and takes no rows too", "[packing]") {
  const at::Tensor codes = bytes({3, 2, 1, 0, 250 & 3, 1, 1, 1});
  const at::Tensor before = codes.clone();
  at::Tensor packed = pack(codes, 8);
  packed.fill_(9);
  CHECK(at::equal(codes, before));
  CHECK(pack(at::zeros({2, 0, 8}, at::kByte), 2).sizes() == at::IntArrayRef({2, 0, 2}));
}
