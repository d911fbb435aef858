#include "jinja/postfix_parser.h"

#include "jinja/expression_parser.h"

namespace sftrun::templates::jinja {

ExprPtr PostfixParser::subscripts_and_calls(ExprPtr operand) {
  while (true) {
    if (tokens_.current().is_op(".")) {
      operand = attribute(std::move(operand));
    } else if (tokens_.current().is_op("[")) {
      operand = subscript(std::move(operand));
    } else if (tokens_.current().is_op("(")) {
      operand = call(std::move(operand));
    } else {
      return operand;
    }
  }
}

ExprPtr PostfixParser::filters_and_tests(ExprPtr operand) {
  while (true) {
    if (tokens_.current().is_op("|")) {
      operand = filters(std::move(operand), false);
    } else if (tokens_.current().is_name("is")) {
      operand = test(std::move(operand));
    } else if (tokens_.current().is_op("(")) {
      operand = call(std::move(operand));
    } else {
      return operand;
    }
  }
}

ExprPtr PostfixParser::attribute(ExprPtr operand) {
  const int line = tokens_.advance().line;
  const Token& token = tokens_.advance();
  if (token.type == TokenType::kName) {
    ExprPtr expr = make_expr(ExprKind::kAttribute, line, std::move(operand));
    expr->name = token.text;
    return expr;
  }
  if (token.type != TokenType::kInteger) fail("expected name or number", token.line);
  return make_expr(ExprKind::kItem, line, std::move(operand),
                   make_constant(token.line, Value::integer(token.integer)));
}

ExprPtr PostfixParser::subscript(ExprPtr operand) {
  const int line = tokens_.advance().line;
  if (tokens_.skip_op(":")) return slice(std::move(operand), nullptr, line);
  std::vector<ExprPtr> keys;
  bool is_tuple = false;
  while (!tokens_.current().is_op("]")) {
    if (!keys.empty()) {
      tokens_.expect_op(",");
      is_tuple = true;
    }
    keys.push_back(expressions_.expression());
    if (keys.size() == 1 && tokens_.skip_op(":"))
      return slice(std::move(operand), std::move(keys[0]), line);
  }
  tokens_.expect_op("]");
  ExprPtr key = keys.size() == 1 && !is_tuple ? std::move(keys[0])
                                              : make_expr(ExprKind::kTuple, line, std::move(keys));
  return make_expr(ExprKind::kItem, line, std::move(operand), std::move(key));
}

/// After the first colon of `operand[start:stop:step]`.
ExprPtr PostfixParser::slice(ExprPtr operand, ExprPtr start, int line) {
  const auto part = [this] {
    return tokens_.current().is_op(":") || tokens_.current().is_op("]") ? nullptr
                                                                        : expressions_.expression();
  };
  ExprPtr stop = part();
  ExprPtr step = tokens_.skip_op(":") ? part() : nullptr;
  tokens_.expect_op("]");
  return make_expr(ExprKind::kSlice, line, std::move(operand), std::move(start), std::move(stop),
                   std::move(step));
}

void PostfixParser::argument(Arguments& arguments, int line) {
  const auto ensure = [line](bool valid) {
    if (!valid) fail("invalid syntax for function call expression", line);
  };
  if (tokens_.skip_op("*")) {
    ensure(!arguments.star && !arguments.double_star);
    arguments.star = expressions_.expression();
  } else if (tokens_.skip_op("**")) {
    ensure(!arguments.double_star);
    arguments.double_star = expressions_.expression();
  } else if (tokens_.current().type == TokenType::kName && tokens_.ahead().is_op("=")) {
    ensure(!arguments.double_star);
    std::string name = tokens_.advance().text;
    tokens_.advance();
    arguments.named.emplace_back(std::move(name), expressions_.expression());
  } else {
    ensure(!arguments.star && !arguments.double_star && arguments.named.empty());
    arguments.positional.push_back(expressions_.expression());
  }
}

Arguments PostfixParser::arguments() {
  const int line = tokens_.current().line;
  tokens_.expect_op("(");
  Arguments arguments;
  tokens_.items_until(")", [&] { argument(arguments, line); });
  return arguments;
}

ExprPtr PostfixParser::call(ExprPtr operand) {
  ExprPtr expr = make_expr(ExprKind::kCall, tokens_.current().line, std::move(operand));
  set_arguments(*expr, arguments());
  return expr;
}

std::string PostfixParser::dotted_name() {
  std::string name = tokens_.expect_identifier();
  while (tokens_.skip_op(".")) name += "." + tokens_.expect_identifier();
  return name;
}

ExprPtr PostfixParser::filters(ExprPtr operand, bool start_inline) {
  while (start_inline || tokens_.skip_op("|")) {
    start_inline = false;
    const int line = tokens_.current().line;
    std::string name = dotted_name();
    operand = make_expr(ExprKind::kFilter, line, std::move(operand));
    operand->filter = find_filter(name);
    operand->name = std::move(name);
    set_arguments(*operand, tokens_.current().is_op("(") ? arguments() : Arguments());
  }
  return operand;
}

/// Whether an operand of a test follows that is not in parentheses, as in `x is divisibleby 3`.
bool PostfixParser::at_test_operand() const {
  const Token& token = tokens_.current();
  switch (token.type) {
    case TokenType::kName:
      return !token.is_name("else") && !token.is_name("or") && !token.is_name("and");
    case TokenType::kString:
    case TokenType::kInteger:
    case TokenType::kFloat:
      return true;
    default:
      return token.is_op("[") || token.is_op("{");
  }
}

ExprPtr PostfixParser::test(ExprPtr operand) {
  const int line = tokens_.advance().line;
  const bool negated = tokens_.skip_name("not");
  std::string name = dotted_name();
  ExprPtr expr = make_expr(ExprKind::kTest, line, std::move(operand));
  expr->test = find_test(name);
  expr->name = std::move(name);
  Arguments given;
  if (tokens_.current().is_op("(")) {
    given = arguments();
  } else if (at_test_operand()) {
    const Token& token = tokens_.current();
    if (token.is_name("is")) fail("You cannot chain multiple tests with is", token.line);
    const TokenCursor::Nesting nesting(tokens_);
    given.positional.push_back(subscripts_and_calls(expressions_.primary()));
  }
  set_arguments(*expr, std::move(given));
  return negated ? make_expr(ExprKind::kNot, line, std::move(expr)) : std::move(expr);
}

}  // namespace sftrun::templates::jinja
