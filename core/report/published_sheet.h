#pragma once

#include <optional>

#include "published/published.h"
#include "report/sheet.h"
#include "store/results.h"

namespace kvlab::report {

/// The published numbers that the experiment of a results file names; nothing where it names none.
/// Throws Error where what the file holds cannot be read.
std::optional<published::Table> published_of(const store::Results& results);

/// Published | measured here | what differs: a line for each published row, then the file's own
/// rows that no published one stands beside. Numbers that are missing are a dash, with the reason
/// in the notes.
Sheet published_sheet(const store::Results& results, const published::Table& table);

}  // namespace kvlab::report
