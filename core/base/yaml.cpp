#include "base/yaml.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>

#include "base/names.h"
#include "base/utf8.h"
#include "base/yaml_scalar.h"

namespace kvlab::yaml {
namespace {

// Aliases copy what they stand for; nested ones could otherwise fill the memory from a few lines.
constexpr size_t kMostNodes = 50'000;

/// Builds the tree from yaml-cpp's events, which, unlike its own nodes, keep repeated keys and
/// every place.
class Builder : public YAML::EventHandler {
 public:
  Builder(const std::string& file, Problems& problems) : file_(file), problems_(problems) {}

  Node take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override { add(at(mark), anchor); }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchors_.find(anchor);
    Node node = at(mark);
    if (found == anchors_.end()) {
      report(problems_, node, "this alias stands inside the value that it names");
    } else {
      count_ += found->second.second;
      if (count_ > kMostNodes) throw Error("aliases make the file too large");
      node = found->second.first;
      node.line = mark.line + 1;
      node.column = mark.column + 1;
    }
    place(std::move(node));
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    Node node = at(mark);
    node.text = value;
    node.quoted = tag == "!" || tag == "tag:yaml.org,2002:str";
    check_tag(node, tag);
    if (value.find('\0') != std::string::npos) {
      report(problems_, node, "text must not hold the character NUL");
    }
    node.value = node.quoted ? nlohmann::json(value) : typed_scalar(value);
    node.kind = node.value.is_null() ? Node::Kind::null : Node::Kind::scalar;
    add(std::move(node), anchor);
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, Node::Kind::list);
  }
  void OnSequenceEnd() override { close(); }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, Node::Kind::map);
  }
  void OnMapEnd() override { close(); }

 private:
  struct Open {
    Node node;
    YAML::anchor_t anchor = 0;
    size_t first = 0;                             // nodes counted before this one
    std::optional<Member> member = std::nullopt;  // of a map: a key that waits for its value
  };

  Node at(const YAML::Mark& mark) const {
    Node node;
    node.file = file_;
    node.line = mark.line + 1;
    node.column = mark.column + 1;
    return node;
  }

  void check_tag(const Node& node, const std::string& tag) {
    if (tag.empty() || tag == "?" || tag == "!" || tag.starts_with("tag:yaml.org,2002:")) return;
    report(problems_, node, fmt::format("the tag {} is not known here", tag));
  }

  void open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
            Node::Kind kind) {
    Node node = at(mark);
    node.kind = kind;
    check_tag(node, tag);
    stack_.push_back({.node = std::move(node), .anchor = anchor, .first = count_});
  }

  void close() {
    Open done = std::move(stack_.back());
    stack_.pop_back();
    if (done.anchor != 0) anchors_[done.anchor] = {done.node, count_ - done.first + 1};
    ++count_;
    place(std::move(done.node));
  }

  void add(Node node, YAML::anchor_t anchor) {
    if (anchor != 0) anchors_[anchor] = {node, 1};
    ++count_;
    place(std::move(node));
  }

  void place(Node node) {
    if (stack_.empty()) {
      root_ = std::move(node);
      return;
    }
    Open& parent = stack_.back();
    if (parent.node.is_list()) {
      parent.node.items.push_back(std::move(node));
    } else if (parent.member) {
      parent.member->value = std::move(node);
      keep(parent.node, std::move(*parent.member));
      parent.member.reset();
    } else {
      if (!node.is_scalar())
        report(problems_, node, "a key must be a word, found " + describe(node));
      if (node.text == "<<" && !node.quoted) {
        report(problems_, node,
               "merge keys (<<) are not read here: write the keys out, or use 'include'");
      }
      parent.member = Member{node.text, {}, node.line, node.column};
    }
  }

  void keep(Node& map, Member member) {
    for (const Member& other : map.members) {
      if (other.key != member.key) continue;
      problems_.push_back(
          {file_, member.line, member.column,
           fmt::format("key '{}' is given twice (first on line {})", member.key, other.line)});
      return;
    }
    map.members.push_back(std::move(member));
  }

  const std::string& file_;
  Problems& problems_;
  Node root_;
  std::vector<Open> stack_;
  std::map<YAML::anchor_t, std::pair<Node, size_t>> anchors_;
  size_t count_ = 0;
};

