#include "config/document.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace kvlab::config {
namespace {

namespace fs = std::filesystem;
using yaml::Member;
using yaml::Node;
using yaml::Problems;

/// Maps whose keys are dotted themselves.
bool holds_dotted_keys(const std::string& key) {
  return key == "grid" || key == "zip" || key == "set" || key == "when";
}

std::optional<size_t> index_of(const std::string& text) {
  size_t index = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return index;
}

Member new_member(const std::string& key, Node value) {
  const int line = value.line;
  const int column = value.column;
  return {key, std::move(value), line, column};
}

class Assignment {
 public:
  Assignment(std::string path, Node value) : path_(std::move(path)), value_(std::move(value)) {}

  std::optional<std::string> run(Node& root) { return set(root, path_, false); }

 private:
  std::optional<std::string> set(Node& node, const std::string& rest, bool dotted) {
    if (node.is_list()) return set_in_list(node, rest, dotted);
    if (node.is_scalar()) {
      return fmt::format("'{}' cannot be set: {} has no keys", path_, yaml::describe(node));
    }
    node.kind = Node::Kind::map;
    return set_in_map(node, rest, dotted);
  }

  std::optional<std::string> set_in_list(Node& list, const std::string& rest, bool dotted) {
    const size_t dot = rest.find('.');
    const auto index = index_of(rest.substr(0, dot));
    if (!index && list.items.size() == 1) return set(list.items[0], rest, dotted);
    if (!index || *index >= list.items.size()) {
      return fmt::format("'{}' cannot be set: '{}' is no index of a list of {}", path_,
                         rest.substr(0, dot), list.items.size());
    }
    if (dot == std::string::npos) {
      list.items[*index] = value_;
      return std::nullopt;
    }
    return set(list.items[*index], rest.substr(dot + 1), dotted);
  }

  std::optional<std::string> set_in_map(Node& map, const std::string& rest, bool dotted) {
    auto& members = map.members;
    const auto exact = std::find_if(members.begin(), members.end(),
                                    [&](const Member& member) { return member.key == rest; });
    if (exact != members.end()) {
      if (value_.kind == Node::Kind::null) {
        members.erase(exact);
      } else {
        *exact = new_member(rest, value_);
      }
      return std::nullopt;
    }
    if (Member* inner = longest_prefix(map, rest)) {
      return set(inner->value, rest.substr(inner->key.size() + 1),
                 dotted || holds_dotted_keys(inner->key));
    }
    const size_t dot = rest.find('.');
    const bool is_last = dotted || dot == std::string::npos;
    const std::string head = rest.substr(0, dot);
    if (!is_last && index_of(head) == size_t{0}) return set(map, rest.substr(dot + 1), dotted);
    // A slip of the hand in a key must not pass for its removal.
    if (value_.kind == Node::Kind::null) return nothing_to_remove(map, rest);
    if (is_last) {
      members.push_back(new_member(rest, value_));
      return std::nullopt;
    }
    Node inner;
    inner.file = value_.file;
    members.push_back(new_member(head, std::move(inner)));
    return set(members.back().value, rest.substr(dot + 1), holds_dotted_keys(head));
  }

  std::string nothing_to_remove(const Node& map, const std::string& rest) const {
    std::vector<std::string> keys;
    for (const Member& member : map.members) keys.push_back(member.key);
    return fmt::format("'{}' cannot be removed, it is not set{}", path_, yaml::hint(rest, keys));
  }

  static Member* longest_prefix(Node& map, const std::string& rest) {
    Member* longest = nullptr;
    for (Member& member : map.members) {
      if (!rest.starts_with(member.key + ".")) continue;
      if (longest == nullptr || member.key.size() > longest->key.size()) longest = &member;
    }
    return longest;
  }

  std::string path_;
  Node value_;
};

class Includer {
 public:
  Includer(const fs::path& folder, Problems& problems) : folder_(folder), problems_(problems) {}

  bool complete() const { return complete_; }

  /// The keys of `file` over those of the files it includes.
  Node read(const fs::path& file, const std::string& text) {
    const size_t before = problems_.size();
    Node node = yaml::parse(text, file.string(), problems_);
    if (problems_.size() > before && !node.is_map()) complete_ = false;
    const Node* include = node.find("include");
    if (include == nullptr) return node;
    open_.push_back(fs::weakly_canonical(file));
    Node merged = node;
    merged.members.clear();
    const std::vector<Node> files = include->is_list() ? include->items : std::vector{*include};
    for (const Node& name : files) add(name, merged);
    open_.pop_back();
    std::erase_if(node.members, [](const Member& member) { return member.key == "include"; });
    put(std::move(node), merged);
    return merged;
  }

