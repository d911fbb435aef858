#include "jinja/expression_parser.h"

#include <fmt/format.h>

#include <algorithm>

namespace sftrun::templates::jinja {
namespace {

constexpr int kMaxSyntaxDepth = 200;      ///< of the parser's own recursion
constexpr int kMaxExpressionDepth = 300;  ///< of the tree it makes (long chains grow it too)

int depth_of(const ExprPtr& expr) {
  return expr ? expr->depth : 0;
}

}  // namespace

ExpressionParser::Nesting::Nesting(ExpressionParser& parser) : parser_(parser) {
  if (++parser_.depth_ > kMaxSyntaxDepth) {
    --parser_.depth_;
    fail("the template is nested too deeply", parser_.current().line);
  }
}

const Token& ExpressionParser::advance() {
  const Token& token = tokens_[at_];
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}
bool ExpressionParser::skip_op(std::string_view op) {
  if (!current().is_op(op)) return false;
  advance();
  return true;
}
bool ExpressionParser::skip_name(std::string_view name) {
  if (!current().is_name(name)) return false;
  advance();
  return true;
}
void ExpressionParser::fail_expected(std::string_view what) const {
  if (current().type == TokenType::kEnd) {
    fail(fmt::format("unexpected end of template, expected '{}'", what), current().line);
  }
  fail(fmt::format("expected token '{}', got '{}'", what, describe(current())), current().line);
}
void ExpressionParser::expect_op(std::string_view op) {
  if (!skip_op(op)) fail_expected(op);
}
void ExpressionParser::expect_name(std::string_view name) {
  if (!skip_name(name)) fail_expected(name);
}
void ExpressionParser::expect(TokenType type, const char* what) {
  if (current().type != type) fail_expected(what);
  advance();
}
std::string ExpressionParser::expect_identifier() {
  if (current().type != TokenType::kName) fail_expected("name");
  return advance().text;
}

ExprPtr ExpressionParser::node(ExprKind kind, int line, std::vector<ExprPtr> operands) const {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->line = line;
  for (const ExprPtr& operand : operands)
    expr->depth = std::max(expr->depth, depth_of(operand) + 1);
  check_depth(*expr);
  expr->operands = std::move(operands);
  return expr;
}

void ExpressionParser::check_depth(const Expr& expr) const {
  if (expr.depth > kMaxExpressionDepth)
    fail("an expression is nested too deeply or too long", expr.line);
}

void ExpressionParser::set_arguments(Expr& expr, Arguments arguments) const {
  const auto grow = [&expr](const ExprPtr& child) {
    expr.depth = std::max(expr.depth, depth_of(child) + 1);
  };
  for (const ExprPtr& child : arguments.positional) grow(child);
  for (const auto& [name, child] : arguments.named) grow(child);
  grow(arguments.star);
  grow(arguments.double_star);
  check_depth(expr);
  expr.arguments = std::make_unique<Arguments>(std::move(arguments));
}

namespace {

template <typename... Exprs>
std::vector<ExprPtr> operands(Exprs... exprs) {
  std::vector<ExprPtr> list;
  (list.push_back(std::move(exprs)), ...);
  return list;
}

}  // namespace

ExprPtr ExpressionParser::expression(bool with_condition) {
  const Nesting nesting(*this);
  return with_condition ? condition() : disjunction();
}

ExprPtr ExpressionParser::condition() {
  const Nesting nesting(*this);
  ExprPtr then = disjunction();
  while (current().is_name("if")) {
    const int line = advance().line;
    ExprPtr tested = disjunction();
    ExprPtr otherwise = skip_name("else") ? condition() : nullptr;
    then = node(ExprKind::kCondition, line,
                operands(std::move(tested), std::move(then), std::move(otherwise)));
  }
  return then;
}

ExprPtr ExpressionParser::disjunction() {
  ExprPtr left = conjunction();
  while (current().is_name("or")) {
    const int line = advance().line;
    left = node(ExprKind::kOr, line, operands(std::move(left), conjunction()));
  }
  return left;
}

ExprPtr ExpressionParser::conjunction() {
  ExprPtr left = negation();
  while (current().is_name("and")) {
    const int line = advance().line;
    left = node(ExprKind::kAnd, line, operands(std::move(left), negation()));
  }
  return left;
}

ExprPtr ExpressionParser::negation() {
  if (!current().is_name("not")) return comparison();
  const Nesting nesting(*this);
  const int line = advance().line;
  return node(ExprKind::kNot, line, operands(negation()));
}

ExprPtr ExpressionParser::comparison() {
  const int line = current().line;
  std::vector<ExprPtr> sides;
  std::vector<std::string> operators;
  sides.push_back(sum());
  while (true) {
    const Token& token = current();
    constexpr std::string_view kOperators[] = {"==", "!=", "<", "<=", ">", ">="};
    const bool is_operator =
        token.type == TokenType::kOperator &&
        std::find(std::begin(kOperators), std::end(kOperators), token.text) != std::end(kOperators);
    if (is_operator) {
      operators.push_back(advance().text);
    } else if (skip_name("in")) {
      operators.emplace_back("in");
    } else if (token.is_name("not") && ahead().is_name("in")) {
      advance();
      advance();
      operators.emplace_back("not in");
    } else {
      break;
    }
    sides.push_back(sum());
  }
  if (operators.empty()) return std::move(sides[0]);
  ExprPtr compare = node(ExprKind::kCompare, line, std::move(sides));
  compare->operators = std::move(operators);
  return compare;
}

ExprPtr ExpressionParser::sum() {
  ExprPtr left = concatenation();
  while (current().is_op("+") || current().is_op("-")) {
    const Token& op = advance();
    left = node(ExprKind::kBinary, op.line, operands(std::move(left), concatenation()));
    left->name = op.text;
  }
  return left;
}

ExprPtr ExpressionParser::concatenation() {
  const int line = current().line;
  std::vector<ExprPtr> parts;
  parts.push_back(product());
  while (skip_op("~")) parts.push_back(product());
  if (parts.size() == 1) return std::move(parts[0]);
  return node(ExprKind::kConcat, line, std::move(parts));
}

ExprPtr ExpressionParser::product() {
  ExprPtr left = power();
  while (current().is_op("*") || current().is_op("/") || current().is_op("//") ||
         current().is_op("%")) {
    const Token& op = advance();
    left = node(ExprKind::kBinary, op.line, operands(std::move(left), power()));
    left->name = op.text;
  }
  return left;
}

ExprPtr ExpressionParser::power() {
  ExprPtr left = unary();
  while (current().is_op("**")) {
    const Token& op = advance();
    left = node(ExprKind::kBinary, op.line, operands(std::move(left), unary()));
    left->name = op.text;
  }
  return left;
}

ExprPtr ExpressionParser::unary(bool with_filter) {
  const Nesting nesting(*this);
  const int line = current().line;
  ExprPtr expr;
  if (skip_op("-")) {
    expr = node(ExprKind::kNegate, line, operands(unary(false)));
  } else if (skip_op("+")) {
    expr = node(ExprKind::kPlus, line, operands(unary(false)));
  } else {
    expr = primary();
  }
  expr = postfix(std::move(expr));
  return with_filter ? filter_expression(std::move(expr)) : std::move(expr);
}

// ---- Primaries

ExprPtr ExpressionParser::primary(bool with_namespace) {
  const Token& token = current();
  switch (token.type) {
    case TokenType::kName:
      return name_or_constant(with_namespace);
    case TokenType::kString:
      return string_constant();
    case TokenType::kInteger:
    case TokenType::kFloat: {
      ExprPtr expr = node(ExprKind::kConst, token.line);
      expr->constant = token.type == TokenType::kFloat ? Value::number(token.number)
                                                       : Value::integer(token.integer);
      advance();
      return expr;
    }
    case TokenType::kOperator:
      if (skip_op("(")) {
        ExprPtr expr = tuple(true, {}, true);
        expect_op(")");
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
  const Token& token = advance();
  const auto constant = [&](Value value) {
    ExprPtr expr = node(ExprKind::kConst, token.line);
    expr->constant = std::move(value);
    return expr;
  };
  if (token.text == "true" || token.text == "True") return constant(Value::boolean(true));
  if (token.text == "false" || token.text == "False") return constant(Value::boolean(false));
  if (token.text == "none" || token.text == "None") return constant(Value());
  ExprPtr expr = node(ExprKind::kName, token.line);
  expr->symbol = intern(token.text);
  if (with_namespace && skip_op(".")) {
    expr->kind = ExprKind::kNamespaceRef;
    expr->name = expect_identifier();
  }
  return expr;
}

ExprPtr ExpressionParser::string_constant() {
  ExprPtr expr = node(ExprKind::kConst, current().line);
  std::string text;
  while (current().type == TokenType::kString) text += advance().text;
  expr->constant = Value::string(text);
  return expr;
}

ExprPtr ExpressionParser::list() {
  const int line = advance().line;
  std::vector<ExprPtr> items;
  while (!current().is_op("]")) {
    if (!items.empty()) {
      expect_op(",");
      if (current().is_op("]")) break;
    }
    items.push_back(expression());
  }
  expect_op("]");
  return node(ExprKind::kList, line, std::move(items));
}

ExprPtr ExpressionParser::dict() {
  const int line = advance().line;
  std::vector<ExprPtr> items;
  while (!current().is_op("}")) {
    if (!items.empty()) {
      expect_op(",");
      if (current().is_op("}")) break;
    }
    items.push_back(expression());
    expect_op(":");
    items.push_back(expression());
  }
  expect_op("}");
  return node(ExprKind::kDict, line, std::move(items));
}

bool ExpressionParser::tuple_ends(std::string_view end_name) const {
  const Token& token = current();
  return token.type == TokenType::kVariableEnd || token.type == TokenType::kBlockEnd ||
         token.is_op(")") || (!end_name.empty() && token.is_name(end_name));
}

ExprPtr ExpressionParser::tuple(bool with_condition, std::string_view end_name,
                                bool parenthesised) {
  const int line = current().line;
  std::vector<ExprPtr> items;
  bool is_tuple = false;
  while (true) {
    if (!items.empty()) expect_op(",");
    if (tuple_ends(end_name)) break;
    items.push_back(expression(with_condition));
    if (!current().is_op(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !items.empty()) return std::move(items[0]);
  if (!is_tuple && !parenthesised) {
    fail(fmt::format("Expected an expression, got '{}'", describe(current())), current().line);
  }
  return node(ExprKind::kTuple, line, std::move(items));
}

// ---- Assignment targets

ExprPtr ExpressionParser::simple_tuple(std::string_view end_name, bool with_namespace) {
  const int line = current().line;
  std::vector<ExprPtr> items;
  bool is_tuple = false;
  while (true) {
    if (!items.empty()) expect_op(",");
    if (tuple_ends(end_name)) break;
    items.push_back(primary(with_namespace));
    if (!current().is_op(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !items.empty()) return std::move(items[0]);
  if (!is_tuple) fail(fmt::format("Expected an expression, got '{}'", describe(current())), line);
  return node(ExprKind::kTuple, line, std::move(items));
}

void ExpressionParser::check_target(const Expr& target) const {
  if (target.kind == ExprKind::kTuple) {
    for (const ExprPtr& item : target.operands) check_target(*item);
  } else if (target.kind != ExprKind::kName && target.kind != ExprKind::kNamespaceRef) {
    fail("can't assign to this expression", target.line);
  }
}

ExprPtr ExpressionParser::assignment_target(std::string_view end_name, bool with_namespace) {
  ExprPtr target = simple_tuple(end_name, with_namespace);
  check_target(*target);
  return target;
}

}  // namespace sftrun::templates::jinja
