#include "jinja/ast.h"

#include <algorithm>

namespace sftrun::templates::jinja {
namespace {

constexpr int kMaxExpressionDepth = 300;  // long chains of operators grow it too

void grow(Expr& expr, const ExprPtr& child) {
  if (child) expr.depth = std::max(expr.depth, child->depth + 1);
}

void check_depth(const Expr& expr) {
  if (expr.depth > kMaxExpressionDepth)
    fail("an expression is nested too deeply or too long", expr.line);
}

}  // namespace

ExprPtr make_expr(ExprKind kind, int line, std::vector<ExprPtr> operands) {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->line = line;
  for (const ExprPtr& operand : operands) grow(*expr, operand);
  check_depth(*expr);
  expr->operands = std::move(operands);
  return expr;
}

ExprPtr make_constant(int line, Value value) {
  ExprPtr expr = make_expr(ExprKind::kConst, line);
  expr->constant = std::move(value);
  return expr;
}

void set_arguments(Expr& expr, Arguments arguments) {
  for (const ExprPtr& child : arguments.positional) grow(expr, child);
  for (const auto& [name, child] : arguments.named) grow(expr, child);
  grow(expr, arguments.star);
  grow(expr, arguments.double_star);
  check_depth(expr);
  expr.arguments = std::make_unique<Arguments>(std::move(arguments));
}

}  // namespace sftrun::templates::jinja
