#include "base/utf8.h"

#include "catch.h"

namespace kvlab {
namespace {

TEST_CASE("utf8: characters of every length are valid") {
  CHECK_FALSE(first_invalid_utf8(""));
  CHECK_FALSE(first_invalid_utf8("aé日😀\x7F"));
  CHECK_FALSE(first_invalid_utf8("\xED\x9F\xBF\xEE\x80\x80\xF4\x8F\xBF\xBF"));
}

TEST_CASE("utf8: the first wrong byte is found") {
  CHECK(first_invalid_utf8("caf\xE9") == 3u);
  CHECK(first_invalid_utf8("\xE6\x97") == 0u);          // cut
  CHECK(first_invalid_utf8("a\x80") == 1u);             // no lead byte
  CHECK(first_invalid_utf8("\xC0\xAF") == 0u);          // overlong
  CHECK(first_invalid_utf8("\xE0\x9F\xBF") == 0u);      // overlong
  CHECK(first_invalid_utf8("\xED\xA0\x80") == 0u);      // surrogate
  CHECK(first_invalid_utf8("\xF4\x90\x80\x80") == 0u);  // beyond U+10FFFF
  CHECK(first_invalid_utf8("\xFF\xFE") == 0u);          // UTF-16
}

TEST_CASE("utf8: JSON of any bytes is text") {
  CHECK(json_text(nlohmann::json("caf\xE9")) == "\"caf\xEF\xBF\xBD\"");
}

}  // namespace
}  // namespace kvlab
