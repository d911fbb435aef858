#include "jinja/value.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>

#include "jinja/print.h"
#include "jinja/runtime.h"
#include "jinja/unicode.h"

namespace sftrun::templates::jinja {
namespace {

constexpr size_t kIndexFrom = 8;  ///< entries from which a dictionary is worth an index

void check_size(int depth, size_t num_nodes) {
  if (depth > kMaxValueDepth) fail("values are nested too deeply");
  if (num_nodes > kMaxValueNodes) fail("a value contains too many values");
}

Value make_sequence(std::vector<Value> items, bool is_tuple, Value (*wrap)(SequencePtr)) {
  auto sequence = std::make_shared<Sequence>();
  for (const Value& item : items) {
    sequence->depth = std::max(sequence->depth, item.depth() + 1);
    sequence->num_nodes += item.num_nodes();
  }
  check_size(sequence->depth, sequence->num_nodes);
  sequence->items = std::move(items);
  sequence->is_tuple = is_tuple;
  return wrap(std::move(sequence));
}

}  // namespace

Value Value::undefined(std::string message) {
  Value value;
  value.data_ = std::make_shared<const Undefined>(Undefined{std::move(message)});
  return value;
}
Value Value::boolean(bool b) {
  Value value;
  value.data_ = b;
  return value;
}
Value Value::integer(Int i, OriginId origin) {
  Value value;
  value.data_ = i;
  value.origin_ = origin;
  return value;
}
Value Value::integer_of(std::string_view text, OriginId origin) {
  constexpr size_t kMaxDigits = 36;  // below 2^120, which products must stay below
  const bool negative = text.starts_with('-');
  const std::string_view digits = text.substr(negative ? 1 : 0);
  Value value;
  value.origin_ = origin;
  if (digits.size() > kMaxDigits) {
    value.data_ = std::make_shared<const LongInteger>(LongInteger{std::string(text)});
    return value;
  }
  Int number = 0;
  for (const char digit : digits) number = 10 * number + (digit - '0');
  value.data_ = negative ? -number : number;
  return value;
}
Value Value::number(double d, OriginId origin) {
  Value value;
  value.data_ = d;
  value.origin_ = origin;
  return value;
}
Value Value::string(TaggedText text, bool safe) {
  Value value;
  value.data_ = std::make_shared<const Str>(Str{std::move(text), safe});
  return value;
}
Value Value::string(std::string_view bytes, OriginId origin) {
  return string(TaggedText(std::string(bytes), origin));
}
Value Value::list(std::vector<Value> items) {
  return make_sequence(std::move(items), false, [](SequencePtr p) {
    Value value;
    value.data_ = std::move(p);
    return value;
  });
}
Value Value::tuple(std::vector<Value> items) {
  return make_sequence(std::move(items), true, [](SequencePtr p) {
    Value value;
    value.data_ = std::move(p);
    return value;
  });
}
Value Value::dict(Dict dict) {
  check_size(dict.depth(), dict.num_nodes());
  Value value;
  value.data_ = std::make_shared<const Dict>(std::move(dict));
  return value;
}
Value Value::object(ObjectPtr object) {
  check_size(object->depth(), 1);
  Value value;
  value.data_ = std::move(object);
  return value;
}

Value Value::with_origin(OriginId origin) const {
  Value copy = *this;
  copy.origin_ = origin;
  return copy;
}

double Value::as_double() const {
  if (is_float()) return std::get<double>(data_);
  return is_long() ? std::strtod(long_integer().c_str(), nullptr) : static_cast<double>(integral());
}

int Value::depth() const {
  if (is_sequence()) return sequence().depth;
  if (is_dict()) return dict().depth();
  if (is_object()) return object()->depth();
  return 0;
}

size_t Value::num_nodes() const {
  if (is_sequence()) return sequence().num_nodes;
  return is_dict() ? dict().num_nodes() : 1;
}

bool Value::same_as(const Value& other) const {
  if (data_.index() != other.data_.index()) return false;
  if (is_sequence()) return &sequence() == &other.sequence();
  if (is_dict()) return &dict() == &other.dict();
  if (is_object()) return object() == other.object();
  if (is_undefined()) return &undefined() == &other.undefined();
  return equal(*this, other);
}

// ---- Dict

void Dict::set(Value key, Value value) {
  const size_t hash = hash_of(key);
  depth_ = std::max({depth_, value.depth() + 1, key.depth() + 1});
  num_nodes_ += value.num_nodes() + key.num_nodes();
  if (const auto index = index_of(key, hash)) {
    entries_[*index].second = std::move(value);
    return;
  }
  entries_.emplace_back(std::move(key), std::move(value));
  if (entries_.size() == kIndexFrom) {
    for (uint32_t i = 0; i < entries_.size(); ++i) by_hash_.emplace(hash_of(entries_[i].first), i);
  } else if (entries_.size() > kIndexFrom) {
    by_hash_.emplace(hash, static_cast<uint32_t>(entries_.size() - 1));
  }
}

std::optional<size_t> Dict::index_of(const Value& key, size_t hash) const {
  if (entries_.size() < kIndexFrom) {
    for (size_t i = 0; i < entries_.size(); ++i) {
      if (equal(entries_[i].first, key)) return i;
    }
    return std::nullopt;
  }
  const auto [first, last] = by_hash_.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    if (equal(entries_[it->second].first, key)) return it->second;
  }
  return std::nullopt;
}

