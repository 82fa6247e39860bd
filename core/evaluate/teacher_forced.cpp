#include "evaluate/teacher_forced.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "metrics/probe_limits.h"

namespace kvlab::evaluate {
namespace {

/// Query positions whose logits are held at a time.
constexpr int64_t kChunk = 128;

/// One side of one KV head as the queries meet it: captured tokens, of which those before a growing
/// end are replaced by what the cache gives back.
class HeadSide {
 public:
  /// captured [T, d]; read [n, d] from token `begin` on, or undefined.
  HeadSide(const at::Tensor& captured, at::Tensor read, int64_t begin)
      : captured_(captured), read_(std::move(read)), begin_(begin), end_(begin) {
    rows_ = read_.defined() ? captured.clone() : captured;
  }

  /// All tokens, those of [begin, end) as read. `end` never falls from call to call.
  const at::Tensor& rows_until(int64_t end) {
    if (read_.defined() && end > end_) {
      rows_.narrow(0, end_, end - end_).copy_(read_.narrow(0, end_ - begin_, end - end_));
      end_ = end;
    }
    return rows_;
  }

  at::Tensor read(int64_t from, int64_t n) const { return read_.narrow(0, from - begin_, n); }
  at::Tensor captured(int64_t from, int64_t n) const { return captured_.narrow(0, from, n); }

 private:
  at::Tensor captured_, read_, rows_;
  int64_t begin_, end_;
};

/// Ends of the history of queries [first, first + n): the first one's, the last one's, and which of
/// the tokens between are behind each query's own, bool [n, most − least].
struct Ends {
  int64_t least = 0, most = 0;
  at::Tensor is_read;

  Ends(const at::Tensor& ends, int64_t first, int64_t n) {
    const at::Tensor part = ends.narrow(0, first, n);
    least = part[0].item<int64_t>();
    most = part[n - 1].item<int64_t>();
    is_read = at::arange(least, most, at::kLong).unsqueeze(0).lt(part.unsqueeze(1));
  }
};

/// Queries of one KV head, q [g, n, d], those of the last n tokens, against all its tokens.
at::Tensor attend_head(const at::Tensor& q, HeadSide key, HeadSide value,
                       const metrics::ProbeLimits& limits, int64_t window) {
  const int64_t tokens = limits.positions.size(0);
  const int64_t start = tokens - q.size(1);
  const double scale = 1.0 / std::sqrt(static_cast<double>(q.size(2)));
  at::Tensor output = at::empty_like(q);
  for (int64_t first = start; first < tokens; first += kChunk) {
    const int64_t n = std::min(kChunk, tokens - first);
    const int64_t end = first + n;
    const int64_t begin = window > 0 ? std::max<int64_t>(0, first - window + 1) : 0;
    const at::Tensor queries = q.narrow(1, first - start, n) * scale;
    const Ends keys(limits.key, first, n);
    const Ends values(limits.value, first, n);

    const at::Tensor rows = key.rows_until(keys.least).narrow(0, begin, end - begin);
    at::Tensor logits = queries.matmul(rows.t());
    // Tokens that some queries of the chunk read quantized and others do not.
    if (const int64_t from = std::max(keys.least, begin); from < keys.most) {
      at::Tensor part = logits.narrow(-1, from - begin, keys.most - from);
      const at::Tensor read = queries.matmul(key.read(from, keys.most - from).t());
      const at::Tensor is_read = keys.is_read.narrow(1, from - keys.least, keys.most - from);
      part.copy_(at::where(is_read, read, part));
    }
    const at::Tensor own = at::arange(first, end, at::kLong).unsqueeze(1);
    const at::Tensor other = at::arange(begin, end, at::kLong).unsqueeze(0);
    at::Tensor hidden = other.gt(own);
    if (window > 0) hidden = hidden.logical_or_(other.le(own - window));
    logits.masked_fill_(hidden, -std::numeric_limits<float>::infinity());
    const at::Tensor weights = logits.softmax(-1);

    at::Tensor sum = weights.matmul(value.rows_until(values.least).narrow(0, begin, end - begin));
    if (const int64_t from = std::max(values.least, begin); from < values.most) {
      const int64_t count = values.most - from;
      const at::Tensor error = value.read(from, count) - value.captured(from, count);
      const at::Tensor is_read = values.is_read.narrow(1, from - values.least, count);
      sum += (weights.narrow(-1, from - begin, count) * is_read).matmul(error);
    }
    output.narrow(1, first - start, n).copy_(sum);
  }
  return output;
}

}  // namespace

TeacherForced::TeacherForced(const LayerMethods& methods, CacheUse use, const Prompt* prompt)
    : methods_(methods), use_(std::move(use)), prompt_(prompt), memory_(methods.size()) {}

at::Tensor TeacherForced::operator()(const model::LayerInput& input) {
  const c10::NoGradGuard no_grad;
  const auto layer = static_cast<size_t>(input.layer);
  const LayerMethod& method = methods_.at(layer);
  const auto after_prompt = [&](const std::vector<at::Tensor>& before, const at::Tensor& x) {
    return at::cat({before[layer].to(x.scalar_type()), x}, 1);
  };
  const data::Sample sample = prompt_ == nullptr
                                  ? captured(input.q, input.k, input.v, use_.dtype)
                                  : captured(input.q, after_prompt(prompt_->k, input.k),
                                             after_prompt(prompt_->v, input.v), use_.dtype);
  ReadTokens read = read_back(sample, method, use_.backend);
  memory_[layer] = std::move(read.memory);

  const int64_t tokens = sample.tokens();
  const cache::Schedule schedule(method.recipe.settings, sample);
  const metrics::ProbeLimits limits(schedule, 0, at::arange(tokens, at::kLong));
  const int64_t group = input.q.size(0) / sample.kv_heads();
  const at::Tensor q = input.q.to(at::kCPU).to(at::kFloat);
  at::Tensor output = at::empty_like(q);
  for (int64_t head = 0; head < sample.kv_heads(); ++head) {
    const auto side = [&](const at::Tensor& captured, const at::Tensor& given) {
      return HeadSide(captured[0][head].to(at::kFloat),
                      given.defined() ? given[head] : at::Tensor(), read.begin);
    };
    output.narrow(0, head * group, group)
        .copy_(attend_head(q.narrow(0, head * group, group), side(sample.k, read.k),
                           side(sample.v, read.v), limits, input.window));
  }
  return output.to(input.q.device()).to(input.q.scalar_type());
}

}  // namespace kvlab::evaluate
