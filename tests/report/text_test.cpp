#include <cmath>
#include <limits>

#include "catch.h"
#include "report/number_text.h"
#include "report/text_width.h"

namespace kvlab::report {
namespace {

TEST_CASE("Columns of text are counted, not bytes") {
  CHECK(display_width("U·H·P") == 5);
  CHECK(display_width("e\u0301") == 1);
  CHECK(display_width("漢字") == 4);
  CHECK(display_width("\xff\xc3") == 2);
  CHECK(padded("ü", 3, Align::left) == "ü  ");
  CHECK(padded("ü", 3, Align::right) == "  ü");
  CHECK(padded("long", 2, Align::left) == "long");
  CHECK(one_line("a\n\tb \r\n") == "a b");
}

TEST_CASE("Numbers have four significant digits and NaN is a dash") {
  CHECK(short_number(0.0123456) == "0.01235");
  CHECK(short_number(2.25) == "2.250");
  CHECK(short_number(999.96) == "1000");
  CHECK(short_number(123456.4) == "123456");
  CHECK(short_number(0.0000123456) == "1.235e-05");
  CHECK(short_number(0) == "0");
  CHECK(short_number(-0.5) == "-0.5000");
  CHECK(short_number(std::numeric_limits<double>::quiet_NaN()) == "-");
  CHECK(short_number(std::numeric_limits<double>::infinity()) == "inf");
  CHECK(exact_number(0.1 + 0.2) == "0.30000000000000004");
  CHECK(exact_number(std::numeric_limits<double>::quiet_NaN()).empty());
}

}  // namespace
}  // namespace kvlab::report