const Value* Dict::find(const Value& key) const {
  const auto index = index_of(key, hash_of(key));
  return index ? &entries_[*index].second : nullptr;
}

const Value* Dict::find(std::string_view key) const {
  if (entries_.size() >= kIndexFrom) return find(Value::string(key));
  for (const auto& [name, value] : entries_) {
    if (name.is_string() && name.bytes() == key) return &value;
  }
  return nullptr;
}

// ---- Object

std::string Object::repr(Runtime&) const {
  return "<" + type_name() + " object>";
}
std::optional<Value> Object::attribute(Runtime&, std::string_view) {
  return std::nullopt;
}
std::optional<Value> Object::item(const Value&) {
  return std::nullopt;
}
std::optional<int64_t> Object::length() {
  return std::nullopt;
}
IteratorPtr Object::iterate(const ObjectPtr&) {
  return nullptr;
}
Value Object::call(Runtime&, const Args&) {
  fail("'" + type_name() + "' object is not callable");
}

// ---- Properties of values

std::string type_name(const Value& value) {
  if (value.is_none()) return "NoneType";
  if (value.is_undefined()) return "Undefined";
  if (value.is_bool()) return "bool";
  if (value.is_int()) return "int";
  if (value.is_float()) return "float";
  if (value.is_string()) return value.str().safe ? "Markup" : "str";
  if (value.is_sequence()) return value.sequence().is_tuple ? "tuple" : "list";
  if (value.is_dict()) return "dict";
  return value.object()->type_name();
}

bool truthy(const Value& value) {
  if (value.is_none() || value.is_undefined()) return false;
  if (value.is_float()) return value.as_double() != 0.0;
  if (value.is_long()) return true;
  if (value.is_integral()) return value.integral() != 0;
  if (value.is_string()) return !value.text().empty();
  if (value.is_sequence()) return !value.items().empty();
  if (value.is_dict()) return value.dict().size() != 0;
  return value.object()->truthy();
}

namespace {

/// -1, 0 or 1: the order of integers, exactly.
int order_of_integers(const Value& a, const Value& b) {
  if (!a.is_long() && !b.is_long())
    return a.integral() < b.integral() ? -1 : a.integral() > b.integral() ? 1 : 0;
  const auto text = [](const Value& value) {
    return value.is_long() ? value.long_integer() : print_integer(value.integral());
  };
  const std::string of_a = text(a), of_b = text(b);
  const bool negative = of_a.starts_with('-');
  if (negative != of_b.starts_with('-')) return negative ? -1 : 1;
  const int order =
      of_a.size() != of_b.size() ? (of_a.size() < of_b.size() ? -1 : 1) : of_a.compare(of_b);
  return negative ? -order : order;
}

bool equal_numbers(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) return order_of_integers(a, b) == 0;
  const auto is_exact = [](const Value& value) {  // a double holds it
    constexpr Int kLargest = Int{1} << 53;
    return !value.is_integral() || value.is_long() ||
           (value.integral() <= kLargest && value.integral() >= -kLargest);
  };
  if (is_exact(a) && is_exact(b)) return a.as_double() == b.as_double();
  const double number = a.is_float() ? a.as_double() : b.as_double();
  if (!(std::fabs(number) < 0x1p120)) return false;
  return order_of_integers(Value::integer(static_cast<Int>(number)), a.is_float() ? b : a) == 0;
}

bool equal_dicts(const Dict& a, const Dict& b) {
  if (a.size() != b.size()) return false;
  return std::all_of(a.entries().begin(), a.entries().end(), [&b](const Dict::Entry& entry) {
    const Value* other = b.find(entry.first);
    return other != nullptr && equal(entry.second, *other);
  });
}

}  // namespace

bool equal(const Value& a, const Value& b) {
  if (a.is_string() && b.is_string()) return a.bytes() == b.bytes();
  if (a.is_number() && b.is_number()) return equal_numbers(a, b);
  if (a.is_none() || a.is_undefined()) {
    return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
  }
  if (a.is_sequence() && b.is_sequence()) {
    return a.is_tuple() == b.is_tuple() && (&a.sequence() == &b.sequence() ||
                                            std::equal(a.items().begin(), a.items().end(),
                                                       b.items().begin(), b.items().end(), equal));
  }
  if (a.is_dict() && b.is_dict()) return &a.dict() == &b.dict() || equal_dicts(a.dict(), b.dict());
  if (a.is_object() && b.is_object()) return a.object()->equals(*b.object());
  return false;
}

