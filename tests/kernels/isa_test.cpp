// Which code runs, and that it does not matter which.

#include <cstdlib>

#include "cache_fixture.h"
#include "catch.h"

using namespace plain;
using kn::Format;
using kn::Rotation;
using kn::cpu::Isa;

namespace {

/// KVLAB_CPU for as long as this lives.
class Chosen {
 public:
  explicit Chosen(const char* isa) {
    const char* before = std::getenv("KVLAB_CPU");
    if (before != nullptr) before_ = before;
    setenv("KVLAB_CPU", isa, 1);
  }
  Chosen(const Chosen&) = delete;
  ~Chosen() { setenv("KVLAB_CPU", before_.c_str(), 1); }

 private:
  std::string before_;
};

bool processor_has_avx2() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
#else
  return false;
#endif
}

/// Number i of a random orthogonal-looking matrix: the codes must be equal, whatever it is.
std::vector<float> matrix(int dim) {
  std::mt19937 engine(5);
  std::normal_distribution<float> normal(0.0f, 1.0f / std::sqrt(static_cast<float>(dim)));
  std::vector<float> numbers(static_cast<size_t>(dim * dim));
  for (float& number : numbers) number = normal(engine);
  return numbers;
}

}  // namespace

TEST_CASE("the environment chooses the instruction set", "[kernels][isa]") {
  {
    const Chosen portable("portable");
    CHECK(kn::cpu::chosen_isa() == Isa::portable);
  }
  {
    const Chosen unknown("sse9");
    CHECK_THROWS_WITH(kn::cpu::chosen_isa(), ContainsSubstring("sse9"));
  }
  const Chosen best("");
  CHECK(kn::cpu::chosen_isa() == (processor_has_avx2() ? Isa::avx2 : Isa::portable));
  const Chosen avx2("avx2");
  if (processor_has_avx2()) {
    CHECK(kn::cpu::chosen_isa() == Isa::avx2);
  } else {
    CHECK_THROWS_WITH(kn::cpu::chosen_isa(), ContainsSubstring("avx2"));
  }
}

TEST_CASE("D02 codes do not depend on the instruction set", "[kernels][isa]") {
  if (!processor_has_avx2()) return;
  int number = 0;
  for (const int dim : {64, 128, 256}) {
    const std::vector<float> dense = matrix(dim);
    const std::vector<float> center(static_cast<size_t>(2 * dim), 0.4f);
    const float thresholds[2] = {1.5f, 2.0f};
    for (const char* name :
         {"k:token,g32,b2;v:token,g64,b2", "k:channel,g32,b2,offset;v:token,g32,b2,none",
          "k:channel,g64,b4,none,bf16;v:token,g32,b8,offset,f32",
          "k:channel,g128,b2,codebook;v:token,g64,b2,codebook;norm:head,f32",
          "k:token,g64,b2,none;v:token,g64,b4;norm:heads",
          "k:channel,g32,b8;v:token,g32,b2,offset,bf16;norm:head,bf16,inverse"}) {
      for (const auto rotation :
           {Rotation::Kind::none, Rotation::Kind::hadamard, Rotation::Kind::dense}) {
        const Format format = kn::format_named(name, dim);
        kn::EncodeSpec spec = spec_of(format, rotation);
        spec.key.rotation.matrix = spec.value.rotation.matrix = dense.data();
        spec.key.center = center.data();
        const kn::Clip clips[] = {kn::Clip::none, kn::Clip::row, kn::Clip::group,
                                  kn::Clip::calibrated};
        spec.key.clip = clips[number % 4];
        spec.value.clip = clips[number / 4 % 4];
        spec.key.clip_index = spec.value.clip_index = 29;
        spec.key.thresholds = spec.value.thresholds = thresholds;
        spec.key.grid.half_up = number % 2 == 0;
        spec.value.grid.integer_zero = number % 3 == 0;
        spec.key.scale_first = number % 5 == 0;
        ++number;
        Captured x = captured(1, 2, 300, dim);
        x.key[x.row(0, 1, 40)] = 0x7fc0;  // NaN
        for (int c = 0; c < dim; ++c) x.value[x.row(0, 0, 9) + static_cast<size_t>(c)] = 0x8000;
        x.value[x.row(0, 0, 9) + 1] = 0;
        const kn::WindowRule rule{kn::Flush::block, 3, 10,
                                  format.key.axis == kn::Axis::channel ? format.key.group : 1};
        Cache a({format, rule, 2, 300, 1}, {300});
        Cache b({format, rule, 2, 300, 1}, {300});
        {
          const Chosen portable("portable");
          prefill(a, spec, x);
        }
        {
          const Chosen avx2("avx2");
          prefill(b, spec, x);
        }
        CAPTURE(name, dim, static_cast<int>(rotation), static_cast<int>(spec.key.clip),
                static_cast<int>(spec.value.clip));
        const int blocks = (300 - 13) / kn::block_tokens(format);
        for (int i = 0; i < blocks; ++i) {
          // Head 0 has no NaN, whose bits may differ.
          REQUIRE(a.block(0, 0, i) == b.block(0, 0, i));
        }
      }
    }
  }
}
