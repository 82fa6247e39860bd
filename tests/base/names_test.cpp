#include "base/names.h"

#include "catch.h"

using namespace kvlab;

TEST_CASE("The nearest name is by letters, but a type of numbers under another name is that type") {
  CHECK(nearest("teacherforced", {"teacher_forced", "decode"}) == "teacher_forced");
  CHECK(nearest("both", {"teacher_forced", "decode"}).empty());
  for (const auto& [word, meant] : {std::pair{"bfloat16", "bf16"},
                                    {"BFloat16", "bf16"},
                                    {"float16", "fp16"},
                                    {"half", "fp16"},
                                    {"fp32", "float32"},
                                    {"float", "float32"}}) {
    CHECK(nearest(word, {"bf16", "fp16", "float32"}) == meant);
  }
  CHECK(nearest("bf16", {"float32", "float16", "bfloat16"}) == "bfloat16");
  CHECK(nearest("float32", {"bf16", "fp16", "fp32"}) == "fp32");
  // No other name of the type is there.
  CHECK(nearest("floats", {"float32", "int8"}) == "float32");
}
