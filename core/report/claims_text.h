#pragma once

namespace kvlab::report {

/// core/report/claims.yaml, as embedded by the build.
const char* claims_text();

}  // namespace kvlab::report