bool less(const Value& a, const Value& b) {
  if (a.is_string() && b.is_string())
    return a.bytes() < b.bytes();  // UTF-8 keeps the code points' order
  if (a.is_integral() && b.is_integral()) return order_of_integers(a, b) < 0;
  if (a.is_number() && b.is_number()) return a.as_double() < b.as_double();
  if (a.is_sequence() && b.is_sequence() && a.is_tuple() == b.is_tuple()) {
    const size_t common = std::min(a.items().size(), b.items().size());
    for (size_t i = 0; i < common; ++i) {
      if (!equal(a.items()[i], b.items()[i])) return less(a.items()[i], b.items()[i]);
    }
    return a.items().size() < b.items().size();
  }
  for (const Value* side : {&a, &b}) {
    if (side->is_undefined()) fail(side->undefined().message);
  }
  fail("'<' not supported between instances of '" + type_name(a) + "' and '" + type_name(b) + "'");
}

size_t hash_of(const Value& value) {
  if (value.is_string()) return std::hash<std::string>{}(value.bytes());
  if (value.is_number()) return std::hash<double>{}(value.as_double());
  if (value.is_tuple()) {
    size_t hash = 0x9e3779b97f4a7c15ULL;
    for (const Value& item : value.items()) hash = hash * 31 + hash_of(item);
    return hash;
  }
  if (value.is_list() || value.is_dict()) fail("unhashable type: '" + type_name(value) + "'");
  if (value.is_object()) return std::hash<const void*>{}(value.object().get());
  return value.is_none() ? 1 : 2;
}

// ---- Iteration

namespace {

class SequenceIterator : public Iterator {
 public:
  explicit SequenceIterator(Value sequence) : sequence_(std::move(sequence)) {}
  bool next(Value& out) override {
    if (at_ >= sequence_.items().size()) return false;
    out = sequence_.items()[at_++];
    return true;
  }

 private:
  Value sequence_;
  size_t at_ = 0;
};

class KeyIterator : public Iterator {
 public:
  explicit KeyIterator(Value dict) : dict_(std::move(dict)) {}
  bool next(Value& out) override {
    if (at_ >= dict_.dict().size()) return false;
    out = dict_.dict().entries()[at_++].first;
    return true;
  }

 private:
  Value dict_;
  size_t at_ = 0;
};

class CharacterIterator : public Iterator {
 public:
  explicit CharacterIterator(Value text) : text_(std::move(text)) {}
  bool next(Value& out) override {
    if (at_ >= text_.text().size()) return false;
    const size_t end = at_ + unicode::sequence_length(text_.bytes(), at_);
    out = Value::string(text_.text().slice(at_, end));
    at_ = end;
    return true;
  }

 private:
  Value text_;
  size_t at_ = 0;
};

class EmptyIterator : public Iterator {
 public:
  bool next(Value&) override { return false; }
};

}  // namespace

IteratorPtr iterate(const Value& value) {
  if (value.is_sequence()) return std::make_unique<SequenceIterator>(value);
  if (value.is_dict()) return std::make_unique<KeyIterator>(value);
  if (value.is_string()) return std::make_unique<CharacterIterator>(value);
  if (value.is_undefined()) return std::make_unique<EmptyIterator>();
  if (value.is_object()) return value.object()->iterate(value.object());
  return nullptr;
}

IteratorPtr iterate_or_fail(const Value& value) {
  IteratorPtr iterator = iterate(value);
  if (!iterator) fail("'" + type_name(value) + "' object is not iterable");
  return iterator;
}

std::vector<Value> to_vector(Runtime& runtime, const Value& value) {
  if (value.is_sequence()) {
    runtime.charge(value.items().size() * sizeof(Value));
    return value.items();
  }
  std::vector<Value> items;
  const IteratorPtr iterator = iterate_or_fail(value);
  for (Value item; iterator->next(item);) {
    runtime.charge(sizeof(Value));
    items.push_back(std::move(item));
  }
  return items;
}

int64_t length_of(const Value& value) {
  if (value.is_string()) return static_cast<int64_t>(unicode::length(value.bytes()));
  if (value.is_sequence()) return static_cast<int64_t>(value.items().size());
  if (value.is_dict()) return static_cast<int64_t>(value.dict().size());
  if (value.is_undefined()) return 0;
  if (value.is_object()) {
    if (const auto length = value.object()->length()) return *length;
  }
  fail("object of type '" + type_name(value) + "' has no len()");
}

}  // namespace sftrun::templates::jinja
