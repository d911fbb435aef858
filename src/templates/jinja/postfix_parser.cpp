// The expression parser's second half: what follows an operand (subscripts, calls, filters, tests).
#include <fmt/format.h>

#include <algorithm>

#include "jinja/expression_parser.h"

namespace sftrun::templates::jinja {

ExprPtr ExpressionParser::postfix(ExprPtr operand) {
  while (true) {
    if (current().is_op(".") || current().is_op("[")) {
      operand = subscript(std::move(operand));
    } else if (current().is_op("(")) {
      operand = call(std::move(operand));
    } else {
      return operand;
    }
  }
}

ExprPtr ExpressionParser::filter_expression(ExprPtr operand) {
  while (true) {
    if (current().is_op("|")) {
      operand = filters(std::move(operand), false);
    } else if (current().is_name("is")) {
      operand = test(std::move(operand));
    } else if (current().is_op("(")) {
      operand = call(std::move(operand));
    } else {
      return operand;
    }
  }
}

ExprPtr ExpressionParser::subscript(ExprPtr operand) {
  const int line = current().line;
  std::vector<ExprPtr> operands;
  operands.push_back(std::move(operand));
  if (skip_op(".")) {
    const Token& token = advance();
    if (token.type == TokenType::kName) {
      ExprPtr expr = node(ExprKind::kAttribute, line, std::move(operands));
      expr->name = token.text;
      return expr;
    }
    if (token.type != TokenType::kInteger) fail("expected name or number", token.line);
    ExprPtr index = node(ExprKind::kConst, token.line);
    index->constant = Value::integer(token.integer);
    operands.push_back(std::move(index));
    return node(ExprKind::kItem, line, std::move(operands));
  }
  expect_op("[");
  if (skip_op(":")) return slice(std::move(operands[0]), nullptr, line);
  std::vector<ExprPtr> keys;
  bool is_tuple = false;
  while (!current().is_op("]")) {
    if (!keys.empty()) {
      expect_op(",");
      is_tuple = true;
    }
    keys.push_back(expression());
    if (keys.size() == 1 && skip_op(":"))
      return slice(std::move(operands[0]), std::move(keys[0]), line);
  }
  expect_op("]");
  operands.push_back(keys.size() == 1 && !is_tuple ? std::move(keys[0])
                                                   : node(ExprKind::kTuple, line, std::move(keys)));
  return node(ExprKind::kItem, line, std::move(operands));
}

/// After the first colon of `operand[start:stop:step]`.
ExprPtr ExpressionParser::slice(ExprPtr operand, ExprPtr start, int line) {
  std::vector<ExprPtr> parts;
  parts.push_back(std::move(operand));
  parts.push_back(std::move(start));
  const auto part = [this] {
    return current().is_op(":") || current().is_op("]") ? nullptr : expression();
  };
  parts.push_back(part());
  parts.push_back(skip_op(":") ? part() : nullptr);
  expect_op("]");
  return node(ExprKind::kSlice, line, std::move(parts));
}

void ExpressionParser::argument(Arguments& arguments, int line) {
  const auto ensure = [line](bool valid) {
    if (!valid) fail("invalid syntax for function call expression", line);
  };
  if (skip_op("*")) {
    ensure(!arguments.star && !arguments.double_star);
    arguments.star = expression();
  } else if (skip_op("**")) {
    ensure(!arguments.double_star);
    arguments.double_star = expression();
  } else if (current().type == TokenType::kName && ahead().is_op("=")) {
    ensure(!arguments.double_star);
    std::string name = advance().text;
    advance();
    arguments.named.emplace_back(std::move(name), expression());
  } else {
    ensure(!arguments.star && !arguments.double_star && arguments.named.empty());
    arguments.positional.push_back(expression());
  }
}

Arguments ExpressionParser::arguments() {
  const int line = current().line;
  expect_op("(");
  Arguments arguments;
  bool first = true;
  while (!current().is_op(")")) {
    if (!first) {
      expect_op(",");
      if (current().is_op(")")) break;
    }
    first = false;
    argument(arguments, line);
  }
  expect_op(")");
  return arguments;
}

ExprPtr ExpressionParser::call(ExprPtr operand) {
  const int line = current().line;
  std::vector<ExprPtr> operands;
  operands.push_back(std::move(operand));
  ExprPtr expr = node(ExprKind::kCall, line, std::move(operands));
  set_arguments(*expr, arguments());
  return expr;
}

std::string ExpressionParser::dotted_name() {
  std::string name = expect_identifier();
  while (skip_op(".")) name += "." + expect_identifier();
  return name;
}

ExprPtr ExpressionParser::filters(ExprPtr operand, bool start_inline) {
  while (start_inline || current().is_op("|")) {
    if (!start_inline) advance();
    start_inline = false;
    const int line = current().line;
    std::vector<ExprPtr> operands;
    operands.push_back(std::move(operand));
    std::string name = dotted_name();
    operand = node(ExprKind::kFilter, line, std::move(operands));
    operand->filter = find_filter(name);
    operand->name = std::move(name);
    set_arguments(*operand, current().is_op("(") ? arguments() : Arguments());
  }
  return operand;
}

ExprPtr ExpressionParser::test(ExprPtr operand) {
  const int line = advance().line;
  const bool negated = skip_name("not");
  std::vector<ExprPtr> operands;
  operands.push_back(std::move(operand));
  std::string name = dotted_name();
  ExprPtr expr = node(ExprKind::kTest, line, std::move(operands));
  expr->test = find_test(name);
  expr->name = std::move(name);
  Arguments given;
  const Token& token = current();
  const bool starts_operand = token.type == TokenType::kName || token.type == TokenType::kString ||
                              token.type == TokenType::kInteger ||
                              token.type == TokenType::kFloat || token.is_op("[") ||
                              token.is_op("{");
  if (token.is_op("(")) {
    given = arguments();
  } else if (starts_operand && !token.is_name("else") && !token.is_name("or") &&
             !token.is_name("and")) {
    if (token.is_name("is")) fail("You cannot chain multiple tests with is", token.line);
    const Nesting nesting(*this);
    given.positional.push_back(postfix(primary()));
  }
  set_arguments(*expr, std::move(given));
  if (!negated) return expr;
  std::vector<ExprPtr> inner;
  inner.push_back(std::move(expr));
  return node(ExprKind::kNot, line, std::move(inner));
}

}  // namespace sftrun::templates::jinja
