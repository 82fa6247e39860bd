#include "report/status.h"

#include "catch.h"

namespace kvlab::report {
namespace {

store::Status some_status() {
  store::Status status;
  status.name = "demo";
  status.created = "2026-01-02T03:04:05Z";
  status.code_version = "aa11";
  status.rows = 6;
  status.cells = 5;
  status.cells_by_state = {{"complete", 2}, {"failed", 2}, {"interrupted", 1}};
  status.reasons = {{"failed: a: b", 2}, {"interrupted: not finished", 1}};
  status.stale = {{"0123456789abcdef", "no row of the experiment refers to it any more"}};
  status.in_parts = 1;
  status.running = "process 7 on host n1";
  return status;
}

TEST_CASE("Status as text") {
  CHECK(status_text(some_status(), "r.h5") == R"(r.h5: demo, 5 cells, 6 rows
created 2026-01-02T03:04:05Z, code version aa11
being written by process 7 on host n1
  complete           2
  failed             2
  interrupted        1
1 finished cell in r.h5.parts, counted already
reasons:
  2 × failed: a: b
  1 × interrupted: not finished
stale: 1 cell
  1 × no row of the experiment refers to it any more (such as 0123456789ab)
)");
}

TEST_CASE("Status as JSON has every state") {
  const nlohmann::ordered_json json = status_json(some_status(), "r.h5");
  CHECK(json["states"].dump() ==
        R"({"complete":2,"failed":2,"unsupported":0,"excluded":0,"interrupted":1})");
  CHECK(json["reasons"][0].dump() == R"({"status":"failed","reason":"a: b","cells":2})");
  CHECK(json["stale"].size() == 1);
  CHECK(json["running"] == "process 7 on host n1");
}

}  // namespace
}  // namespace kvlab::report
