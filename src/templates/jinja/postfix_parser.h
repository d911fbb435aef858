#pragma once

#include <string>

#include "jinja/ast.h"
#include "jinja/token_cursor.h"

namespace sftrun::templates::jinja {

class ExpressionParser;

/// What follows an operand: attributes, subscripts and slices, calls, filters and tests.
/// @throws TemplateError with the line
class PostfixParser {
 public:
  /// @param expressions parses the expressions inside of brackets; refers to this parser in turn
  PostfixParser(TokenCursor& tokens, ExpressionParser& expressions)
      : tokens_(tokens), expressions_(expressions) {}

  /// operand.name, operand[key], operand(…), which bind tighter than unary operators.
  ExprPtr subscripts_and_calls(ExprPtr operand);
  /// operand|filter, operand is test, which bind looser.
  ExprPtr filters_and_tests(ExprPtr operand);
  /// @param operand null: the text of a block
  /// @param start_inline the first filter has no `|` before it
  ExprPtr filters(ExprPtr operand, bool start_inline);

 private:
  ExprPtr attribute(ExprPtr operand);
  ExprPtr subscript(ExprPtr operand);
  ExprPtr slice(ExprPtr operand, ExprPtr start, int line);
  ExprPtr call(ExprPtr operand);
  ExprPtr test(ExprPtr operand);
  bool at_test_operand() const;
  Arguments arguments();
  void argument(Arguments& arguments, int line);
  std::string dotted_name();

  TokenCursor& tokens_;
  ExpressionParser& expressions_;
};

}  // namespace sftrun::templates::jinja
