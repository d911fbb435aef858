#include "jinja/objects.h"

#include <fmt/format.h>

#include <algorithm>

#include "jinja/print.h"

namespace sftrun::templates::jinja {
namespace {

/// Iterates by index over an object that it keeps alive.
class IndexedIterator : public Iterator {
 public:
  IndexedIterator(ObjectPtr owner, size_t count, std::function<Value(size_t)> element)
      : owner_(std::move(owner)), count_(count), element_(std::move(element)) {}
  bool next(Value& out) override {
    if (at_ >= count_) return false;
    out = element_(at_++);
    return true;
  }

 private:
  ObjectPtr owner_;
  size_t count_, at_ = 0;
  std::function<Value(size_t)> element_;
};

/// Reads from a generator that it keeps alive.
class SharedIterator : public Iterator {
 public:
  explicit SharedIterator(ObjectPtr owner) : owner_(std::move(owner)) {}
  bool next(Value& out) override { return static_cast<Generator&>(*owner_).items().next(out); }

 private:
  ObjectPtr owner_;
};

class StepIterator : public Iterator {
 public:
  StepIterator(IteratorPtr source, std::function<bool(Iterator&, Value&)> step)
      : source_(std::move(source)), step_(std::move(step)) {}
  bool next(Value& out) override { return step_(*source_, out); }

 private:
  IteratorPtr source_;
  std::function<bool(Iterator&, Value&)> step_;
};

}  // namespace

// ---- Range

int64_t Range::count() const {
  const Int span = step_ > 0 ? stop_ - start_ : start_ - stop_;
  if (span <= 0) return 0;
  const Int size = step_ > 0 ? step_ : -step_;
  return static_cast<int64_t>((span + size - 1) / size);
}

std::string Range::repr(Runtime&) const {
  std::string text = "range(" + print_integer(start_) + ", " + print_integer(stop_);
  if (step_ != 1) text += ", " + print_integer(step_);
  return text + ")";
}

std::optional<Value> Range::item(const Value& key) {
  if (!key.is_integral()) return std::nullopt;
  const Int index = key.integral() < 0 ? key.integral() + count() : key.integral();
  if (index < 0 || index >= count()) return std::nullopt;
  return Value::integer(at(static_cast<int64_t>(index)));
}

IteratorPtr Range::iterate(const ObjectPtr& self) {
  return std::make_unique<IndexedIterator>(self, static_cast<size_t>(count()), [this](size_t i) {
    return Value::integer(at(static_cast<int64_t>(i)));
  });
}

bool Range::equals(const Object& other) const {
  const auto* range = dynamic_cast<const Range*>(&other);
  if (range == nullptr || range->count() != count()) return false;
  return count() == 0 || (range->start_ == start_ && (count() == 1 || range->step_ == step_));
}

// ---- DictView

std::string DictView::type_name() const {
  return part_ == Part::kKeys ? "dict_keys" : part_ == Part::kValues ? "dict_values" : "dict_items";
}

Value DictView::element(size_t index) const {
  const auto& [key, value] = dict_.dict().entries()[index];
  if (part_ == Part::kKeys) return key;
  if (part_ == Part::kValues) return value;
  return Value::tuple({key, value});
}

std::string DictView::repr(Runtime& runtime) const {
  std::vector<Value> elements;
  for (size_t i = 0; i < dict_.dict().size(); ++i) elements.push_back(element(i));
  return type_name() + "(" + to_repr(runtime, Value::list(std::move(elements))).bytes() + ")";
}

IteratorPtr DictView::iterate(const ObjectPtr& self) {
  return std::make_unique<IndexedIterator>(self, dict_.dict().size(),
                                           [this](size_t i) { return element(i); });
}

// ---- Generator

std::string Generator::repr(Runtime&) const {
  return fmt::format("<{} object at 0x0>", type_);
}
IteratorPtr Generator::iterate(const ObjectPtr& self) {
  return std::make_unique<SharedIterator>(self);
}

Value make_generator(std::string type, const Value& source, int captured_depth,
                     std::function<bool(Iterator&, Value&)> step) {
  auto items = std::make_unique<StepIterator>(iterate_or_fail(source), std::move(step));
  const int depth = std::max(source.depth(), captured_depth) + 2;
  return Value::object(std::make_shared<Generator>(std::move(type), std::move(items), depth));
}

// ---- Namespace

std::string Namespace::repr(Runtime& runtime) const {
  Dict dict;
  for (const auto& [name, value] : attributes_) dict.set(Value::string(name), value);
  return "<Namespace " + to_repr(runtime, Value::dict(std::move(dict))).bytes() + ">";
}

std::optional<Value> Namespace::attribute(Runtime&, std::string_view name) {
  for (const auto& [known, value] : attributes_) {
    if (known == name) return value;
  }
  return std::nullopt;
}

void Namespace::set(const std::string& name, Value value) {
  if (name.starts_with('_')) {
    fail(fmt::format(
        "Chat templates cannot store underscore-prefixed attributes on a namespace, but got '{}'",
        name));
  }
  depth_ = std::max(depth_, value.depth() + 1);
  if (depth_ > kMaxValueDepth) fail("values are nested too deeply");
  const auto known =
      std::find_if(attributes_.begin(), attributes_.end(),
                   [&name](const auto& attribute) { return attribute.first == name; });
  if (known != attributes_.end()) {
    known->second = std::move(value);
  } else {
    attributes_.emplace_back(name, std::move(value));
  }
}

std::string BoundMethod::repr(Runtime&) const {
  return fmt::format("<built-in method {} of {} object at 0x0>", name_, jinja::type_name(self_));
}

// ---- LoopContext

LoopContext::LoopContext(Value items, IteratorPtr iterator, Recurse recurse, int depth0)
    : items_(std::move(items)),
      iterator_(std::move(iterator)),
      recurse_(std::move(recurse)),
      depth0_(depth0) {}

bool LoopContext::peek() const {
  if (after_) return true;
  Value next;
  if (!iterator_->next(next)) return false;
  after_ = std::move(next);
  return true;
}

bool LoopContext::advance(Value& item) {
  if (after_) {
    item = std::move(*after_);
    after_.reset();
  } else if (!iterator_->next(item)) {
    return false;
  }
  ++index0_;
  before_ = std::move(now_);
  now_ = item;
  return true;
}

namespace {

/// Iterates over the rest of a loop.
class LoopIterator : public Iterator {
 public:
  explicit LoopIterator(ObjectPtr loop) : loop_(std::move(loop)) {}
  bool next(Value& out) override {
    Value item;
    if (!static_cast<LoopContext&>(*loop_).advance(item)) return false;
    out = Value::tuple({item, Value::object(loop_)});
    return true;
  }

