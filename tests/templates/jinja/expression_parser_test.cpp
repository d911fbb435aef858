#include "jinja/expression_parser.h"

#include <gtest/gtest.h>

#include <string>

namespace sftrun::templates::jinja {
namespace {

/// An expression with a pair of parentheses around every operation.
std::string grouped(const Expr& expr, const SymbolTable& symbols) {
  const auto operand = [&](size_t i) { return grouped(*expr.operands[i], symbols); };
  switch (expr.kind) {
    case ExprKind::kName:
      return symbols.name(expr.symbol);
    case ExprKind::kBinary:
      return "(" + operand(0) + expr.name + operand(1) + ")";
    case ExprKind::kNegate:
      return "(-" + operand(0) + ")";
    case ExprKind::kNot:
      return "(not " + operand(0) + ")";
    case ExprKind::kOr:
      return "(" + operand(0) + " or " + operand(1) + ")";
    case ExprKind::kCondition:
      return "(" + operand(1) + " if " + operand(0) + " else " + operand(2) + ")";
    case ExprKind::kAttribute:
      return "(" + operand(0) + "." + expr.name + ")";
    case ExprKind::kFilter:
      return "(" + operand(0) + "|" + expr.name + ")";
    case ExprKind::kTest:
      return "(" + operand(0) + " is " + expr.name + ")";
    case ExprKind::kCompare: {
      std::string chain = operand(0);
      for (size_t i = 0; i < expr.operators.size(); ++i)
        chain += expr.operators[i] + operand(i + 1);
      return "(" + chain + ")";
    }
    default:
      return "?";
  }
}

std::string grouped(const std::string& source) {
  SymbolTable symbols;
  TokenCursor tokens(tokenize("{{ " + source + " }}"));
  tokens.advance();
  return grouped(*ExpressionParser(tokens, symbols).expression(), symbols);
}

TEST(ExpressionParser, GroupsByThePrecedencesOfJinja2) {
  EXPECT_EQ(grouped("a + b * c - d"), "((a+(b*c))-d)");
  EXPECT_EQ(grouped("a ** b ** c"), "((a**b)**c)") << "unlike Python";
  EXPECT_EQ(grouped("-a.b|f"), "((-(a.b))|f)");
  EXPECT_EQ(grouped("a < b + c == d"), "(a<(b+c)==d)");
  EXPECT_EQ(grouped("not a in b or c"), "((not (ainb)) or c)");
  EXPECT_EQ(grouped("a not in b"), "(anot inb)");
  EXPECT_EQ(grouped("a is defined|f"), "((a is defined)|f)");
  EXPECT_EQ(grouped("a if b else c if d else e"), "(a if b else (c if d else e))");
}

TEST(TokenCursor, StopsAtTheEndAndNamesWhatItExpects) {
  TokenCursor tokens(tokenize("{{ a"));
  while (tokens.current().type != TokenType::kEnd) tokens.advance();
  EXPECT_EQ(tokens.advance().type, TokenType::kEnd);
  try {
    tokens.expect_op(")");
    FAIL() << "nothing was thrown";
  } catch (const TemplateError& error) {
    EXPECT_STREQ(error.what(), "unexpected end of template, expected ')'");
  }
}

}  // namespace
}  // namespace sftrun::templates::jinja
