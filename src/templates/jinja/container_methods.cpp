#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "jinja/methods.h"
#include "jinja/objects.h"
#include "jinja/print.h"

namespace sftrun::templates::jinja {
namespace {

struct ContainerMethod {
  std::string_view name;
  Method method;
};

template <size_t N>
Method find_in(const ContainerMethod (&methods)[N], std::string_view name) {
  const auto it = std::find_if(std::begin(methods), std::end(methods),
                               [name](const auto& m) { return m.name == name; });
  return it == std::end(methods) ? nullptr : it->method;
}

template <DictView::Part part>
Value view(Runtime&, const Value& self, const Args& args) {
  const Params params("dict view", args, {});
  return Value::object(std::make_shared<DictView>(self, part));
}

Value dict_get(Runtime&, const Value& self, const Args& args) {
  if (!args.named.empty()) fail("get() takes no keyword arguments");
  const Params params("get", args, {"key", "default"});
  const Value* found = self.dict().find(params.required(0));
  if (found != nullptr) return *found;
  return params.given(1) ? *params[1] : Value();
}

Value dict_copy(Runtime&, const Value& self, const Args& args) {
  const Params params("copy", args, {});
  return self;
}

constexpr ContainerMethod kDictMethods[] = {
    {"get", dict_get},
    {"items", view<DictView::Part::kItems>},
    {"keys", view<DictView::Part::kKeys>},
    {"values", view<DictView::Part::kValues>},
    {"copy", dict_copy},
};

Value sequence_count(Runtime& runtime, const Value& self, const Args& args) {
  const Params params("count", args, {"value"});
  runtime.charge(self.num_nodes());
  const Value& wanted = params.required(0);
  return Value::integer(
      std::count_if(self.items().begin(), self.items().end(),
                    [&wanted](const Value& item) { return equal(item, wanted); }));
}

Value sequence_index(Runtime& runtime, const Value& self, const Args& args) {
  const Params params("index", args, {"value", "start", "stop"});
  runtime.charge(self.num_nodes());
  const Value& wanted = params.required(0);
  const auto size = static_cast<Int>(self.items().size());
  const auto clamped = [size](Int at) { return std::clamp<Int>(at < 0 ? at + size : at, 0, size); };
  for (Int at = clamped(params.integer(1, 0)); at < clamped(params.integer(2, size)); ++at) {
    if (equal(self.items()[static_cast<size_t>(at)], wanted)) return Value::integer(at);
  }
  fail(fmt::format("{} is not in {}", to_repr(runtime, wanted).bytes(), type_name(self)));
}

Value list_copy(Runtime&, const Value& self, const Args& args) {
  const Params params("copy", args, {});
  return self;
}

constexpr ContainerMethod kSequenceMethods[] = {{"count", sequence_count},
                                                {"index", sequence_index}};

Value bit_length(Runtime&, const Value& self, const Args& args) {
  const Params params("bit_length", args, {});
  int bits = 0;
  for (Int rest = self.integral() < 0 ? -self.integral() : self.integral(); rest != 0; rest >>= 1)
    ++bits;
  return Value::integer(bits);
}

Value is_integer(Runtime&, const Value& self, const Args& args) {
  const Params params("is_integer", args, {});
  return Value::boolean(std::floor(self.as_double()) == self.as_double());
}

}  // namespace

Method find_container_method(const Value& value, std::string_view name) {
  if (value.is_dict()) return find_in(kDictMethods, name);
  if (value.is_sequence())
    return value.is_list() && name == "copy" ? list_copy : find_in(kSequenceMethods, name);
  if (value.is_integral() && name == "bit_length") return bit_length;
  if (value.is_float() && name == "is_integer") return is_integer;
  return nullptr;
}

Method find_method(const Value& value, std::string_view name) {
  return value.is_string() ? find_string_method(name) : find_container_method(value, name);
}

bool changes_its_object(const Value& value, std::string_view name) {
  constexpr std::string_view kDict[] = {"clear", "pop", "popitem", "setdefault", "update"};
  constexpr std::string_view kList[] = {"append", "clear", "pop",    "reverse",
                                        "insert", "sort",  "extend", "remove"};
  const auto among = [name](const auto& names) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  return (value.is_dict() && among(kDict)) || (value.is_list() && among(kList));
}

}  // namespace sftrun::templates::jinja
