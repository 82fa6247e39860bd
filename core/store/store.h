#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "store/cell_io.h"
#include "store/parts.h"
#include "store/results.h"
#include "store/run_lock.h"
#include "store/summary.h"

/// Results files (contract section 6): FILE.h5 and, beside it, FILE.h5.parts with the cells
/// finished since.
///
/// Writers hold a RunLock; readers need nothing. Cells are copied from file to file without being
/// loaded, so memory grows with the number of cells and not with their arrays.
namespace kvlab::store {

/// FILE.h5 overlaid by its parts. Throws Error: no such file, truncated, not a results file,
/// another schema version.
Results read_results(const std::filesystem::path& path, Detail detail = Detail::light);

/// Replaces FILE.h5 by `results` in one step. All cells must be there in full. Refuses to replace
/// anything that is not a results file.
void write_results(const std::filesystem::path& path, const Results& results);

/// Starts or goes on with a run: FILE.h5 gets the attributes, experiment and rows of `plan`, keeps
/// the cells it has and takes in its parts. Cells of `plan` (a stub with status `interrupted` for
/// each cell still to run, and those `excluded` or `unsupported`) are added; a stub yields to a
/// stored cell, any other planned cell replaces it. Stored cells that are `damaged` go.
void update_results(const std::filesystem::path& path, const Results& plan,
                    const std::set<std::string>& damaged = {});

/// Those of the cells, all in FILE.h5 or its parts, that are not what was written: their checksum
/// differs, or they cannot be read.
std::set<std::string> damaged_cells(const std::filesystem::path& path,
                                    const std::set<std::string>& ids);

struct FoldReport {
  int64_t folded = 0;  // cells taken in
  std::vector<std::filesystem::path>
      ignored;  // files in the parts folder that are torn or foreign; left alone
};

/// Takes the parts into FILE.h5 in one step, then removes them. Without parts it changes nothing.
FoldReport fold(const std::filesystem::path& path);

struct MergeReport {
  int64_t rows = 0;
  int64_t cells = 0;
  std::vector<std::string> warnings;
};

/// Shards or partial runs of one experiment into one file with the summary of one run. `attributes`
/// (created, argv, host …) replace those of the inputs. Complete cells are preferred; complete ones
/// that disagree by more than another number of threads explains give a warning. Throws Error where
/// `out` is there, no input, and holds complete cells that no input has; where the inputs come from
/// different experiments (naming the first difference) or code versions; where a complete cell of
/// an input is damaged.
MergeReport merge(const std::filesystem::path& out,
                  const std::vector<std::filesystem::path>& inputs,
                  const std::map<std::string, std::string>& attributes = {});

/// A cell that is not what this program would compute for the experiment now, and why.
struct StaleCell {
  std::string id;
  std::string reason;
};

struct Status {
  std::string name;
  std::string created;
  std::string code_version;  // of the file
  int64_t rows = 0;
  int64_t missing_rows = 0;  // see missing_rows(), and as a sentence:
  std::string missing;
  int64_t cells = 0;                              // that rows refer to
  std::map<std::string, int64_t> cells_by_state;  // of those; "pending" while a run is under way
  std::map<std::string, int64_t> reasons;         // "status: reason" of those not complete
  std::vector<StaleCell> stale;
  int64_t in_parts = 0;  // finished cells not folded in yet
  std::vector<std::filesystem::path> ignored_parts;
  std::string running;  // who is writing the file now; empty: nobody
};

/// `code_version` is that of this program.
Status status(const std::filesystem::path& path, const std::string& code_version);

struct Verification {
  int64_t checked = 0;                // groups and parts whose checksum was recomputed
  std::vector<std::string> problems;  // one sentence each
};

/// Reads everything in FILE.h5 and its parts and compares the checksums.
Verification verify_results(const std::filesystem::path& path);

}  // namespace kvlab::store
