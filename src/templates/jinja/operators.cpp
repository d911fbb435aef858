#include "jinja/operators.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "jinja/objects.h"
#include "jinja/print.h"
#include "jinja/string_format.h"
#include "jinja/text_ops.h"

namespace sftrun::templates::jinja {
namespace {

[[noreturn]] void fail_operands(std::string_view op, const Value& a, const Value& b) {
  for (const Value* side : {&a, &b}) {
    if (side->is_undefined()) fail(side->undefined().message);
  }
  if (op == "+" && a.is_string()) {
    fail(fmt::format("can only concatenate str (not \"{}\") to str", type_name(b)));
  }
  fail(fmt::format("unsupported operand type(s) for {}: '{}' and '{}'", op, type_name(a),
                   type_name(b)));
}

[[noreturn]] void fail_overflow() {
  fail("integer is too large");
}

Int floor_divide(Int a, Int b) {
  const Int quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

Value integer_power(Int base, Int exponent) {
  if (exponent < 0) {
    if (base == 0) fail("0.0 cannot be raised to a negative power");
    return Value::number(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  if (base == 0 || base == 1) return Value::integer(exponent == 0 ? Int{1} : base);
  if (base == -1) return Value::integer(exponent % 2 == 0 ? 1 : -1);
  Int result = 1;
  for (; exponent > 0; --exponent) {  // ends by overflow after 120 rounds
    if (__builtin_mul_overflow(result, base, &result)) fail_overflow();
    result = checked_integer(result);
  }
  return Value::integer(result);
}

Value integer_arithmetic(std::string_view op, Int a, Int b) {
  Int result = 0;
  bool overflow = false;
  if (op == "+") overflow = __builtin_add_overflow(a, b, &result);
  if (op == "-") overflow = __builtin_sub_overflow(a, b, &result);
  if (op == "*") overflow = __builtin_mul_overflow(a, b, &result);
  if (op == "**") return integer_power(a, b);
  const bool divides = op == "/" || op == "//" || op == "%";
  if (divides && b == 0)
    fail(op == "/" ? "division by zero" : "integer division or modulo by zero");
  if (op == "/") return Value::number(static_cast<double>(a) / static_cast<double>(b));
  if (op == "//") result = floor_divide(a, b);
  if (op == "%") result = a - floor_divide(a, b) * b;
  if (overflow) fail_overflow();
  return Value::integer(checked_integer(result));
}

/// The remainder with the sign of the divisor, as Python's.
double float_modulo(double a, double b) {
  double rest = std::fmod(a, b);
  if (rest != 0.0) return (b < 0) != (rest < 0) ? rest + b : rest;
  return std::copysign(0.0, b);
}

double float_floor_divide(double a, double b) {
  const double quotient = (a - float_modulo(a, b)) / b;
  if (quotient == 0.0) return std::copysign(0.0, a / b);
  const double floored = std::floor(quotient);
  return quotient - floored > 0.5 ? floored + 1.0 : floored;
}

Value float_arithmetic(std::string_view op, double a, double b) {
  if (op == "+") return Value::number(a + b);
  if (op == "-") return Value::number(a - b);
  if (op == "*") return Value::number(a * b);
  if (op == "**") {
    if (a == 0.0 && b < 0.0) fail("0.0 cannot be raised to a negative power");
    if (a < 0.0 && std::floor(b) != b) fail("complex numbers are not supported");
    const double result = std::pow(a, b);
    if (std::isinf(result) && std::isfinite(a) && std::isfinite(b))
      fail("Numerical result out of range");
    return Value::number(result);
  }
  if (b == 0.0)
    fail(op == "/" ? "float division by zero" : "float floor division or modulo by zero");
  if (op == "/") return Value::number(a / b);
  return Value::number(op == "//" ? float_floor_divide(a, b) : float_modulo(a, b));
}

Value repeat(Runtime& runtime, const Value& value, Int times) {
  const Int count = std::clamp<Int>(times, 0, Int{1} << 40);
  const size_t unit =
      value.is_string() ? value.text().size() : value.items().size() * sizeof(Value);
  const Int total = unit == 0 ? Int{0} : count * static_cast<Int>(unit);
  runtime.charge(static_cast<size_t>(std::min<Int>(total, Int{1} << 62)));
  if (value.is_string()) {
    TaggedText out;
    for (Int i = 0; i < count && unit > 0; ++i) out.append(value.text());
    return Value::string(std::move(out), value.str().safe);
  }
  std::vector<Value> items;
  for (Int i = 0; i < count && unit > 0; ++i) {
    items.insert(items.end(), value.items().begin(), value.items().end());
  }
  return value.is_tuple() ? Value::tuple(std::move(items)) : Value::list(std::move(items));
}

Value join_sequences(Runtime& runtime, const Value& a, const Value& b) {
  runtime.charge((a.items().size() + b.items().size()) * sizeof(Value));
  std::vector<Value> items = a.items();
  items.insert(items.end(), b.items().begin(), b.items().end());
  return a.is_tuple() ? Value::tuple(std::move(items)) : Value::list(std::move(items));
}

}  // namespace

Int checked_integer(Int value) {
  constexpr Int kLimit = Int{1} << 120;
  if (value > kLimit || value < -kLimit) fail_overflow();
  return value;
}

Value concatenate(Runtime& runtime, const Value& a, const Value& b) {
  const bool safe = a.str().safe || b.str().safe;
  runtime.charge(a.text().size() + b.text().size());
  TaggedText out = safe && !a.str().safe ? escape_html(runtime, a.text()) : a.text();
  out.append(safe && !b.str().safe ? escape_html(runtime, b.text()) : b.text());
  return Value::string(std::move(out), safe);
}

Value binary(Runtime& runtime, std::string_view op, const Value& a, const Value& b) {
  if (op == "+" && a.is_string() && b.is_string()) return concatenate(runtime, a, b);
  if (op == "%" && a.is_string() && !b.is_undefined()) return percent_format(runtime, a, b);
  if (a.is_number() && b.is_number()) {
    if (a.is_float() || b.is_float()) return float_arithmetic(op, a.as_double(), b.as_double());
    return integer_arithmetic(op, a.integral(), b.integral());
  }
  if (op == "+" && a.is_sequence() && b.is_sequence() && a.is_tuple() == b.is_tuple()) {
    return join_sequences(runtime, a, b);
  }
  const auto repeatable = [](const Value& value) {
    return value.is_string() || value.is_sequence();
  };
  if (op == "*" && repeatable(a) && b.is_integral()) return repeat(runtime, a, b.integral());
  if (op == "*" && repeatable(b) && a.is_integral()) return repeat(runtime, b, a.integral());
  fail_operands(op, a, b);
}

Value negate(const Value& value) {
  if (value.is_float()) return Value::number(-value.as_double());
  if (value.is_long()) {
    const std::string& text = value.long_integer();
    return Value::integer_of(text[0] == '-' ? text.substr(1) : "-" + text);
  }
  if (value.is_integral()) return Value::integer(-value.integral());
  if (value.is_undefined()) fail(value.undefined().message);
  fail(fmt::format("bad operand type for unary -: '{}'", type_name(value)));
}

Value plus(const Value& value) {
  if (value.is_float() || value.is_long()) return value;
  if (value.is_integral()) return Value::integer(value.integral());
  if (value.is_undefined()) fail(value.undefined().message);
  fail(fmt::format("bad operand type for unary +: '{}'", type_name(value)));
}

bool contains(Runtime& runtime, const Value& container, const Value& item) {
  runtime.charge(std::min(container.num_nodes(), size_t{1} << 20));
  if (container.is_string()) {
    if (!item.is_string()) {
      fail(fmt::format("'in <string>' requires string as left operand, not {}", type_name(item)));
    }
    runtime.work(find_cost(container.bytes(), item.bytes()));
    return find(container.bytes(), item.bytes()) != std::string::npos;
  }
  if (container.is_dict()) return container.dict().find(item) != nullptr;
  if (container.is_sequence()) {
    return std::any_of(container.items().begin(), container.items().end(),
                       [&item](const Value& other) { return equal(other, item); });
  }
  const IteratorPtr iterator = iterate(container);
  if (!iterator) fail(fmt::format("argument of type '{}' is not iterable", type_name(container)));
  for (Value other; iterator->next(other);) {
    runtime.step();
    if (equal(other, item)) return true;
  }
  return false;
}

bool compare(Runtime& runtime, std::string_view op, const Value& a, const Value& b) {
  if (op == "in") return contains(runtime, b, a);
  if (op == "not in") return !contains(runtime, b, a);
  runtime.charge(std::min(a.num_nodes(), b.num_nodes()));
  if (op == "==") return equal(a, b);
  if (op == "!=") return !equal(a, b);
  const bool with_nan =
      a.is_number() && b.is_number() && (std::isnan(a.as_double()) || std::isnan(b.as_double()));
  if (with_nan) return false;
  if (op == "<") return less(a, b);
  if (op == ">") return less(b, a);
  return op == "<=" ? !less(b, a) : !less(a, b);
}

}  // namespace sftrun::templates::jinja
