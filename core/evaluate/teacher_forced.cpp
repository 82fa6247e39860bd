#include "evaluate/teacher_forced.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/names.h"
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

/// The history of queries [first, first + n): where it is read by all of them, where by none, and
/// which of the tokens between each query reads, bool [n, most − least].
struct Ends {
  int64_t least = 0, most = 0;
  at::Tensor is_read;

  /// begin: of the history. held: bool [n, T], tokens of it that stay in full precision; or
  /// undefined.
  Ends(const at::Tensor& ends, int64_t first, int64_t n, int64_t begin, const at::Tensor& held) {
    const at::Tensor part = ends.narrow(0, first, n);
    // A held token may stand anywhere.
    least = held.defined() ? begin : part[0].item<int64_t>();
    most = part[n - 1].item<int64_t>();
    is_read = at::arange(least, most, at::kLong).unsqueeze(0).lt(part.unsqueeze(1));
    if (held.defined()) {
      is_read = is_read.logical_and_(held.narrow(1, least, most - least).logical_not());
    }
  }
};

/// What attention of a head is given beside its sides.
struct Reading {
  const cache::Schedule& schedule;
  const metrics::ProbeLimits& limits;
  int64_t head = 0;
  int64_t window = 0;  // of the model
};

/// Queries of one KV head, q [g, n, d], those of the last n tokens, against all its tokens.
at::Tensor attend_head(const at::Tensor& q, HeadSide key, HeadSide value, const Reading& reading) {
  const auto& [schedule, limits, head, window] = reading;
  const int64_t history = schedule.windows().begin();
  const int64_t tokens = limits.positions.size(0);
  const int64_t start = tokens - q.size(1);
  const double scale = 1.0 / std::sqrt(static_cast<double>(q.size(2)));
  at::Tensor output = at::empty_like(q);
  for (int64_t first = start; first < tokens; first += kChunk) {
    const int64_t n = std::min(kChunk, tokens - first);
    const int64_t end = first + n;
    const int64_t begin = window > 0 ? std::max<int64_t>(0, first - window + 1) : 0;
    const at::Tensor queries = q.narrow(1, first - start, n) * scale;
    const at::Tensor positions = limits.positions.narrow(0, first, n);
    at::Tensor held;
    if (schedule.protects()) held = schedule.protected_at(0, positions);
    const Ends keys(limits.key, first, n, history, held);
    const Ends values(limits.value, first, n, history, held);

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
    if (schedule.evicts()) {
      hidden =
          hidden.logical_or_(schedule.evicted_at(0, head, positions).narrow(1, begin, end - begin));
    }
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
  LayerTokens all = tokens_of(input, use_.dtype);
  if (prompt_ != nullptr) all = joined(prompt_->layers[layer], all);
  const data::Sample sample = sample_of(all, input.q, use_.dtype, *input.rope);
  const cache::Schedule schedule(method.recipe.settings, sample);
  for (const std::string& note : schedule.notes()) add_once(&notes_, note);
  ReadTokens read = read_back(sample, method, use_.backend, schedule);
  memory_[layer] = std::move(read.memory);

  const metrics::ProbeLimits limits(schedule, 0, at::arange(sample.tokens(), at::kLong));
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
                           side(sample.v, read.v), {schedule, limits, head, input.window}));
  }
  return output.to(input.q.device()).to(input.q.scalar_type());
}

}  // namespace kvlab::evaluate
