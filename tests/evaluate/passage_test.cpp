#include "evaluate/passage.h"

#include "base/error.h"
#include "catch.h"
#include "evaluate/teacher_forced.h"
#include "method/preset_texts.h"
#include "metrics/cases.h"
#include "model/tiny_folder.h"
#include "quant/rounding.h"

namespace {

using namespace kvlab;
using evaluate::CacheUse;
using evaluate::LayerMethods;

/// Changes of the tiny config: a model whose layers read the last `window` tokens; none where 0.
nlohmann::json sliding(int64_t window) {
  if (window == 0) return nlohmann::json::object();
  return {{"model_type", "mistral"},
          {"architectures", nlohmann::json::array({"MistralForCausalLM"})},
          {"sliding_window", window}};
}

/// Each layer's tensors over 1,100 tokens.
std::vector<calibrate::CalibrationSample> calibration(const model::Decoder& decoder) {
  std::vector<calibrate::CalibrationSample> layers;
  decoder.forward(tiny_tokens(1100), 0, [&](const model::LayerInput& input) {
    const auto sample = std::make_shared<data::Sample>(evaluate::sample_of(
        evaluate::tokens_of(input, DType::fp32), input.q, DType::fp32, *input.rope));
    sample->q = input.q.unsqueeze(0);
    sample->positions = at::arange(1100, at::kLong);
    sample->w_o = decoder.output_matrix(input.layer);
    layers.push_back({[sample] { return sample; }, "layer " + std::to_string(input.layer)});
    return model::whole_attention(input);
  });
  return layers;
}

LayerMethods prepared(const model::Decoder& decoder, const method::Recipe& recipe,
                      const std::vector<calibrate::CalibrationSample>& samples = {}) {
  return evaluate::on_all_layers(recipe, decoder.config(), samples);
}

at::Tensor nll(const model::Decoder& decoder, const at::Tensor& states, const at::Tensor& tokens) {
  return evaluate::score(decoder, states, states, tokens).nll;
}

double mean_gap(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().mean().item<double>();
}

double largest_gap(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

/// 65,535 levels a token, wider than any codec of a recipe.
class SixteenBits final : public quant::Codec {
 public:
  quant::Encoded encode(const at::Tensor& x, const at::Tensor&) const override {
    const at::Tensor scale = x.abs().amax(-1, /*keepdim=*/true).clamp_min(1e-20) / 32767;
    return {.codes = (x / scale).round().to(at::kShort).view(at::kByte),
            .params = scale.unsqueeze(-1),
            .more = {},
            .token_bytes = {},
            .saturated = at::zeros({x.size(0)}, at::kLong),
            .shared = {}};
  }
  at::Tensor decode(const quant::Encoded& encoded) const override {
    return encoded.codes.view(at::kShort).to(at::kFloat) * encoded.params.squeeze(-1);
  }
};

/// Recipes whose cache depends on the tokens themselves: pools, evictions, dynamic windows.
std::vector<method::Recipe> looking_recipes() {
  return {cases::recipe("ott", {{"window.recent", 32}}),
          cases::recipe("int2_naive", {{"protect.kind", "massive"}, {"protect.tokens", 6}}),
          cases::recipe("kcvt_base", {{"window.flush", "dynamic"},
                                      {"window.tni", 1.5},
                                      {"window.min", 8},
                                      {"window.max", 40}}),
          cases::recipe("streaming_int4", {{"evict.sink", 3}, {"evict.recent", 40}}),
          cases::recipe("h2o_int4", {{"evict.recent", 30}, {"evict.heavy", 20}})};
}

bool keeps_scores(const method::Recipe& recipe) {
  return get_text(recipe.settings, "evict.kind") == "heavy_hitter";
}

/// Recipes of each flush rule, axis and transform that need no calibration, for 160 tokens.
std::vector<method::Recipe> recipes() {
  const Settings small = {{"window.recent", 32}};
  return {cases::recipe("bf16"),
          cases::recipe("int2_naive"),
          cases::recipe("int2_naive_windows", {{"window.sink", 5}, {"window.recent", 20}}),
          cases::recipe("kivi", small),
          cases::recipe("kcvt_base", small),
          cases::recipe("oscar_ots", small),
          cases::recipe("quarot"),
          cases::recipe("quarot_windows",
                        {{"window.sink", 3}, {"window.recent", 16}, {"window.flush", "ring"}})};
}

}  // namespace

TEST_CASE("one pass gives what decoding token by token gives, on every flush rule", "[evaluate]") {
  const int64_t window = GENERATE(0, 50);
  CAPTURE(window);
  const TinyFolder folder(sliding(window));
  const model::Decoder decoder(folder.path());
  const at::Tensor tokens = tiny_tokens(130);
  const evaluate::Prompt whole = evaluate::run_prompt(decoder, tokens, DType::bf16);
  const evaluate::Prompt half = evaluate::run_prompt(decoder, tokens.narrow(0, 0, 70), DType::bf16);
  for (const method::Recipe& recipe : recipes()) {
    INFO(recipe.id);
    const LayerMethods methods = prepared(decoder, recipe);
    for (const evaluate::Prompt* prompt : {static_cast<const evaluate::Prompt*>(nullptr), &half}) {
      // A prompt where windows have both a per-channel side and a sink to care for.
      if (prompt && recipe.id != "kivi" && recipe.id != "int2_naive_windows") continue;
      const int64_t start = prompt ? prompt->tokens : 0;
      const at::Tensor rest = tokens.slice(0, start);
      CacheUse use{.dtype = DType::bf16, .backend = "reference"};
      const auto once = evaluate::teacher_forced(decoder, methods, use, prompt, rest);
      const auto steps = evaluate::decode(decoder, methods, use, prompt, rest);
      const at::Tensor expected = nll(decoder, once.states, rest);
      CHECK(mean_gap(expected, nll(decoder, steps.states, rest)) < 1e-3);
      CHECK(once.memory.at("bits_per_element").item<double>() ==
            steps.memory.at("bits_per_element").item<double>());
      // What is not quantized does not differ, what is does.
      const double error = mean_gap(expected, nll(decoder, whole.states.slice(0, start), rest));
      CHECK((recipe.id == "bf16" ? error < 1e-4 : error > 0.01));

      use.backend = "cpu";
      if (window > 0) {
        CHECK_THROWS_WITH(evaluate::decode(decoder, methods, use, prompt, rest),
                          ContainsSubstring("backend cpu has no sliding windows"));
        continue;
      }
      const auto packed = evaluate::decode(decoder, methods, use, prompt, rest);
      CHECK(mean_gap(expected, nll(decoder, packed.states, rest)) < 1e-3);
    }
  }
}

TEST_CASE("each query reads the tokens that its step's windows say", "[evaluate]") {
  // One layer by hand: the definition, token by token, in float64; with the model's own window too.
  for (const int64_t window : {0, 50}) {
    nlohmann::json changes = sliding(window);
    changes["num_hidden_layers"] = 1;
    const TinyFolder folder(changes);
    const model::Decoder decoder(folder.path());
    const at::Tensor tokens = tiny_tokens(140);
    std::vector<method::Recipe> all = recipes();
    for (method::Recipe& recipe : looking_recipes()) all.push_back(std::move(recipe));
    for (const method::Recipe& recipe : all) {
      INFO(recipe.id << ", window " << window);
      const LayerMethods methods = prepared(decoder, recipe);
      evaluate::TeacherForced attention(methods, {.dtype = DType::fp16, .backend = "reference"},
                                        nullptr);
      decoder.layer(0, decoder.embed(tokens), 0, [&](const model::LayerInput& input) {
        REQUIRE(input.window == window);
        const at::Tensor got = attention(input);
        const data::Sample sample = evaluate::sample_of(evaluate::tokens_of(input, DType::fp16),
                                                        input.q, DType::fp16, *input.rope);
        const cache::Schedule schedule(recipe.settings, sample);
        const auto read = evaluate::read_back(sample, methods[0], "reference", schedule);
        double worst = 0;
        for (int64_t p = 0; p < 140; p += 3) {
          const int64_t from = window > 0 ? std::max<int64_t>(0, p - window + 1) : 0;
          const at::Tensor position = at::tensor({p}, at::kLong);
          for (int64_t head = 0; head < 4; ++head) {
            const auto mixed = [&](const at::Tensor& captured, const at::Tensor& decoded,
                                   cache::Windows::Side side) {
              at::Tensor rows = captured[0][head / 2].narrow(0, 0, p + 1).to(at::kDouble).clone();
              const int64_t begin = schedule.windows().begin();
              for (int64_t t = begin; t < schedule.boundary(side, 0, p); ++t) {
                const bool held =
                    schedule.protects() && schedule.protected_at(0, position)[0][t].item<bool>();
                if (decoded.defined() && !held) rows[t].copy_(decoded[head / 2][t - begin]);
              }
              return rows.slice(0, from);
            };
            at::Tensor gone = at::zeros({p + 1 - from}, at::kBool);
            if (schedule.evicts()) {
              gone = schedule.evicted_at(0, head / 2, position)[0].slice(0, from, p + 1);
            }
            const at::Tensor k = mixed(sample.k, read.k, cache::Windows::Side::key);
            const at::Tensor v = mixed(sample.v, read.v, cache::Windows::Side::value);
            const at::Tensor q = input.q[head][p].to(at::kDouble);
            const at::Tensor expected =
                k.matmul(q).div(8.0).masked_fill(gone, -INFINITY).softmax(0).matmul(v);
            worst = std::max(worst, largest_gap(expected, got[head][p].to(at::kDouble)));
          }
        }
        CHECK(worst < 1e-4);
        return got;
      });
    }
  }
}

TEST_CASE("caches that look at tokens: one pass gives what decoding gives", "[evaluate]") {
  const int64_t window = GENERATE(0, 35);
  CAPTURE(window);
  const TinyFolder folder(sliding(window));
  const model::Decoder decoder(folder.path());
  const at::Tensor tokens = tiny_tokens(130);
  const evaluate::Prompt half = evaluate::run_prompt(decoder, tokens.narrow(0, 0, 70), DType::fp32);
  // In float32, where no rounding to 16 bits falls either way.
  const CacheUse use{.dtype = DType::fp32, .backend = "reference"};
  for (const method::Recipe& recipe : looking_recipes()) {
    INFO(recipe.id);
    const LayerMethods methods = prepared(decoder, recipe);
    for (const evaluate::Prompt* prompt : {static_cast<const evaluate::Prompt*>(nullptr), &half}) {
      const at::Tensor rest = tokens.slice(0, prompt ? prompt->tokens : 0);
      const auto steps = [&] { return evaluate::decode(decoder, methods, use, prompt, rest); };
      const auto once = [&] {
        return evaluate::teacher_forced(decoder, methods, use, prompt, rest);
      };
      if (keeps_scores(recipe)) {
        CHECK_THROWS_AS(steps(), Unsupported);
        if (prompt) {
          CHECK_THROWS_AS(once(), Unsupported);
        } else {
          CHECK(once().memory.at("bits_per_element").item<double>() < 4.5);
        }
        continue;
      }
      const auto made = once();
      const auto decoded = steps();
      // Sums in another order may turn a code of two bits, which later tokens then see.
      const at::Tensor gap = nll(decoder, made.states, rest) - nll(decoder, decoded.states, rest);
      CHECK(std::abs(gap.mean().item<double>()) < 1e-3);
      CHECK(gap.abs().median().item<double>() < 1e-3);
      CHECK(made.memory.at("bits_per_element").item<double>() ==
            decoded.memory.at("bits_per_element").item<double>());
    }
  }
}

TEST_CASE("each part that looks at tokens changes what is read", "[evaluate]") {
  const TinyFolder folder;
  const model::Decoder decoder(folder.path());
  const at::Tensor tokens = tiny_tokens(130);
  const auto of = [&](const method::Recipe& recipe) {
    const CacheUse use{.dtype = DType::bf16, .backend = "reference"};
    return nll(
        decoder,
        evaluate::teacher_forced(decoder, prepared(decoder, recipe), use, nullptr, tokens).states,
        tokens);
  };
  for (method::Recipe recipe : looking_recipes()) {
    INFO(recipe.id);
    const at::Tensor with = of(recipe);
    for (const char* part : {"protect.kind", "evict.kind"}) {
      recipe.settings[part] = std::string("none");
    }
    if (get_text(recipe.settings, "window.flush") == "dynamic") {
      recipe.settings["window.flush"] = std::string("block");
      recipe.settings["window.recent"] = int64_t{8};
    }
    CHECK(mean_gap(with, of(recipe)) > 1e-3);
  }
}

TEST_CASE("no future token enters: changing token j changes nothing before j", "[evaluate]") {
  const TinyFolder folder;
  const model::Decoder decoder(folder.path());
  const at::Tensor tokens = tiny_tokens(160);
  std::vector<method::Recipe> all = recipes();
  for (method::Recipe& recipe : looking_recipes()) all.push_back(std::move(recipe));
  for (const method::Recipe& recipe : all) {
    INFO(recipe.id);
    const LayerMethods methods = prepared(decoder, recipe);
    const CacheUse use;
    const auto states = evaluate::teacher_forced(decoder, methods, use, nullptr, tokens).states;
    for (const int64_t j : {0, 37, 95, 96, 150}) {
      at::Tensor other = tokens.clone();
      other[j] = (other[j] + 1).remainder(60);
      const auto changed = evaluate::teacher_forced(decoder, methods, use, nullptr, other).states;
      if (j > 0) CHECK(changed.narrow(0, 0, j).equal(states.narrow(0, 0, j)));
      CHECK_FALSE(changed[j].equal(states[j]));
    }
  }
}

TEST_CASE("a rotation at 16 bits changes nothing", "[evaluate]") {
  const TinyFolder folder;
  const model::Decoder decoder(folder.path());
  const at::Tensor tokens = tiny_tokens(160);
  const CacheUse use{.dtype = DType::fp32, .backend = "reference"};
  const at::Tensor exact =
      nll(decoder, evaluate::run_prompt(decoder, tokens, use.dtype).states, tokens);
  for (const char* rotate : {"none", "hadamard", "random_orthogonal"}) {
    for (const char* scale : {"none", "l2_heads"}) {
      INFO(rotate << ", token scale " << scale);
      LayerMethods methods =
          prepared(decoder, cases::recipe("int2_naive", {{"key.rotate", rotate},
                                                         {"value.rotate", rotate},
                                                         {"key.token_scale", scale}}));
      for (evaluate::LayerMethod& method : methods) {
        method.prepared.key.codec = std::make_unique<SixteenBits>();
        method.prepared.value.codec = std::make_unique<SixteenBits>();
      }
      const auto made = evaluate::teacher_forced(decoder, methods, use, nullptr, tokens);
      CHECK(mean_gap(exact, nll(decoder, made.states, tokens)) < 1e-3);
    }
  }
}

TEST_CASE("every method's transforms at 16 bits change nothing", "[evaluate]") {
  const TinyFolder folder;
  const model::Decoder decoder(folder.path());
  const at::Tensor tokens = tiny_tokens(160);
  const CacheUse use{.dtype = DType::fp32, .backend = "reference"};
  const at::Tensor exact =
      nll(decoder, evaluate::run_prompt(decoder, tokens, use.dtype).states, tokens);
  const std::vector<calibrate::CalibrationSample> samples = calibration(decoder);
  int quantized = 0;
  for (const auto& [id, text] : method::preset_texts()) {
    method::Recipe recipe = method::preset(id);
    // Tokens that are dropped, or moved into their group's range, are no rounding.
    if (get_text(recipe.settings, "evict.kind") != "none") continue;
    if (get_text(recipe.settings, "protect.kind") != "none") continue;
    // Their codebooks take a minute to learn, and would not be used.
    if (get_text(recipe.settings, "key.codec.kind") == "vector_codebook") continue;
    INFO(id);
    if (method::is_learned(recipe)) recipe.settings["calibrate.steps"] = int64_t{2};
    // All that can be is quantized.
    recipe.settings["window.sink"] = recipe.settings["window.recent"] = int64_t{0};
    LayerMethods methods = prepared(decoder, recipe, samples);
    for (evaluate::LayerMethod& method : methods) {
      for (calibrate::PreparedSide* side : {&method.prepared.key, &method.prepared.value}) {
        if (side->passthrough) continue;
        side->codec = std::make_unique<SixteenBits>();
        side->shared.reset();
        ++quantized;
      }
    }
    const auto made = evaluate::teacher_forced(decoder, methods, use, nullptr, tokens);
    CHECK(mean_gap(exact, nll(decoder, made.states, tokens)) < 1e-3);
  }
  CHECK(quantized > 140);
}

TEST_CASE("scores: negative log-likelihood, divergence and agreement by hand", "[evaluate]") {
  const TinyFolder folder;
  const model::Decoder decoder(folder.path());
  const at::Tensor tokens = tiny_tokens(6);
  at::manual_seed(8);
  const at::Tensor a = at::randn({6, 32}), b = at::randn({6, 32});
  const evaluate::Scores scores = evaluate::score(decoder, a, b, tokens);
  REQUIRE(scores.nll.size(0) == 5);
  const at::Tensor ours = decoder.logits(a).to(at::kDouble).log_softmax(-1);
  const at::Tensor theirs = decoder.logits(b).to(at::kDouble).log_softmax(-1);
  for (int64_t i = 0; i < 5; ++i) {
    const int64_t p = i;
    const auto next = tokens[p + 1].item<int64_t>();
    CHECK(scores.nll[i].item<double>() == Approx(-ours[p][next].item<double>()).epsilon(1e-5));
    const double kl = (theirs[p].exp() * (theirs[p] - ours[p])).sum().item<double>();
    CHECK(scores.kl[i].item<double>() == Approx(kl).epsilon(1e-4));
    const bool same = ours[p].argmax().equal(theirs[p].argmax());
    CHECK(scores.top1[i].item<double>() == (same ? 1.0 : 0.0));
  }
}

TEST_CASE("perplexity: the tail begins at position 512", "[evaluate]") {
  evaluate::Scores scores;
  scores.nll = at::ones({600}, at::kDouble);
  scores.exact_nll = at::zeros({600}, at::kDouble);
  scores.exact_nll.narrow(0, 512, 88).fill_(0.75);
  scores.kl = scores.top1 = at::zeros({600}, at::kDouble);
  const metrics::Arrays whole = evaluate::perplexity(scores, 0);
  CHECK(whole.at("dnll_tail").item<double>() == Approx(0.25));
  CHECK(whole.at("dnll").item<double>() == Approx((512 + 88 * 0.25) / 600));
  CHECK(whole.at("ppl").item<double>() == Approx(std::exp(1.0)));
  // Scores that begin at position 500 have 12 of them before the tail.
  scores.exact_nll.fill_(1);
  scores.exact_nll.narrow(0, 12, 588).fill_(0.5);
  CHECK(evaluate::perplexity(scores, 500).at("dnll_tail").item<double>() == Approx(0.5));
}

TEST_CASE("a greedy continuation is what whole forwards would write", "[evaluate]") {
  const TinyFolder folder;
  const model::Decoder decoder(folder.path());
  const at::Tensor tokens = tiny_tokens(60);
  const evaluate::Prompt prompt = evaluate::run_prompt(decoder, tokens, DType::fp32);
  const auto continuation = [&](const evaluate::Prompt& from, DType dtype, const char* id) {
    return evaluate::greedy(decoder, prepared(decoder, cases::recipe(id)),
                            {.dtype = dtype, .backend = "reference"}, from, 12)
        .tokens;
  };
  const at::Tensor written = continuation(prompt, DType::fp32, "bf16");
  at::Tensor all = tokens;
  for (int64_t i = 0; i < 12; ++i) {
    const at::Tensor states = evaluate::run_prompt(decoder, all, DType::fp32).states;
    const at::Tensor next = decoder.logits(states.slice(0, -1)).argmax(-1);
    CHECK(next[0].item<int64_t>() == written[i].item<int64_t>());
    all = at::cat({all, next});
  }
  const evaluate::Prompt rounded = evaluate::run_prompt(decoder, tokens, DType::bf16);
  CHECK_FALSE(continuation(rounded, DType::bf16, "int2_naive")
                  .equal(continuation(rounded, DType::bf16, "bf16")));
}

TEST_CASE("an answer is exact where greedy writing gives it", "[evaluate]") {
  const TinyFolder folder;
  const model::Decoder decoder(folder.path());
  const evaluate::Prompt prompt = evaluate::run_prompt(decoder, tiny_tokens(60), DType::bf16);
  const CacheUse use{.dtype = DType::bf16, .backend = "reference"};
  const LayerMethods methods = prepared(decoder, cases::recipe("int2_naive"));
  const at::Tensor right = evaluate::greedy(decoder, methods, use, prompt, 5).tokens;
  const auto judge = [&](const at::Tensor& answer) {
    const auto made =
        evaluate::teacher_forced(decoder, methods, use, &prompt, answer.narrow(0, 0, 4));
    return evaluate::answer(decoder, prompt, answer, made.states);
  };
  CHECK(judge(right).is_exact);
  at::Tensor wrong = right.clone();
  wrong[4] = (wrong[4] + 1).remainder(60);
  CHECK_FALSE(judge(wrong).is_exact);
  CHECK(judge(wrong).nll > judge(right).nll);
}
