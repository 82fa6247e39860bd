#include "calibrate/unpickle.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>

#include "base/error.h"
#include "base/utf8.h"

namespace kvlab::calibrate::torch_file {
namespace {

// A rotation file has a few thousand values, in dicts of dicts of tensors. More, or deeper, is made
// to exhaust memory or the stack.
constexpr int64_t kMostValues = 1 << 18;
constexpr int64_t kMostDepth = 32;
constexpr size_t kMostDimensions = 8;

constexpr const char* kRebuild = "torch._utils._rebuild_tensor_v2";
constexpr const char* kOrderedDict = "collections.OrderedDict";

/// What the machine's stack holds beside values.
struct Cell {
  enum class Kind { value, mark, global, storage };
  Kind kind = Kind::value;
  std::shared_ptr<Value> value;  // shared: a memo may name a container before it is filled
  std::string name;              // of a global
  at::ScalarType type = at::kFloat;
  const std::string* bytes = nullptr;  // of a storage
};

/// Reads one pickle. `entries` are those of the archive below `folder`.
class Machine {
 public:
  Machine(std::string file, const std::map<std::string, std::string>& entries, std::string folder)
      : file_(std::move(file)),
        entries_(entries),
        folder_(std::move(folder)),
        code_(entries.at(folder_ + "data.pkl")) {}

  Value run() {
    for (int64_t steps = 0;; ++steps) {
      const auto op = static_cast<uint8_t>(bytes(1)[0]);
      if (op == '.') break;
      if (steps > kMostValues) refuse("more values than a rotation file has");
      step(op);
    }
    if (stack_.size() != 1 || stack_[0].kind != Cell::Kind::value) fail("its pickle is damaged");
    return *stack_[0].value;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(fmt::format("{}: {}", file_, what));
  }
  [[noreturn]] void refuse(const std::string& what) const {
    fail(
        fmt::format("its pickle asks for {}, which is refused: rotation files hold dicts, lists, "
                    "numbers, texts and tensors. Nothing was run",
                    what));
  }

  std::string_view bytes(uint64_t count) {
    if (count > code_.size() - at_) fail("its pickle ends too early");
    const std::string_view part = std::string_view(code_).substr(at_, count);
    at_ += count;
    return part;
  }
  uint64_t number(size_t size) {
    uint64_t value = 0;
    const std::string_view part = bytes(size);
    for (size_t i = size; i-- > 0;) value = value << 8 | static_cast<uint8_t>(part[i]);
    return value;
  }
  std::string_view line() {
    const size_t end = code_.find('\n', at_);
    if (end == std::string::npos) fail("its pickle ends too early");
    const std::string_view part = bytes(end - at_);
    bytes(1);
    return part;
  }

  void push(Value value) {
    stack_.push_back({.kind = Cell::Kind::value,
                      .value = std::make_shared<Value>(std::move(value)),
                      .name = {}});
  }
  Cell pop() {
    if (stack_.empty()) fail("its pickle is damaged");
    Cell cell = std::move(stack_.back());
    stack_.pop_back();
    return cell;
  }
  std::string pop_text() {
    const Cell cell = pop();
    if (cell.kind != Cell::Kind::value || cell.value->kind != Value::Kind::text) {
      fail("its pickle is damaged");
    }
    return cell.value->text;
  }
  Value& top() {
    if (stack_.empty() || stack_.back().kind != Cell::Kind::value) fail("its pickle is damaged");
    return *stack_.back().value;
  }

  /// The cells above the last mark, which goes too.
  std::vector<Cell> to_mark() {
    size_t mark = stack_.size();
    while (mark > 0 && stack_[mark - 1].kind != Cell::Kind::mark) --mark;
    if (mark == 0) fail("its pickle is damaged");
    std::vector<Cell> cells(stack_.begin() + static_cast<std::ptrdiff_t>(mark), stack_.end());
    stack_.resize(mark - 1);
    return cells;
  }

  /// A copy of a cell's value to be put into `container`.
  Value taken(const Cell& cell, Value& container) {
    if (cell.kind == Cell::Kind::global) refuse("'" + cell.name + "' as a value");
    if (cell.kind != Cell::Kind::value) fail("its pickle is damaged");
    copied_ += cell.value->nodes;
    if (copied_ > kMostValues) refuse("more values than a rotation file has");
    container.nodes += cell.value->nodes;
    container.depth = std::max(container.depth, cell.value->depth + 1);
    if (container.depth > kMostDepth) refuse("values nested deeper than a rotation file's");
    return *cell.value;
  }

  void push_tuple(std::vector<Cell> cells) {
    // A tuple of a storage's or a tensor's description is consumed at once by what follows it.
    tuples_.push_back(std::move(cells));
    Value tuple;
    tuple.kind = Value::Kind::list;
    for (const Cell& cell : tuples_.back()) {
      tuple.items.push_back(cell.kind == Cell::Kind::value ? taken(cell, tuple) : Value{});
    }
    push(std::move(tuple));
    stack_.back().name = std::to_string(tuples_.size() - 1);
  }
  const std::vector<Cell>& cells_of(const Cell& tuple) const {
    if (tuple.name.empty() || tuple.value->kind != Value::Kind::list) fail("its pickle is damaged");
    return tuples_[std::stoul(tuple.name)];
  }

