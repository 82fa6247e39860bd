#include "catch.h"
#include "method/schema.h"
#include "quant/codec.h"
#include "quant/parts.h"
#include "quant/plain_codec.h"

using namespace kvlab;

namespace {

Settings boosted(const Settings& changes = {}) {
  Settings all = below(method::default_settings(), "key.codec.");
  all["kind"] = "boosted";
  all["axis"] = "channel";
  all["group"] = 8;
  all["boost_tokens"] = 16;
  all["boost"] = 0.25;
  for (const auto& [key, value] : changes) all[key] = value;
  return all;
}

at::Tensor loud() {
  at::Tensor x = plain::gaussian({2, 32, 16}, 4);
  x.select(2, 3).mul_(10.0);
  x.select(2, 7).add_(30.0);
  x.narrow(1, 16, 16).select(2, 11).mul_(50.0);
  return x;
}

at::Tensor squared_error(const at::Tensor& x, const Settings& codec) {
  const auto made = quant::make_codec(codec, x.size(2));
  return (made->decode(made->encode(x, {})) - x).square().sum(std::array<int64_t, 2>{0, 1});
}

}  // namespace

TEST_CASE("the loudest channels of each page are promoted", "[boosted]") {
  const at::Tensor x = loud();
  const auto made = quant::make_codec(boosted({{"boost", 0.125}}), 16);
  const quant::Encoded encoded = made->encode(x, {});
  const at::Tensor channels = encoded.more.at(1).to(at::kLong);
  REQUIRE(channels.sizes() == at::IntArrayRef({2, 2, 2}));
  CHECK(channels[0][0].equal(at::tensor({7, 3}, at::kLong)));
  CHECK(channels[0][1][0].item<int64_t>() == 11);
  // Codes, the plane of the other two bits, and a byte a promoted channel and page.
  CHECK(encoded.code_bytes() == 2 * 32 * 16 * 2 / 8 + 2 * 32 * 2 * 2 / 8 + 2 * 2 * 2);
  CHECK(encoded.param_bytes() == 2 * 4 * 16 * 2 * 2);
  CHECK(quant::token_group(boosted()) == 16);
}

TEST_CASE("promoted channels have the error of their width, the others that of theirs",
          "[boosted]") {
  const at::Tensor x = loud();
  const Settings uniform = plain::uniform({{"axis", "channel"}, {"group", 8}, {"params", "fp16"}});
  Settings four = uniform;
  four["bits"] = 4;
  const at::Tensor mixed = squared_error(x, boosted());
  const at::Tensor low = squared_error(x, uniform);
  const at::Tensor high = squared_error(x, four);
  CHECK(mixed[7].item<double>() == high[7].item<double>());
  CHECK(mixed[3].item<double>() == high[3].item<double>());
  CHECK(mixed[0].item<double>() == low[0].item<double>());
  CHECK(high[7].item<double>() < low[7].item<double>() / 10);
  // Other shares and widths change it; no promotion is the uniform codec.
  CHECK_FALSE(squared_error(x, boosted({{"boost", 0.5}})).equal(mixed));
  CHECK_FALSE(squared_error(x, boosted({{"boost_bits", 8}})).equal(mixed));
  CHECK(squared_error(x, boosted({{"boost", 0.0}})).equal(low));
}

TEST_CASE("channels beyond 255 are promoted as others are, with two bytes a place", "[boosted]") {
  for (const int64_t d : {256, 512}) {
    at::Tensor x = plain::gaussian({1, 16, d}, 5);
    x.select(2, d - 1).mul_(40.0);
    const auto made = quant::make_codec(boosted({{"boost", 2.0 / static_cast<double>(d)}}), d);
    const quant::Encoded encoded = made->encode(x, {});
    CHECK(encoded.more.at(1)[0][0][0].item<int64_t>() == d - 1);
    const int64_t place = d > 256 ? 2 : 1;
    CHECK(encoded.code_bytes() == 16 * d * 2 / 8 + 16 * 2 * 2 / 8 + 2 * place);
    const at::Tensor loud = (made->decode(encoded) - x).select(2, d - 1).abs();
    CHECK(loud.max().item<float>() <= 0.05f * x.select(2, d - 1).abs().max().item<float>());
  }
}

TEST_CASE("boosted codecs refuse what does not fit", "[boosted]") {
  const auto refused = [](const Settings& changes) {
    Settings side = {{"codec.kind", "boosted"}};
    for (const auto& [key, value] : boosted(changes)) side["codec." + key] = value;
    return method::selected(side, "codec").refuse(side, 16).value_or("");
  };
  CHECK(refused({}).empty());
  CHECK_THAT(refused({{"axis", "token"}}), ContainsSubstring("axis channel"));
  CHECK_THAT(refused({{"boost_tokens", 12}}), ContainsSubstring("no multiple of the group"));
  CHECK_THAT(refused({{"boost_bits", 2}}), ContainsSubstring("no more than bits"));
  CHECK_THAT(refused({{"boost_bits", 3}, {"boost", 0.0625}, {"boost_tokens", 4}, {"group", 4}}),
             ContainsSubstring("whole bytes"));
}
