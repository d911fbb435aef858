#include "jinja/expression_parser.h"

#include <fmt/format.h>

#include <algorithm>

namespace sftrun::templates::jinja {

ExprPtr ExpressionParser::expression(bool with_condition) {
  const TokenCursor::Nesting nesting(tokens_);
  return with_condition ? condition() : disjunction();
}

ExprPtr ExpressionParser::condition() {
  const TokenCursor::Nesting nesting(tokens_);
  ExprPtr then = disjunction();
  while (tokens_.current().is_name("if")) {
    const int line = tokens_.advance().line;
    ExprPtr tested = disjunction();
    ExprPtr otherwise = tokens_.skip_name("else") ? condition() : nullptr;
    then = make_expr(ExprKind::kCondition, line, std::move(tested), std::move(then),
                     std::move(otherwise));
  }
  return then;
}

ExprPtr ExpressionParser::disjunction() {
  ExprPtr left = conjunction();
  while (tokens_.current().is_name("or")) {
    const int line = tokens_.advance().line;
    left = make_expr(ExprKind::kOr, line, std::move(left), conjunction());
  }
  return left;
}

ExprPtr ExpressionParser::conjunction() {
  ExprPtr left = negation();
  while (tokens_.current().is_name("and")) {
    const int line = tokens_.advance().line;
    left = make_expr(ExprKind::kAnd, line, std::move(left), negation());
  }
  return left;
}

ExprPtr ExpressionParser::negation() {
  if (!tokens_.current().is_name("not")) return comparison();
  const TokenCursor::Nesting nesting(tokens_);
  const int line = tokens_.advance().line;
  return make_expr(ExprKind::kNot, line, negation());
}

/// The comparison operator at the current token, which is passed; "": there is none.
std::string ExpressionParser::comparison_operator() {
  for (const std::string_view op : {"==", "!=", "<", "<=", ">", ">="})
    if (tokens_.skip_op(op)) return std::string(op);
  if (tokens_.skip_name("in")) return "in";
  if (!tokens_.current().is_name("not") || !tokens_.ahead().is_name("in")) return {};
  tokens_.advance();
  tokens_.advance();
  return "not in";
}

/// Comparisons chain: a < b < c has three operands and two operators.
ExprPtr ExpressionParser::comparison() {
  const int line = tokens_.current().line;
  std::vector<ExprPtr> sides;
  std::vector<std::string> operators;
  sides.push_back(sum());
  for (std::string op = comparison_operator(); !op.empty(); op = comparison_operator()) {
    operators.push_back(std::move(op));
    sides.push_back(sum());
  }
  if (operators.empty()) return std::move(sides[0]);
  ExprPtr compare = make_expr(ExprKind::kCompare, line, std::move(sides));
  compare->operators = std::move(operators);
  return compare;
}

/// operand {operator operand}, grouped from the left.
ExprPtr ExpressionParser::left_associative(std::initializer_list<std::string_view> operators,
                                           Operand operand) {
  const auto at_operator = [&] {
    return std::any_of(operators.begin(), operators.end(),
                       [this](auto op) { return tokens_.current().is_op(op); });
  };
  ExprPtr left = (this->*operand)();
  while (at_operator()) {
    const Token& op = tokens_.advance();
    left = make_expr(ExprKind::kBinary, op.line, std::move(left), (this->*operand)());
    left->name = op.text;
  }
  return left;
}

ExprPtr ExpressionParser::sum() {
  return left_associative({"+", "-"}, &ExpressionParser::concatenation);
}

ExprPtr ExpressionParser::concatenation() {
  const int line = tokens_.current().line;
  std::vector<ExprPtr> parts;
  parts.push_back(product());
  while (tokens_.skip_op("~")) parts.push_back(product());
  if (parts.size() == 1) return std::move(parts[0]);
  return make_expr(ExprKind::kConcat, line, std::move(parts));
}

ExprPtr ExpressionParser::product() {
  return left_associative({"*", "/", "//", "%"}, &ExpressionParser::power);
}

ExprPtr ExpressionParser::power() {
  return left_associative({"**"}, &ExpressionParser::factor);
}

ExprPtr ExpressionParser::unary(bool with_filter) {
  const TokenCursor::Nesting nesting(tokens_);
  const int line = tokens_.current().line;
  ExprPtr expr;
  if (tokens_.skip_op("-")) {
    expr = make_expr(ExprKind::kNegate, line, unary(false));
  } else if (tokens_.skip_op("+")) {
    expr = make_expr(ExprKind::kPlus, line, unary(false));
  } else {
    expr = primary();
  }
  expr = postfix_.subscripts_and_calls(std::move(expr));
  return with_filter ? postfix_.filters_and_tests(std::move(expr)) : std::move(expr);
}

// ---- Primaries

ExprPtr ExpressionParser::primary(bool with_namespace) {
  const Token& token = tokens_.current();
  switch (token.type) {
    case TokenType::kName:
      return name_or_constant(with_namespace);
    case TokenType::kString:
      return string_constant();
    case TokenType::kInteger:
      tokens_.advance();
      return make_constant(token.line, Value::integer(token.integer));
    case TokenType::kFloat:
      tokens_.advance();
      return make_constant(token.line, Value::number(token.number));
    case TokenType::kOperator:
      if (tokens_.skip_op("(")) {
        ExprPtr expr = tuple(true, {}, true);
        tokens_.expect_op(")");
        return expr;
      }
      if (token.is_op("[")) return list();
      if (token.is_op("{")) return dict();
      [[fallthrough]];
    default:
      fail(fmt::format("unexpected '{}'", describe(token)), token.line);
  }
}

ExprPtr ExpressionParser::name_or_constant(bool with_namespace) {
  const Token& token = tokens_.advance();
  const std::string& name = token.text;
  if (name == "true" || name == "True") return make_constant(token.line, Value::boolean(true));
  if (name == "false" || name == "False") return make_constant(token.line, Value::boolean(false));
  if (name == "none" || name == "None") return make_constant(token.line, Value());
  ExprPtr expr = make_expr(ExprKind::kName, token.line);
  expr->symbol = symbols_.intern(name);
  if (with_namespace && tokens_.skip_op(".")) {
    expr->kind = ExprKind::kNamespaceRef;
    expr->name = tokens_.expect_identifier();
  }
  return expr;
}

ExprPtr ExpressionParser::string_constant() {
  const int line = tokens_.current().line;
  std::string text;
  while (tokens_.current().type == TokenType::kString) text += tokens_.advance().text;
  return make_constant(line, Value::string(text));
}

ExprPtr ExpressionParser::list() {
  const int line = tokens_.advance().line;
  std::vector<ExprPtr> items;
  tokens_.items_until("]", [&] { items.push_back(expression()); });
  return make_expr(ExprKind::kList, line, std::move(items));
}

ExprPtr ExpressionParser::dict() {
  const int line = tokens_.advance().line;
  std::vector<ExprPtr> items;
  tokens_.items_until("}", [&] {
    items.push_back(expression());
    tokens_.expect_op(":");
    items.push_back(expression());
  });
  return make_expr(ExprKind::kDict, line, std::move(items));
}

// ---- Tuples and assignment targets

bool ExpressionParser::tuple_ends(std::string_view end_name) const {
  const Token& token = tokens_.current();
  return token.type == TokenType::kVariableEnd || token.type == TokenType::kBlockEnd ||
         token.is_op(")") || (!end_name.empty() && token.is_name(end_name));
}

ExprPtr ExpressionParser::tuple_of(const std::function<ExprPtr()>& item, std::string_view end_name,
                                   bool may_be_empty) {
  const int line = tokens_.current().line;
  std::vector<ExprPtr> items;
  bool is_tuple = false;
  while (true) {
    if (!items.empty()) tokens_.expect_op(",");
    if (tuple_ends(end_name)) break;
    items.push_back(item());
    if (!tokens_.current().is_op(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !items.empty()) return std::move(items[0]);
  if (!is_tuple && !may_be_empty)
    fail(fmt::format("Expected an expression, got '{}'", describe(tokens_.current())), line);
  return make_expr(ExprKind::kTuple, line, std::move(items));
}

ExprPtr ExpressionParser::tuple(bool with_condition, std::string_view end_name,
                                bool parenthesised) {
  return tuple_of([&] { return expression(with_condition); }, end_name, parenthesised);
}

namespace {

void check_target(const Expr& target) {
  if (target.kind == ExprKind::kTuple) {
    for (const ExprPtr& item : target.operands) check_target(*item);
  } else if (target.kind != ExprKind::kName && target.kind != ExprKind::kNamespaceRef) {
    fail("can't assign to this expression", target.line);
  }
}

}  // namespace

ExprPtr ExpressionParser::assignment_target(std::string_view end_name, bool with_namespace) {
  ExprPtr target = tuple_of([&] { return primary(with_namespace); }, end_name, false);
  check_target(*target);
  return target;
}

}  // namespace sftrun::templates::jinja
