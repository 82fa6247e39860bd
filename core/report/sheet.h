#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace kvlab::report {

/// Place of a value in its column.
enum class Rank { none, best, second };

/// One field of a table: what people read and what programs read.
struct Entry {
  std::string text;
  std::string exact;  // full precision; empty: no value
  Rank rank = Rank::none;
};

struct SheetColumn {
  enum class For { all, people, programs };
  std::string heading;
  std::string exact_heading;  // of CSV
  bool is_text = false;       // left-aligned
  For readers = For::all;
};

/// A table before it is written out in one of the formats.
struct Sheet {
  std::string title;  // nothing where the headings say it
  std::vector<SheetColumn> columns;
  std::vector<std::vector<Entry>> lines;  // as `columns`
  std::vector<std::string> notes;         // below the table; not in CSV
};

}  // namespace kvlab::report
