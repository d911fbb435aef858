#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "jinja/runtime.h"
#include "jinja/value.h"

namespace sftrun::templates::jinja {

/// Python's range(): lazy, indexable, printable.
class Range : public Object {
 public:
  Range(Int start, Int stop, Int step) : start_(start), stop_(stop), step_(step) {}
  std::string type_name() const override { return "range"; }
  std::string repr(Runtime& runtime) const override;
  std::optional<Value> item(const Value& key) override;
  std::optional<int64_t> length() override { return count(); }
  bool has_items() const override { return true; }
  IteratorPtr iterate(const ObjectPtr& self) override;
  bool equals(const Object& other) const override;
  int64_t count() const;
  Int at(int64_t index) const { return start_ + step_ * index; }
  Int step() const { return step_; }

 private:
  Int start_, stop_, step_;
};

/// dict.keys(), dict.values() and dict.items().
class DictView : public Object {
 public:
  enum class Part : uint8_t { kKeys, kValues, kItems };
  DictView(Value dict, Part part) : dict_(std::move(dict)), part_(part) {}
  std::string type_name() const override;
  std::string repr(Runtime& runtime) const override;
  std::optional<int64_t> length() override { return static_cast<int64_t>(dict_.dict().size()); }
  IteratorPtr iterate(const ObjectPtr& self) override;
  int depth() const override { return dict_.depth() + 1; }
  Value element(size_t index) const;
  const Dict& dict() const { return dict_.dict(); }

 private:
  Value dict_;
  Part part_;
};

/// An iterator that can be used once: the result of map, select, reverse and similar filters.
class Generator : public Object {
 public:
  Generator(std::string type, IteratorPtr items, int depth)
      : type_(std::move(type)), items_(std::move(items)), depth_(depth) {}
  std::string type_name() const override { return type_; }
  std::string repr(Runtime& runtime) const override;
  IteratorPtr iterate(const ObjectPtr& self) override;
  int depth() const override { return depth_; }
  Iterator& items() { return *items_; }

 private:
  std::string type_;
  IteratorPtr items_;
  int depth_;
};
/// A generator over `source` that yields the result of `step` for its items; `step` returns false
/// to end.
/// @param captured_depth depth of the deepest value that `step` captures
Value make_generator(std::string type, const Value& source, int captured_depth,
                     std::function<bool(Iterator& source, Value& out)> step);

/// namespace(): attributes that may be assigned, from inner scopes too.
class Namespace : public Object {
 public:
  std::string type_name() const override { return "TemplateNamespace"; }
  std::string repr(Runtime& runtime) const override;
  std::optional<Value> attribute(Runtime& runtime, std::string_view name) override;
  void set(const std::string& name,
           Value value);  ///< @throws TemplateError for names that begin with _
  void release() override { attributes_.clear(); }
  int depth() const override { return depth_; }

 private:
  std::vector<std::pair<std::string, Value>> attributes_;
  int depth_ = 1;
};

/// A built-in function.
class Function : public Object {
 public:
  using Body = std::function<Value(Runtime&, const Args&)>;
  Function(std::string name, Body body) : name_(std::move(name)), body_(std::move(body)) {}
  std::string type_name() const override { return "function"; }
  std::string repr(Runtime& runtime) const override {
    (void)runtime;
    return "<function " + name_ + ">";
  }
  bool callable() const override { return true; }
  Value call(Runtime& runtime, const Args& args) override { return body_(runtime, args); }

 private:
  std::string name_;
  Body body_;
};

/// A method of a built-in type with its object.
class BoundMethod : public Object {
 public:
  using Body = Value (*)(Runtime&, const Value& self, const Args&);
  BoundMethod(Value self, std::string name, Body body)
      : self_(std::move(self)), name_(std::move(name)), body_(body) {}
  std::string type_name() const override { return "builtin_function_or_method"; }
  std::string repr(Runtime& runtime) const override;
  bool callable() const override { return true; }
  Value call(Runtime& runtime, const Args& args) override { return body_(runtime, self_, args); }
  int depth() const override { return self_.depth() + 1; }

 private:
  Value self_;
  std::string name_;
  Body body_;
};

/// The variable `loop` of a for statement.
class LoopContext : public Object {
 public:
  using Recurse = std::function<Value(const Value& items, int depth0)>;
  LoopContext(Value items, IteratorPtr iterator, Recurse recurse, int depth0);

  bool advance(Value& item);  ///< the next item, or false
  void finish();              ///< end of the loop: releases the value of `changed`
  std::string type_name() const override { return "LoopContext"; }
  std::string repr(Runtime& runtime) const override;
  std::optional<Value> attribute(Runtime& runtime, std::string_view name) override;
  std::optional<int64_t> length() override { return total(); }
  IteratorPtr iterate(const ObjectPtr& self) override;  ///< the items left, each with the loop
  bool callable() const override { return true; }
  Value call(Runtime& runtime, const Args& args) override;
  bool truthy() override { return total() != 0; }
  int depth() const override { return items_.depth() + 2; }

 private:
  int64_t total() const;
  bool peek() const;
  Value cycle(const Args& args) const;
  bool changed(const Args& args);

  Value items_;
  mutable IteratorPtr iterator_;
  Recurse recurse_;
  int depth0_;
  int64_t index0_ = -1;
  mutable std::optional<int64_t> length_;
  mutable std::optional<Value> after_;
  Value before_, now_;
  std::optional<Value> last_changed_;
  bool finished_ = false;
};

}  // namespace sftrun::templates::jinja