/// A problem at a byte of the text. Columns count characters.
Problem at_byte(const std::string& text, size_t byte, const std::string& file,
                const std::string& message) {
  Problem problem{file, 1, 1, message};
  for (size_t i = 0; i < byte; ++i) {
    const bool is_inner = (static_cast<unsigned char>(text[i]) & 0xC0) == 0x80;
    if (!is_inner) ++problem.column;
    if (text[i] == '\n') problem = {file, problem.line + 1, 1, message};
  }
  return problem;
}

/// What to do about it where the line (from 0) begins with a tab.
std::string tab_hint(const std::string& text, int line) {
  size_t begin = 0;
  for (int i = 0; i < line && begin != std::string::npos; ++i) {
    begin = text.find('\n', begin);
    if (begin != std::string::npos) ++begin;
  }
  if (begin == std::string::npos) return "";
  const size_t word = std::min(text.find_first_not_of(" \t", begin), text.size());
  const bool has_tab = text.substr(begin, word - begin).find('\t') != std::string::npos;
  return has_tab ? " (the line is indented with a tab; YAML takes spaces only)" : "";
}

void emit(YAML::Emitter& out, const Node& node) {
  switch (node.kind) {
    case Node::Kind::null:
      out << YAML::Null;
      break;
    case Node::Kind::scalar:
      if (node.quoted) out << YAML::DoubleQuoted;
      out << node.text;
      break;
    case Node::Kind::list:
      out << YAML::Flow << YAML::BeginSeq;
      for (const Node& item : node.items) emit(out, item);
      out << YAML::EndSeq;
      break;
    case Node::Kind::map:
      out << YAML::BeginMap;
      for (const Member& member : node.members) {
        out << YAML::Key << member.key << YAML::Value;
        emit(out, member.value);
      }
      out << YAML::EndMap;
      break;
  }
}

}  // namespace

const Node* Node::find(const std::string& key) const {
  for (const Member& member : members) {
    if (member.key == key) return &member.value;
  }
  return nullptr;
}

Node parse(const std::string& text, const std::string& file, Problems& problems) {
  Builder builder(file, problems);
  Node nothing;
  nothing.file = file;
  if (const auto wrong = first_invalid_utf8(text)) {
    problems.push_back(at_byte(text, *wrong, file,
                               fmt::format("is not UTF-8: byte 0x{:02X}; save the file as UTF-8",
                                           static_cast<unsigned char>(text[*wrong]))));
    return nothing;
  }
  try {
    std::istringstream in(text);
    YAML::Parser parser(in);
    parser.HandleNextDocument(builder);
    Builder rest(file, problems);
    if (parser.HandleNextDocument(rest)) {
      problems.push_back({file, 0, 0, "holds more than one YAML document"});
    }
  } catch (const YAML::Exception& error) {
    problems.push_back({file, error.mark.line + 1, error.mark.column + 1,
                        "YAML: " + error.msg + tab_hint(text, error.mark.line)});
    return nothing;
  } catch (const Error& error) {
    problems.push_back({file, 0, 0, error.what()});
    return nothing;
  }
  Node root = builder.take();
  root.file = file;
  return root;
}

std::string read_file(const std::filesystem::path& path, Problems& problems) {
  std::error_code error;
  std::string wrong;
  if (!std::filesystem::exists(path, error)) {
    wrong = error ? "cannot be read: " + error.message() : "no such file";
  } else if (std::filesystem::is_directory(path, error)) {
    wrong = "is a folder, not a file";
  } else if (!std::filesystem::is_regular_file(path, error)) {
    wrong = "is a pipe or a device, not a file";
  }
  if (!wrong.empty()) {
    problems.push_back({path.string(), 0, 0, wrong});
    return {};
  }
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    problems.push_back(
        {path.string(), 0, 0, fmt::format("cannot be read: {}", std::strerror(errno))});
    return {};
  }
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string to_text(const Node& node) {
  YAML::Emitter out;
  emit(out, node);
  return std::string(out.c_str()) + "\n";
}

nlohmann::json to_json(const Node& node) {
  if (node.is_list()) {
    nlohmann::json list = nlohmann::json::array();
    for (const Node& item : node.items) list.push_back(to_json(item));
    return list;
  }
  if (node.is_map()) {
    nlohmann::json map = nlohmann::json::object();
    for (const Member& member : node.members) map[member.key] = to_json(member.value);
    return map;
  }
  return node.value;
}

