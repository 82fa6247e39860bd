// `published:`, the paper's numbers that an experiment's own stand beside.
#include "config/document.h"
#include "config/reader.h"
#include "published/published.h"

namespace kvlab::config {

using yaml::Node;

void inline_published(Node& root, const std::filesystem::path& folder, yaml::Problems& problems) {
  for (yaml::Member& member : root.members) {
    if (member.key != "published" || !member.value.is_scalar()) continue;
    const size_t before = problems.size();
    const std::string name = yaml::read_text(member.value, "published", problems).value_or("");
    const auto path = resolve_path(name, folder, member.value, problems);
    if (problems.size() > before) return;
    const std::string text = yaml::read_file(path, problems);
    if (problems.size() > before) return;
    member.value = yaml::parse(text, path.string(), problems);
  }
}

void read_published(const Node& node, Reading& reading) {
  if (!node.is_map()) {
    // A file that cannot be read has been reported.
    if (reading.problems.empty()) {
      yaml::report(
          reading.problems, node,
          "'published' must name a file of published numbers, found " + yaml::describe(node));
    }
    return;
  }
  published::read(node, reading.problems);
}

}  // namespace kvlab::config