 private:
  ObjectPtr loop_;
};

class VectorIterator : public Iterator {
 public:
  explicit VectorIterator(std::vector<Value> items) : items_(std::move(items)) {}
  bool next(Value& out) override {
    if (at_ >= items_.size()) return false;
    out = items_[at_++];
    return true;
  }

 private:
  std::vector<Value> items_;
  size_t at_ = 0;
};

}  // namespace

/// An iterable without a length is read to its end, and then iterated from the copy.
int64_t LoopContext::total() const {
  if (length_) return *length_;
  if (items_.is_object() && !items_.object()->length()) {
    std::vector<Value> rest;
    for (Value item; iterator_->next(item);) rest.push_back(std::move(item));
    length_ = static_cast<int64_t>(rest.size()) + index0_ + 1 + (after_ ? 1 : 0);
    iterator_ = std::make_unique<VectorIterator>(std::move(rest));
  } else {
    length_ = length_of(items_);
  }
  return *length_;
}

IteratorPtr LoopContext::iterate(const ObjectPtr& self) {
  return std::make_unique<LoopIterator>(self);
}

Value LoopContext::cycle(const Args& args) const {
  if (args.positional.empty()) fail("no items for cycling given");
  return args.positional[static_cast<size_t>(index0_) % args.positional.size()];
}

bool LoopContext::changed(const Args& args) {
  Value value = Value::tuple(args.positional);
  if (last_changed_ && equal(*last_changed_, value)) return false;
  if (!finished_) last_changed_ = std::move(value);
  return true;
}

void LoopContext::finish() {
  finished_ = true;
  last_changed_.reset();
}

std::optional<Value> LoopContext::attribute(Runtime&, std::string_view name) {
  const auto integer = [](int64_t value) { return Value::integer(value); };
  if (name == "index") return integer(index0_ + 1);
  if (name == "index0") return integer(index0_);
  if (name == "first") return Value::boolean(index0_ == 0);
  if (name == "last") return Value::boolean(!peek());
  if (name == "length") return integer(total());
  if (name == "revindex") return integer(total() - index0_);
  if (name == "revindex0") return integer(total() - index0_ - 1);
  if (name == "depth") return integer(depth0_ + 1);
  if (name == "depth0") return integer(depth0_);
  if (name == "previtem")
    return index0_ == 0 ? Value::undefined("there is no previous item") : before_;
  if (name == "nextitem") return peek() ? *after_ : Value::undefined("there is no next item");
  if (name == "cycle") {
    return Value::object(std::make_shared<Function>(
        "cycle",
        [this, self = shared_from_this()](Runtime&, const Args& args) { return cycle(args); }));
  }
  if (name == "changed") {
    return Value::object(std::make_shared<Function>(
        "changed", [this, self = shared_from_this()](Runtime&, const Args& args) {
          return Value::boolean(changed(args));
        }));
  }
  return std::nullopt;
}

std::string LoopContext::repr(Runtime&) const {
  return fmt::format("<LoopContext {}/{}>", index0_ + 1, total());
}

Value LoopContext::call(Runtime&, const Args& args) {
  if (!recurse_) fail("The loop must have the 'recursive' marker to be called recursively.");
  const Params params("loop", args, {"iterable"});
  return recurse_(params.required(0), depth0_ + 1);
}

}  // namespace sftrun::templates::jinja
