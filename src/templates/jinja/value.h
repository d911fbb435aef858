#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "jinja/error.h"
#include "jinja/tagged_text.h"

/// The values of a template: Python's values as a sandboxed Jinja template sees them. Containers
/// never change after they are made (the sandbox forbids it), so they are shared and not copied.
namespace sftrun::templates::jinja {

class Value;
class Runtime;
class Object;

/// Wide enough for integers of 64 bits and for products of them. Longer ones are decimal text.
__extension__ typedef __int128 Int;

inline constexpr int kMaxValueDepth = 400;                 ///< limits recursion over values
inline constexpr size_t kMaxValueNodes = size_t{8} << 20;  ///< shared parts count each time

struct None {};
/// An integer of more digits than Int holds: "-123…". It is printed, compared and passed on; other
/// operations fail.
struct LongInteger {
  std::string text;
};
struct Undefined {
  std::string message;  ///< jinja2's message for an operation on it
};
struct Str {
  TaggedText text;
  bool safe = false;  ///< markupsafe.Markup: adding to it escapes HTML
};
struct Sequence {
  std::vector<Value> items;
  bool is_tuple = false;
  int depth = 1;
  size_t num_nodes = 1;
};
class Dict;

using LongIntegerPtr = std::shared_ptr<const LongInteger>;
using UndefinedPtr = std::shared_ptr<const Undefined>;
using StrPtr = std::shared_ptr<const Str>;
using SequencePtr = std::shared_ptr<const Sequence>;
using DictPtr = std::shared_ptr<const Dict>;
using ObjectPtr = std::shared_ptr<Object>;

class Value {
 public:
  Value() = default;  ///< None
  static Value undefined(std::string message);
  static Value boolean(bool value);
  static Value integer(Int value, OriginId origin = kFromTemplate);
  /// @param text digits, maybe after a minus sign
  static Value integer_of(std::string_view text, OriginId origin = kFromTemplate);
  static Value number(double value, OriginId origin = kFromTemplate);
  static Value string(TaggedText text, bool safe = false);
  static Value string(std::string_view bytes, OriginId origin = kFromTemplate);
  /// @throws TemplateError beyond kMaxValueDepth or kMaxValueNodes (the same for all containers).
  static Value list(std::vector<Value> items);
  static Value tuple(std::vector<Value> items);
  static Value dict(Dict dict);
  static Value object(ObjectPtr object);

  bool is_undefined() const { return std::holds_alternative<UndefinedPtr>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_int() const { return std::holds_alternative<Int>(data_) || is_long(); }
  bool is_long() const { return std::holds_alternative<LongIntegerPtr>(data_); }
  bool is_float() const { return std::holds_alternative<double>(data_); }
  bool is_number() const { return is_bool() || is_int() || is_float(); }
  bool is_integral() const { return is_bool() || is_int(); }  ///< Python's isinstance(x, int)
  bool is_string() const { return std::holds_alternative<StrPtr>(data_); }
  bool is_sequence() const { return std::holds_alternative<SequencePtr>(data_); }
  bool is_list() const { return is_sequence() && !sequence().is_tuple; }
  bool is_tuple() const { return is_sequence() && sequence().is_tuple; }
  bool is_dict() const { return std::holds_alternative<DictPtr>(data_); }
  bool is_object() const { return std::holds_alternative<ObjectPtr>(data_); }

  const Undefined& undefined() const { return *std::get<UndefinedPtr>(data_); }
  bool boolean() const { return std::get<bool>(data_); }
  /// @throws TemplateError for a long integer
  Int integral() const {
    if (is_long()) fail("integer is too large");
    return is_bool() ? Int{boolean()} : std::get<Int>(data_);
  }
  const std::string& long_integer() const { return std::get<LongIntegerPtr>(data_)->text; }
  double as_double() const;
  const Str& str() const { return *std::get<StrPtr>(data_); }
  const TaggedText& text() const { return str().text; }
  const std::string& bytes() const { return str().text.bytes(); }
  const Sequence& sequence() const { return *std::get<SequencePtr>(data_); }
  const std::vector<Value>& items() const { return sequence().items; }
  const Dict& dict() const { return *std::get<DictPtr>(data_); }
  const ObjectPtr& object() const { return std::get<ObjectPtr>(data_); }
  /// The object as a T, or null.
  template <typename T>
  T* object_as() const {
    return is_object() ? dynamic_cast<T*>(object().get()) : nullptr;
  }

  OriginId origin() const {
    return origin_;
  }  ///< origin of printed numbers and of brackets of containers
  Value with_origin(OriginId origin) const;
  int depth() const;         ///< 0 without other values inside
  size_t num_nodes() const;  ///< number of values, including itself
  /// Python's `is`, where strings and numbers count as the same when equal.
  bool same_as(const Value& other) const;

 private:
  std::variant<None, UndefinedPtr, bool, Int, double, StrPtr, SequencePtr, DictPtr, ObjectPtr,
               LongIntegerPtr>
      data_;
  OriginId origin_ = kFromTemplate;
};

/// Insertion-ordered, as Python's.
class Dict {
 public:
  using Entry = std::pair<Value, Value>;
  /// @throws TemplateError for an unhashable key.
  void set(Value key, Value value);
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  const std::vector<Entry>& entries() const { return entries_; }
  size_t size() const { return entries_.size(); }
  int depth() const { return depth_; }
  size_t num_nodes() const { return num_nodes_; }

 private:
  std::optional<size_t> index_of(const Value& key, size_t hash) const;

  std::vector<Entry> entries_;
  std::unordered_multimap<size_t, uint32_t> by_hash_;
  int depth_ = 1;
  size_t num_nodes_ = 1;
};

struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

class Iterator {
 public:
  virtual ~Iterator() = default;
  virtual bool next(Value& out) = 0;
};
using IteratorPtr = std::unique_ptr<Iterator>;

/// Everything that is not plain data: ranges, views, generators, namespaces, macros, functions,
/// loop.
class Object : public std::enable_shared_from_this<Object> {
 public:
  virtual ~Object() = default;
  virtual std::string type_name() const = 0;
  virtual std::string repr(Runtime& runtime) const;
  virtual std::optional<Value> attribute(Runtime& runtime, std::string_view name);
  virtual std::optional<Value> item(const Value& key);
  virtual std::optional<int64_t> length();
  virtual bool has_items() const { return false; }     ///< Python's hasattr(x, "__getitem__")
  virtual IteratorPtr iterate(const ObjectPtr& self);  ///< null: not iterable
  virtual bool callable() const { return false; }
  virtual Value call(Runtime& runtime, const Args& args);
  virtual bool truthy() { return length().value_or(1) != 0; }
  virtual bool equals(const Object& other) const { return this == &other; }
  virtual int depth() const { return 1; }
  virtual void release() {}  ///< releases other values, to break cycles at the end of the render
};

std::string type_name(const Value& value);  ///< Python's type(x).__name__
bool truthy(const Value& value);
bool equal(const Value& a, const Value& b);
/// Python's a < b. @throws TemplateError where Python raises TypeError.
bool less(const Value& a, const Value& b);
size_t hash_of(const Value& value);  ///< @throws TemplateError for an unhashable value

/// Null where Python's iter() raises TypeError.
IteratorPtr iterate(const Value& value);
/// @throws TemplateError "'int' object is not iterable"
IteratorPtr iterate_or_fail(const Value& value);
std::vector<Value> to_vector(Runtime& runtime, const Value& value);
/// Python's len(). @throws TemplateError
int64_t length_of(const Value& value);

}  // namespace sftrun::templates::jinja
