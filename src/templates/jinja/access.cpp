#include "jinja/access.h"

#include <fmt/format.h>

#include <algorithm>

#include "jinja/methods.h"
#include "jinja/objects.h"
#include "jinja/print.h"
#include "jinja/unicode.h"

namespace sftrun::templates::jinja {
namespace {

/// jinja2's name of a value's type in its messages.
std::string described_type(const Value& value) {
  return value.is_none() ? "None" : type_name(value) + " object";
}

Value no_attribute(const Value& value, std::string_view name) {
  return Value::undefined(fmt::format("'{}' has no attribute '{}'", described_type(value), name));
}

Value no_element(Runtime& runtime, const Value& value, const Value& key) {
  if (key.is_string()) return no_attribute(value, key.bytes());
  return Value::undefined(
      fmt::format("{} has no element {}", described_type(value), to_repr(runtime, key).bytes()));
}

Value unsafe_attribute(const Value& value, std::string_view name) {
  return Value::undefined(
      fmt::format("access to attribute '{}' of '{}' object is unsafe.", name, type_name(value)));
}

/// The result of Python's getattr() in the sandbox.
std::optional<Value> own_attribute(Runtime& runtime, const Value& value, std::string_view name) {
  if (name == "__class__" || name == "__dict__" || name == "__init__" || name == "__doc__") {
    return unsafe_attribute(value, name);
  }
  if (value.is_object()) {
    if (auto found = value.object()->attribute(runtime, name)) return found;
    if (value.object_as<DictView>() == nullptr) return std::nullopt;
  }
  if (value.is_integral() && (name == "real" || name == "numerator"))
    return Value::integer(value.integral());
  if (value.is_integral() && (name == "imag" || name == "denominator"))
    return Value::integer(name == "imag" ? 0 : 1);
  if (changes_its_object(value, name)) return unsafe_attribute(value, name);
  if (const auto method = find_method(value, name)) {
    return Value::object(std::make_shared<BoundMethod>(value, std::string(name), method));
  }
  return std::nullopt;
}

/// The result of Python's value[key]; nothing if it raises LookupError or TypeError.
std::optional<Value> own_item(const Value& value, const Value& key) {
  if (value.is_dict()) {
    const bool hashable = !key.is_list() && !key.is_dict();
    const Value* found = hashable ? value.dict().find(key) : nullptr;
    return found != nullptr ? std::optional(*found) : std::nullopt;
  }
  if (value.is_object()) return value.object()->item(key);
  if (!key.is_integral() || !(value.is_sequence() || value.is_string())) return std::nullopt;
  const Int length = length_of(value);
  const Int index = key.integral() < 0 ? key.integral() + length : key.integral();
  if (index < 0 || index >= length) return std::nullopt;
  const auto at = static_cast<size_t>(index);
  if (value.is_sequence()) return value.items()[at];
  const size_t begin = unicode::byte_offset(value.bytes(), at);
  const size_t end = begin + unicode::sequence_length(value.bytes(), begin);
  return Value::string(value.text().slice(begin, end), value.str().safe);
}

void require_defined(const Value& value) {
  if (value.is_undefined()) fail(value.undefined().message);
}

}  // namespace

Value get_attribute(Runtime& runtime, const Value& value, std::string_view name) {
  require_defined(value);
  if (auto attribute = own_attribute(runtime, value, name)) return *attribute;
  if (value.is_dict()) {
    const Value* found = value.dict().find(name);
    return found != nullptr ? *found : no_attribute(value, name);
  }
  if (value.is_object()) {
    if (auto item = value.object()->item(Value::string(name))) return *item;
  }
  return no_attribute(value, name);
}

Value get_item(Runtime& runtime, const Value& value, const Value& key) {
  require_defined(value);
  if (auto item = own_item(value, key)) return *item;
  if (key.is_string()) {
    if (auto attribute = own_attribute(runtime, value, key.bytes())) return *attribute;
  }
  return no_element(runtime, value, key);
}

namespace {

struct Bounds {
  Int start, stop, step;
};

Int slice_index(const Value& value) {
  if (!value.is_integral())
    fail("slice indices must be integers or None or have an __index__ method");
  return value.integral();
}

/// Python's slice.indices().
Bounds slice_bounds(Int length, const Value& start, const Value& stop, const Value& step) {
  Bounds bounds{0, 0, step.is_none() ? Int{1} : slice_index(step)};
  if (bounds.step == 0) fail("slice step cannot be zero");
  constexpr Int kFar = Int{1} << 62;  // larger than every text, without overflow
  bounds.step = std::clamp(bounds.step, -kFar, kFar);
  const bool forward = bounds.step > 0;
  const Int lowest = forward ? 0 : -1, highest = forward ? length : length - 1;
  const auto clamp = [&](const Value& index, Int otherwise) {
    if (index.is_none()) return otherwise;
    const Int at = slice_index(index) < 0 ? slice_index(index) + length : slice_index(index);
    return std::clamp(at, lowest, highest);
  };
  bounds.start = clamp(start, forward ? lowest : highest);
  bounds.stop = clamp(stop, forward ? highest : lowest);
  return bounds;
}

std::vector<size_t> slice_positions(const Bounds& bounds) {
  std::vector<size_t> positions;
  for (Int at = bounds.start; bounds.step > 0 ? at < bounds.stop : at > bounds.stop;
       at += bounds.step) {
    positions.push_back(static_cast<size_t>(at));
  }
  return positions;
}

TaggedText slice_text(const TaggedText& text, const Bounds& bounds) {
  if (bounds.step == 1) {
    const auto start = static_cast<size_t>(bounds.start);
    const auto count = static_cast<size_t>(std::max<Int>(bounds.stop - bounds.start, 0));
    const size_t begin = unicode::byte_offset(text.bytes(), start);
    const size_t end =
        begin + unicode::byte_offset(std::string_view(text.bytes()).substr(begin), count);
    return text.slice(begin, end);
  }
  std::vector<size_t> offsets;  // of every code point
  for (size_t at = 0; at < text.size(); at += unicode::sequence_length(text.bytes(), at))
    offsets.push_back(at);
  offsets.push_back(text.size());
  TaggedText out;
  for (const size_t position : slice_positions(bounds))
    out.append(text, offsets[position], offsets[position + 1]);
  return out;
}

}  // namespace

Value get_slice(Runtime& runtime, const Value& value, const Value& start, const Value& stop,
                const Value& step) {
  require_defined(value);
  auto* range = value.object_as<Range>();
  if (!value.is_string() && !value.is_sequence() && range == nullptr) {
    fail(fmt::format("'{}' object is not subscriptable by a slice", type_name(value)));
  }
  for (const Value* index : {&start, &stop, &step}) require_defined(*index);
  const Bounds bounds = slice_bounds(length_of(value), start, stop, step);
  if (range != nullptr) {
    const auto at = [range](Int index) { return range->at(static_cast<int64_t>(index)); };
    return Value::object(std::make_shared<Range>(at(bounds.start), at(bounds.stop),
                                                 range->step() * bounds.step));  // both fit 63 bits
  }
  if (value.is_string()) {
    runtime.charge(value.text().size());
    return Value::string(slice_text(value.text(), bounds), value.str().safe);
  }
  std::vector<Value> items;
  for (const size_t position : slice_positions(bounds)) items.push_back(value.items()[position]);
  runtime.charge(items.size() * sizeof(Value));
  const Value slice =
      value.is_tuple() ? Value::tuple(std::move(items)) : Value::list(std::move(items));
  return slice.with_origin(value.origin());
}

Value get_path(Runtime& runtime, const Value& value, const Value& path) {
  if (path.is_none()) return value;
  if (!path.is_string()) return get_item(runtime, value, path);
  Value found = value;
  std::string_view rest = path.bytes();
  while (true) {
    const size_t dot = rest.find('.');
    const std::string_view part = rest.substr(0, dot);
    const bool is_index =
        !part.empty() && part.size() < 18 &&
        std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    found =
        get_item(runtime, found,
                 is_index ? Value::integer(std::stoll(std::string(part))) : Value::string(part));
    if (dot == std::string_view::npos) return found;
    rest = rest.substr(dot + 1);
  }
}

}  // namespace sftrun::templates::jinja
