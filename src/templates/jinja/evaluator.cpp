#include "jinja/evaluator.h"

#include <fmt/format.h>

#include "jinja/access.h"
#include "jinja/filters.h"
#include "jinja/objects.h"
#include "jinja/operators.h"
#include "jinja/print.h"
#include "jinja/tests.h"

namespace sftrun::templates::jinja {

Value Evaluator::evaluate(const Expr& expr, Frame& frame) {
  if (expr.kind == ExprKind::kConst) return expr.constant;
  if (expr.kind == ExprKind::kName) return evaluate_name(expr, frame);
  const Runtime::Nesting nesting(runtime_);
  runtime_.set_line(expr.line);
  const auto operand = [&](size_t index) { return evaluate(*expr.operands[index], frame); };
  switch (expr.kind) {
    case ExprKind::kConst:
    case ExprKind::kName:
    case ExprKind::kNamespaceRef:
      break;
    case ExprKind::kTuple:
      return Value::tuple(evaluate_all(expr.operands, frame));
    case ExprKind::kList:
      return Value::list(evaluate_all(expr.operands, frame));
    case ExprKind::kDict:
      return evaluate_dict(expr, frame);
    case ExprKind::kCondition:
      return evaluate_condition(expr, frame);
    case ExprKind::kOr: {
      Value left = operand(0);
      return truthy(left) ? left : operand(1);
    }
    case ExprKind::kAnd: {
      Value left = operand(0);
      return truthy(left) ? operand(1) : left;
    }
    case ExprKind::kNot:
      return Value::boolean(!truthy(operand(0)));
    case ExprKind::kCompare:
      return evaluate_compare(expr, frame);
    case ExprKind::kBinary: {
      const Value left = operand(0), right = operand(1);
      runtime_.set_line(expr.line);
      return binary(runtime_, expr.name, left, right);
    }
    case ExprKind::kNegate:
      return negate(operand(0));
    case ExprKind::kPlus:
      return plus(operand(0));
    case ExprKind::kConcat:
      return evaluate_concat(expr, frame);
    case ExprKind::kAttribute:
      return get_attribute(runtime_, operand(0), expr.name);
    case ExprKind::kItem: {
      const Value object = operand(0), key = operand(1);
      runtime_.set_line(expr.line);
      return get_item(runtime_, object, key);
    }
    case ExprKind::kSlice:
      return evaluate_slice(expr, frame);
    case ExprKind::kCall:
      return evaluate_call(expr, frame);
    case ExprKind::kFilter:
      return apply_filters(expr, nullptr, frame);
    case ExprKind::kTest:
      return evaluate_test(expr, frame);
  }
  return Value();
}

Value Evaluator::evaluate_name(const Expr& expr, Frame& frame) const {
  runtime_.charge(frame.num_slots());  // each slot is checked
  if (const Frame::Slot* slot = frame.find(expr.symbol)) {
    if (slot->value) return *slot->value;
  } else if (const auto& given = context_[static_cast<size_t>(expr.symbol)]) {
    return *given;
  }
  return Value::undefined(fmt::format("'{}' is undefined", symbols_.name(expr.symbol)));
}

Value Evaluator::evaluate_condition(const Expr& expr, Frame& frame) {
  if (truthy(evaluate(*expr.operands[0], frame))) return evaluate(*expr.operands[1], frame);
  if (expr.operands[2]) return evaluate(*expr.operands[2], frame);
  return Value::undefined(
      "the inline if-expression evaluated to false and no else section was defined.");
}

/// a < b < c holds if both do; operands after the first comparison that fails are not evaluated.
Value Evaluator::evaluate_compare(const Expr& expr, Frame& frame) {
  Value left = evaluate(*expr.operands[0], frame);
  for (size_t i = 0; i < expr.operators.size(); ++i) {
    Value right = evaluate(*expr.operands[i + 1], frame);
    runtime_.set_line(expr.line);
    if (!compare(runtime_, expr.operators[i], left, right)) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Evaluator::evaluate_concat(const Expr& expr, Frame& frame) {
  TaggedText out;
  for (const Value& part : evaluate_all(expr.operands, frame)) {
    const TaggedText text = to_text(runtime_, part);
    runtime_.charge(text.size());
    out.append(text);
    runtime_.check_size(out.size());
  }
  return Value::string(std::move(out));
}

Value Evaluator::evaluate_dict(const Expr& expr, Frame& frame) {
  Dict dict;
  for (size_t i = 0; i + 1 < expr.operands.size(); i += 2) {
    Value key = evaluate(*expr.operands[i], frame);
    dict.set(std::move(key), evaluate(*expr.operands[i + 1], frame));
  }
  return Value::dict(std::move(dict));
}

Value Evaluator::evaluate_slice(const Expr& expr, Frame& frame) {
  const auto part = [&](size_t index) {
    return expr.operands[index] ? evaluate(*expr.operands[index], frame) : Value();
  };
  const Value object = part(0), start = part(1), stop = part(2), step = part(3);
  return get_slice(runtime_, object, start, stop, step);
}

std::vector<Value> Evaluator::evaluate_all(const std::vector<ExprPtr>& exprs, Frame& frame) {
  std::vector<Value> values;
  values.reserve(exprs.size());
  for (const ExprPtr& expr : exprs) values.push_back(evaluate(*expr, frame));
  return values;
}

Args Evaluator::evaluate_arguments(const Arguments& arguments, Frame& frame) {
  Args args;
  args.positional = evaluate_all(arguments.positional, frame);
  for (const auto& [name, expr] : arguments.named)
    args.named.emplace_back(name, evaluate(*expr, frame));
  if (arguments.star) {
    for (Value& value : to_vector(runtime_, evaluate(*arguments.star, frame)))
      args.positional.push_back(std::move(value));
  }
  if (arguments.double_star) {
    const Value named = evaluate(*arguments.double_star, frame);
    if (!named.is_dict()) fail("argument after ** must be a mapping, not " + type_name(named));
    for (const auto& [key, value] : named.dict().entries()) {
      if (!key.is_string()) fail("keywords must be strings");
      args.named.emplace_back(key.bytes(), value);
    }
  }
  return args;
}

Value Evaluator::evaluate_call(const Expr& expr, Frame& frame) {
  const Value callee = evaluate(*expr.operands[0], frame);
  const Args args = evaluate_arguments(*expr.arguments, frame);
  runtime_.set_line(expr.line);
  return call_value(runtime_, callee, args);
}

Value Evaluator::apply_filters(const Expr& expr, const Value* block_text, Frame& frame) {
  const bool innermost = expr.operands[0] == nullptr;
  const bool of_block =
      innermost || (block_text != nullptr && expr.operands[0]->kind == ExprKind::kFilter);
  const Value value = innermost  ? *block_text
                      : of_block ? apply_filters(*expr.operands[0], block_text, frame)
                                 : evaluate(*expr.operands[0], frame);
  const Args args = evaluate_arguments(*expr.arguments, frame);
  runtime_.set_line(expr.line);
  if (expr.filter == nullptr) fail("No filter named '" + expr.name + "' found.");
  runtime_.step();
  return expr.filter(runtime_, value, args);
}

Value Evaluator::evaluate_test(const Expr& expr, Frame& frame) {
  const Value value = evaluate(*expr.operands[0], frame);
  const Args args = evaluate_arguments(*expr.arguments, frame);
  runtime_.set_line(expr.line);
  if (expr.test == nullptr) fail("No test named '" + expr.name + "' found.");
  runtime_.step();
  return Value::boolean(expr.test(runtime_, value, args));
}

// ---- Assignment

void Evaluator::assign(const Expr& target, const Value& value, Frame& frame) {
  runtime_.charge(frame.slots.size());  // each slot is checked
  if (target.kind == ExprKind::kName) return frame.set(target.symbol, value);
  if (target.kind == ExprKind::kTuple) return unpack(target, value, frame);
  auto* name_space = evaluate_name(target, frame).object_as<Namespace>();
  if (name_space == nullptr) fail("cannot assign attribute on non-namespace object");
  name_space->set(target.name, value);
}

void Evaluator::unpack(const Expr& target, const Value& value, Frame& frame) {
  const IteratorPtr iterator = iterate(value);
  if (!iterator) fail(fmt::format("cannot unpack non-iterable {} object", type_name(value)));
  const size_t wanted = target.operands.size();
  std::vector<Value> items;
  for (Value item; items.size() <= wanted && iterator->next(item);) items.push_back(item);
  if (items.size() > wanted) fail(fmt::format("too many values to unpack (expected {})", wanted));
  if (items.size() < wanted) {
    fail(fmt::format("not enough values to unpack (expected {}, got {})", wanted, items.size()));
  }
  for (size_t i = 0; i < wanted; ++i) assign(*target.operands[i], items[i], frame);
}

}  // namespace sftrun::templates::jinja