 private:
  void add(const Node& name, Node& merged) {
    const size_t before = problems_.size();
    const std::string text = yaml::read_text(name, "include", problems_).value_or("");
    const bool is_text = problems_.size() == before;
    const fs::path path = is_text ? resolve_path(text, folder_, name, problems_) : fs::path();
    if (problems_.size() > before) {
      complete_ = false;
      return;
    }
    if (std::find(open_.begin(), open_.end(), fs::weakly_canonical(path)) != open_.end()) {
      yaml::report(problems_, name, fmt::format("'{}' includes itself", text));
      complete_ = false;  // what else is missing, follows from it
      return;
    }
    put(read(path, yaml::read_file(path, problems_)), merged);
  }

  static void put(Node from, Node& into) {
    for (Member& member : from.members) {
      std::erase_if(into.members, [&](const Member& old) { return old.key == member.key; });
      into.members.push_back(std::move(member));
    }
  }

  const fs::path& folder_;
  Problems& problems_;
  std::vector<fs::path> open_;
  bool complete_ = true;
};

/// The command that makes a file of the repository's own data; empty for any other.
std::string maker_of(const std::string& path) {
  static const std::pair<const char*, const char*> makers[] = {
      {"models/smollm2", "prepare_model.py --out models/smollm2"},
      {"datasets/smollm2/passages/", "prepare_demo.py --out datasets/smollm2 --passages"},
      {"datasets/smollm2/long/", "prepare_demo.py --out datasets/smollm2 --long"},
      {"datasets/smollm2/calibration.h5", "prepare_demo.py --out datasets/smollm2"},
      {"datasets/smollm2/eval_austen.h5", "prepare_demo.py --out datasets/smollm2"},
      {"datasets/smollm2/eval_jargon.h5", "prepare_demo.py --out datasets/smollm2"},
  };
  for (const auto& [part, maker] : makers) {
    if (path.find(part) != std::string::npos) {
      return fmt::format("; python datasets/{} makes it", maker);
    }
  }
  return "";
}

/// Lines and columns within a command-line value mean nothing to the reader.
void clear_places(Node& node) {
  node.line = node.column = 0;
  for (Node& item : node.items) clear_places(item);
  for (Member& member : node.members) {
    member.line = member.column = 0;
    clear_places(member.value);
  }
}

void apply_edit(const std::string& edit, Node& root, Problems& problems) {
  const size_t equals = edit.find('=');
  if (equals == std::string::npos || equals == 0) {
    problems.push_back({"--set " + edit, 0, 0, "expected KEY=VALUE"});
    return;
  }
  const std::string key = edit.substr(0, equals);
  const std::string where = "--set " + key;
  if (key == "include" || key.starts_with("include.")) {
    problems.push_back({where, 0, 0,
                        "files are included by the experiment file alone: write a file that "
                        "includes both, later keys win"});
    return;
  }
  Problems mistakes;
  Node value = yaml::parse(edit.substr(equals + 1), where, mistakes);
  for (Problem& problem : mistakes) problem.line = problem.column = 0;
  problems.insert(problems.end(), mistakes.begin(), mistakes.end());
  if (!mistakes.empty()) return;
  clear_places(value);
  if (auto wrong = assign(root, key, std::move(value))) problems.push_back({where, 0, 0, *wrong});
}

}  // namespace

Document read_document(const fs::path& file, const std::vector<std::string>& edits,
                       Problems& problems) {
  Document document;
  document.source = yaml::read_file(file, problems);
  if (!problems.empty()) {
    document.complete = false;
    return document;
  }
  const fs::path folder = file.parent_path();
  Includer includer(folder, problems);
  document.root = includer.read(file, document.source);
  document.complete = includer.complete();
  for (const std::string& edit : edits) apply_edit(edit, document.root, problems);
  return document;
}

std::optional<std::string> assign(Node& node, const std::string& path, Node value) {
  return Assignment(path, std::move(value)).run(node);
}

fs::path resolve_path(const std::string& path, const fs::path& folder, const Node& node,
                      Problems& problems) {
  if (path.empty()) {
    yaml::report(problems, node, "a file must be named, found ''");
    return {};
  }
  std::vector<fs::path> places = {fs::absolute(folder / path).lexically_normal()};
  if (fs::path(path).is_relative()) {
    for (const fs::path& other :
         {fs::absolute(path), fs::absolute(fs::path(node.file).parent_path() / path)}) {
      const fs::path place = other.lexically_normal();
      if (std::find(places.begin(), places.end(), place) == places.end()) places.push_back(place);
    }
  }
  std::string looked;
  for (const fs::path& place : places) {
    std::error_code ignored;
    if (fs::exists(place, ignored)) return place;
    looked += (looked.empty() ? "" : ", ") + place.string();
  }
  yaml::report(problems, node,
               fmt::format("'{}': no such file (looked for {}){}", path, looked,
                           maker_of(places.front().string())));
  return places.front();
}

}  // namespace kvlab::config
