#include "jinja/tests.h"

#include <algorithm>
#include <iterator>

#include "jinja/filters.h"
#include "jinja/methods.h"
#include "jinja/objects.h"
#include "jinja/operators.h"
#include "jinja/print.h"

namespace sftrun::templates::jinja {
namespace {

/// A test of the value alone.
template <bool (*holds)(const Value&)>
bool alone(Runtime&, const Value& value, const Args& args) {
  const Params params("test", args, {});
  return holds(value);
}

bool is_defined(const Value& value) {
  return !value.is_undefined();
}
bool is_undefined(const Value& value) {
  return value.is_undefined();
}
bool is_none(const Value& value) {
  return value.is_none();
}
bool is_boolean(const Value& value) {
  return value.is_bool();
}
bool is_true(const Value& value) {
  return value.is_bool() && value.boolean();
}
bool is_false(const Value& value) {
  return value.is_bool() && !value.boolean();
}
bool is_integer(const Value& value) {
  return value.is_int();
}
bool is_float(const Value& value) {
  return value.is_float();
}
bool is_number(const Value& value) {
  return value.is_number();
}
bool is_string(const Value& value) {
  return value.is_string();
}
bool is_mapping(const Value& value) {
  return value.is_dict();
}
bool is_iterable(const Value& value) {
  return iterate(value) != nullptr;
}
bool is_callable(const Value& value) {
  return value.is_object() && value.object()->callable();
}
bool is_escaped(const Value& value) {
  return value.is_string() && value.str().safe;
}

/// Has a length and can be indexed.
bool is_sequence(const Value& value) {
  if (value.is_object()) return value.object()->has_items() && value.object()->length().has_value();
  return value.is_string() || value.is_sequence() || value.is_dict() || value.is_undefined();
}

template <bool lower_wanted>
bool is_of_case(Runtime& runtime, const Value& value, const Args& args) {
  const Params params("test", args, {});
  const Value text = Value::string(to_text(runtime, value));
  return find_string_method(lower_wanted ? "islower" : "isupper")(runtime, text, Args{}).boolean();
}

bool is_divisible(Runtime& runtime, const Value& value, const Value& by, int remainder) {
  return equal(binary(runtime, "%", value, by), Value::integer(remainder));
}
bool is_odd(Runtime& runtime, const Value& value, const Args& args) {
  const Params params("odd", args, {});
  return is_divisible(runtime, value, Value::integer(2), 1);
}
bool is_even(Runtime& runtime, const Value& value, const Args& args) {
  const Params params("even", args, {});
  return is_divisible(runtime, value, Value::integer(2), 0);
}
bool is_divisible_by(Runtime& runtime, const Value& value, const Args& args) {
  const Params params("divisibleby", args, {"num"});
  return is_divisible(runtime, value, params.required(0), 0);
}

bool is_filter(Runtime&, const Value& value, const Args& args) {
  const Params params("filter", args, {});
  return value.is_string() && find_filter(value.bytes()) != nullptr;
}
bool is_test(Runtime&, const Value& value, const Args& args) {
  const Params params("test", args, {});
  return value.is_string() && find_test(value.bytes()) != nullptr;
}
bool is_same_as(Runtime&, const Value& value, const Args& args) {
  const Params params("sameas", args, {"other"});
  return value.same_as(params.required(0));
}
bool is_in(Runtime& runtime, const Value& value, const Args& args) {
  const Params params("in", args, {"seq"});
  return contains(runtime, params.required(0), value);
}

enum class Relation { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual };
template <Relation relation>
bool compares(Runtime& runtime, const Value& value, const Args& args) {
  constexpr std::string_view kOperators[] = {"==", "!=", "<", "<=", ">", ">="};
  const Params params("comparison", args, {"other"});
  return compare(runtime, kOperators[static_cast<size_t>(relation)], value, params.required(0));
}

struct NamedTest {
  std::string_view name;
  Test test;
};
constexpr NamedTest kTests[] = {
    {"defined", alone<is_defined>},
    {"string", alone<is_string>},
    {"mapping", alone<is_mapping>},
    {"iterable", alone<is_iterable>},
    {"sequence", alone<is_sequence>},
    {"none", alone<is_none>},
    {"undefined", alone<is_undefined>},
    {"true", alone<is_true>},
    {"false", alone<is_false>},
    {"boolean", alone<is_boolean>},
    {"integer", alone<is_integer>},
    {"float", alone<is_float>},
    {"number", alone<is_number>},
    {"callable", alone<is_callable>},
    {"escaped", alone<is_escaped>},
    {"lower", is_of_case<true>},
    {"upper", is_of_case<false>},
    {"odd", is_odd},
    {"even", is_even},
    {"divisibleby", is_divisible_by},
    {"filter", is_filter},
    {"test", is_test},
    {"sameas", is_same_as},
    {"in", is_in},
    {"==", compares<Relation::kEqual>},
    {"eq", compares<Relation::kEqual>},
    {"equalto", compares<Relation::kEqual>},
    {"!=", compares<Relation::kNotEqual>},
    {"ne", compares<Relation::kNotEqual>},
    {"<", compares<Relation::kLess>},
    {"lt", compares<Relation::kLess>},
    {"lessthan", compares<Relation::kLess>},
    {"<=", compares<Relation::kLessEqual>},
    {"le", compares<Relation::kLessEqual>},
    {">", compares<Relation::kGreater>},
    {"gt", compares<Relation::kGreater>},
    {"greaterthan", compares<Relation::kGreater>},
    {">=", compares<Relation::kGreaterEqual>},
    {"ge", compares<Relation::kGreaterEqual>},
};

}  // namespace

Test find_test(std::string_view name) {
  const auto it = std::find_if(std::begin(kTests), std::end(kTests),
                               [name](const auto& t) { return t.name == name; });
  return it == std::end(kTests) ? nullptr : it->test;
}

}  // namespace sftrun::templates::jinja