void report(Problems& problems, const Node& node, const std::string& message) {
  problems.push_back({node.file, node.line, node.column, message});
}

/// The beginning of a text: a message is no place for a whole file.
std::string shortened(const std::string& text) {
  constexpr size_t kMost = 80;
  size_t end = std::min(text.find('\n'), kMost);
  if (end >= text.size()) return text;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;  // whole letters
  return text.substr(0, end) + "…";
}

std::string describe(const nlohmann::json& value) {
  if (value.is_null()) return "nothing";
  if (value.is_array()) return value.empty() ? "an empty list" : "a list";
  if (value.is_object()) return value.empty() ? "an empty map" : "a map";
  if (value.is_string()) return "'" + shortened(value.get<std::string>()) + "'";
  if (value.is_number_float() && !std::isfinite(value.get<double>())) {
    // JSON has no word for it; YAML's own, without the sign that a NaN may have.
    const auto number = value.get<double>();
    return std::isnan(number) ? ".nan" : number > 0 ? ".inf" : "-.inf";
  }
  return value.dump();
}

std::string describe(const Node& node) {
  return node.is_scalar() && !node.value.is_string() ? shortened(node.text)
                                                     : describe(to_json(node));
}

std::optional<std::string> read_text(const Node& node, const std::string& what,
                                     Problems& problems) {
  if (node.is_scalar() && node.value.is_string()) return node.value.get<std::string>();
  std::string message = fmt::format("'{}' must be text, found {}", what, describe(node));
  if (node.is_scalar()) message += fmt::format(" (put it in quotes: \"{}\")", node.text);
  report(problems, node, message);
  return std::nullopt;
}

std::optional<bool> read_bool(const Node& node, const std::string& what, Problems& problems) {
  if (node.is_scalar() && node.value.is_boolean()) return node.value.get<bool>();
  report(problems, node, fmt::format("'{}' must be true or false, found {}", what, describe(node)));
  return std::nullopt;
}

std::optional<double> read_real(const Node& node, const std::string& what, Problems& problems) {
  if (node.is_scalar() && node.value.is_number()) return node.value.get<double>();
  report(problems, node, fmt::format("'{}' must be a number, found {}", what, describe(node)));
  return std::nullopt;
}

std::optional<int64_t> read_int(const Node& node, const std::string& what, Problems& problems,
                                int64_t least, int64_t most) {
  if (node.is_scalar() && node.value.is_number_integer()) {
    const auto number = node.value.get<int64_t>();
    if (number >= least && number <= most) return number;
  }
  std::string range;
  const bool bounded = most != std::numeric_limits<int64_t>::max();
  if (bounded) {
    range = fmt::format(" from {} to {}", least, most);
  } else if (least != std::numeric_limits<int64_t>::min()) {
    range = fmt::format(" of at least {}", least);
  }
  report(problems, node,
         fmt::format("'{}' must be a whole number{}, found {}", what, range, describe(node)));
  return std::nullopt;
}

std::string hint(const std::string& word, const std::vector<std::string>& valid) {
  constexpr size_t kMost = 20;
  std::string near = did_you_mean(word, valid);
  if (!near.empty() || valid.empty() || valid.size() > kMost) return near;
  return " (valid: " + join(valid) + ")";
}

Fields::Fields(const Node& node, std::string what, Problems& problems)
    : node_(node), what_(std::move(what)), problems_(problems) {
  if (!node.is_map()) {
    report(problems, node,
           fmt::format("{} must be a map of keys, found {}", what_, describe(node)));
  }
}

const Node* Fields::get(const std::string& key) {
  valid_.push_back(key);
  return node_.find(key);
}

void Fields::finish(const std::function<std::string(const std::string&)>& explain) {
  for (const Member& member : node_.members) {
    if (std::find(valid_.begin(), valid_.end(), member.key) != valid_.end()) continue;
    const std::string known = explain ? explain(member.key) : "";
    problems_.push_back({member.value.file, member.line, member.column,
                         fmt::format("unknown key '{}' in {}{}", member.key, what_,
                                     known.empty() ? hint(member.key, valid_) : known)});
  }
}

}  // namespace kvlab::yaml
