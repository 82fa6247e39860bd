#pragma once

#include <string>
#include <vector>

#include "twin.h"

/// An operation on the GPU and on the CPU, on equal inputs. Each function returns what is wrong,
/// and adds to `note` what is worth a look though right.
namespace kvlab::gpu_check {

using Failures = std::vector<std::string>;

/// More sequences than a thread block looks at together, every seventh of them empty.
std::vector<int> many_lengths(int tokens);

/// A prefill of `lengths` tokens, by default of three sequences, one of them empty.
Failures check_encode(Setup setup, int tokens, std::string& note, std::vector<int> lengths = {});

/// The history of both sides against the CPU's decoding of the same blocks.
Failures check_dequantize(Setup setup, int tokens, bool undo, std::string& note);

struct Queries {
  int group = 4;  // query heads a KV head
  int tokens = 1;
  Type type = Type::bf16;
  Type output = Type::f32;
};

/// Attention after a prefill, without a schedule and by schedules.
Failures check_attend(Setup setup, int tokens, const Queries& queries, std::string& note);

/// A prefill, then steps of `step` tokens; one-token steps leave the ring by the flush of two
/// layers.
Failures check_steps(Setup setup, const std::vector<int>& prefill, int steps, int step, bool flush,
                     std::string& note);

}  // namespace kvlab::gpu_check