  void take_top(size_t count) {
    std::vector<Cell> cells(count);
    for (size_t i = count; i-- > 0;) cells[i] = pop();
    push_tuple(std::move(cells));
  }

  void set_items(const std::vector<Cell>& cells) {
    Value& dict = top();
    if (dict.kind != Value::Kind::dict || cells.size() % 2 != 0) fail("its pickle is damaged");
    for (size_t i = 0; i < cells.size(); i += 2) {
      Value key = taken(cells[i], dict);
      Value member = taken(cells[i + 1], dict);
      dict.members.push_back({std::move(key), std::move(member)});
    }
  }

  void append_items(const std::vector<Cell>& cells) {
    Value& list = top();
    if (list.kind != Value::Kind::list) fail("its pickle is damaged");
    for (const Cell& cell : cells) {
      Value item = taken(cell, list);
      list.items.push_back(std::move(item));
    }
  }

  void push_global(const std::string& module, const std::string& name) {
    const std::string whole = module + "." + name;
    bool known = whole == kRebuild || whole == kOrderedDict;
    for (const StorageType& type : kStorageTypes)
      known |= whole == std::string("torch.") + type.name;
    if (!known) refuse("'" + readable(whole) + "'");
    stack_.push_back({.kind = Cell::Kind::global, .value = {}, .name = whole});
  }

  /// ('storage', type, key, device, number of elements).
  void load_storage() {
    const Cell tuple = pop();
    if (tuple.kind != Cell::Kind::value) fail("its pickle is damaged");
    const std::vector<Cell>& parts = cells_of(tuple);
    if (parts.size() != 5 || parts[0].kind != Cell::Kind::value ||
        parts[0].value->text != "storage" || parts[1].kind != Cell::Kind::global ||
        parts[2].kind != Cell::Kind::value) {
      refuse("something outside the archive that is no tensor's storage");
    }
    const auto entry = entries_.find(folder_ + "data/" + parts[2].value->text);
    if (entry == entries_.end()) {
      fail(fmt::format("has no entry data/{}, which its pickle names",
                       readable(parts[2].value->text)));
    }
    for (const StorageType& type : kStorageTypes) {
      if (parts[1].name != std::string("torch.") + type.name) continue;
      stack_.push_back({.kind = Cell::Kind::storage,
                        .value = {},
                        .name = {},
                        .type = type.type,
                        .bytes = &entry->second});
      return;
    }
    refuse("a storage of type '" + parts[1].name + "'");
  }

  std::vector<int64_t> whole_numbers(const Cell& cell) const {
    std::vector<int64_t> numbers;
    if (cell.kind != Cell::Kind::value) fail("its pickle is damaged");
    for (const Value& item : cell.value->items) {
      if (item.kind != Value::Kind::integer || item.integer < 0) fail("a tensor has a wrong shape");
      numbers.push_back(item.integer);
    }
    return numbers;
  }

  Value tensor_of(const std::vector<Cell>& parts) const {
    if (parts.size() < 4 || parts[0].kind != Cell::Kind::storage ||
        parts[1].kind != Cell::Kind::value) {
      fail("its pickle is damaged");
    }
    const std::vector<int64_t> sizes = whole_numbers(parts[2]);
    const std::vector<int64_t> strides = whole_numbers(parts[3]);
    const Value& offset = *parts[1].value;
    if (sizes.size() != strides.size() || sizes.size() > kMostDimensions ||
        offset.kind != Value::Kind::integer || offset.integer < 0) {
      fail("a tensor has a wrong shape");
    }
    const auto item = static_cast<int64_t>(c10::elementSize(parts[0].type));
    const auto held = static_cast<int64_t>(parts[0].bytes->size()) / item;
    // Index of the last element, and how many there are: strides of 0 could make a few bytes a
    // tensor of any size. A number that no storage can have stops them before they overflow.
    const bool empty = std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
    if (empty) {
      // Its shape is for messages; one whose other sizes are beyond any tensor has none.
      constexpr int64_t kMost = int64_t{1} << 16;
      const bool small =
          std::all_of(sizes.begin(), sizes.end(), [](int64_t n) { return n < kMost; });
      const bool plain = small && sizes.size() <= 3;
      return Value::of(at::empty(plain ? sizes : std::vector<int64_t>{0}, parts[0].type));
    }
    int64_t last = offset.integer, count = 1;
    if (last >= held) fail("a tensor is larger than its storage");
    for (size_t i = 0; i < sizes.size(); ++i) {
      const bool fits = sizes[i] <= held && strides[i] <= held;
      if (!fits) fail("a tensor is larger than its storage");
      last += (sizes[i] - 1) * strides[i];
      count *= sizes[i];
      if (last >= held || count > held) fail("a tensor is larger than its storage");
    }
    at::Tensor storage = at::empty({held}, parts[0].type);
    std::memcpy(storage.mutable_data_ptr(), parts[0].bytes->data(),
                static_cast<size_t>(held * item));
    return Value::of(storage.as_strided(sizes, strides, offset.integer).clone());
  }

  void reduce() {
    const Cell arguments = pop();
    const Cell callable = pop();
    if (callable.kind != Cell::Kind::global) fail("its pickle is damaged");
    if (arguments.kind != Cell::Kind::value) fail("its pickle is damaged");
    if (callable.name == kRebuild) {
      push(tensor_of(cells_of(arguments)));
    } else if (callable.name == kOrderedDict && arguments.value->items.empty()) {
      push(Value::dict({}));
    } else {
      refuse("a call of '" + callable.name + "'");
    }
  }

  void remember(uint64_t index) {
    if (stack_.empty()) fail("its pickle is damaged");
    memo_[index] = stack_.back();
  }
  void recall(uint64_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end()) fail("its pickle is damaged");
    stack_.push_back(found->second);
  }

  void push_text(uint64_t size) {
    const std::string_view text = bytes(size);
    if (first_invalid_utf8(text)) fail("its pickle has a text that is no UTF-8");
    push(Value::of(std::string(text)));
  }
  void push_boolean(bool value) {
    Value result;
    result.kind = Value::Kind::boolean;
    result.boolean = value;
    push(std::move(result));
  }
  void push_real() {
    uint64_t bits = 0;  // big-endian, unlike all else
    for (const char byte : bytes(8)) bits = bits << 8 | static_cast<uint8_t>(byte);
    Value result;
    result.kind = Value::Kind::real;
    result.real = std::bit_cast<double>(bits);
    push(std::move(result));
  }
  void push_long() {
    const uint64_t size = number(1);
    if (size > 8) refuse("a whole number of more than 64 bits");
    uint64_t value = number(size);
    const bool negative = size > 0 && size < 8 && (value >> (8 * size - 1) & 1) != 0;
    if (negative) value |= ~uint64_t{0} << 8 * size;
    push(Value::of(static_cast<int64_t>(value)));
  }
  void push_list() {
    Value list;
    list.kind = Value::Kind::list;
    push(std::move(list));
  }

  void step(uint8_t op) {
    switch (op) {
      case 0x80:  // PROTO
        if (const uint64_t protocol = number(1); protocol > 5) {
          fail(fmt::format("has a pickle of protocol {}, known are 0 to 5", protocol));
        }
        return;
      case 0x95:  // FRAME
        bytes(8);
        return;
      case '(':
        stack_.push_back({.kind = Cell::Kind::mark, .value = {}, .name = {}});
        return;
      case '}':
        return push(Value::dict({}));
      case ']':
        return push_list();
      case ')':
        return push_tuple({});
      case 't':
        return push_tuple(to_mark());
      case 0x85:
      case 0x86:
      case 0x87:  // TUPLE1 to TUPLE3
        return take_top(op - 0x84u);
      case 's': {
        std::vector<Cell> cells(2);
        cells[1] = pop();
        cells[0] = pop();
        return set_items(cells);
      }
      case 'u':
        return set_items(to_mark());
      case 'a':
        return append_items({pop()});
      case 'e':
        return append_items(to_mark());
      case 'X':  // BINUNICODE
        return push_text(number(4));
      case 0x8c:  // SHORT_BINUNICODE
        return push_text(number(1));
      case 'K':
        return push(Value::of(static_cast<int64_t>(number(1))));
      case 'M':
        return push(Value::of(static_cast<int64_t>(number(2))));
      case 'J':
        return push(Value::of(static_cast<int64_t>(static_cast<int32_t>(number(4)))));
      case 0x8a:  // LONG1
        return push_long();
      case 'G':
        return push_real();
      case 'N':
        return push(Value{});
      case 0x88:
      case 0x89:  // NEWTRUE, NEWFALSE
        return push_boolean(op == 0x88);
      case 'q':
        return remember(number(1));
      case 'r':
        return remember(number(4));
      case 0x94:  // MEMOIZE
        return remember(memo_.size());
      case 'h':
        return recall(number(1));
      case 'j':
        return recall(number(4));
      case 'c': {
        const std::string module(line());
        return push_global(module, std::string(line()));
      }
      case 0x93: {  // STACK_GLOBAL
        const std::string name = pop_text();
        return push_global(pop_text(), name);
      }
      case 'Q':
        return load_storage();
      case 'R':
        return reduce();
      default:
        refuse(fmt::format("the operation 0x{:02x}", op));
    }
  }

  std::string file_;
  const std::map<std::string, std::string>& entries_;
  std::string folder_;
  const std::string& code_;
  size_t at_ = 0;
  int64_t copied_ = 0;  // values put into containers, with all within them
  std::vector<Cell> stack_;
  std::map<uint64_t, Cell> memo_;
  std::vector<std::vector<Cell>> tuples_;
};

}  // namespace

Value unpickle(const std::string& file, const std::map<std::string, std::string>& entries,
               const std::string& folder) {
  return Machine(file, entries, folder).run();
}

}  // namespace kvlab::calibrate::torch_file
