#pragma once

#include <functional>
#include <initializer_list>
#include <string_view>

#include "jinja/ast.h"
#include "jinja/postfix_parser.h"
#include "jinja/token_cursor.h"

namespace sftrun::templates::jinja {

/// jinja2's grammar of expressions by recursive descent: a function for each precedence, from the
/// conditional expression down to unary operators and the operands. What follows an operand is
/// parsed by PostfixParser. @throws TemplateError with the line
class ExpressionParser {
 public:
  ExpressionParser(TokenCursor& tokens, SymbolTable& symbols)
      : tokens_(tokens), symbols_(symbols), postfix_(tokens, *this) {}

  ExprPtr expression(bool with_condition = true);
  /// One expression, or several with commas between: a tuple. Ends before `end_name`, if given.
  ExprPtr tuple(bool with_condition = true, std::string_view end_name = {},
                bool parenthesised = false);
  /// A name, a tuple of names, or (with_namespace) a namespace's attribute.
  ExprPtr assignment_target(std::string_view end_name, bool with_namespace);
  /// An operand: a name, a constant, a list, a dict, or an expression in parentheses.
  ExprPtr primary(bool with_namespace = false);
  PostfixParser& postfix() { return postfix_; }

 private:
  ExprPtr condition();
  ExprPtr disjunction();
  ExprPtr conjunction();
  ExprPtr negation();
  ExprPtr comparison();
  std::string comparison_operator();
  ExprPtr sum();
  ExprPtr concatenation();
  ExprPtr product();
  ExprPtr power();
  ExprPtr factor() { return unary(true); }
  ExprPtr unary(bool with_filter);
  using Operand = ExprPtr (ExpressionParser::*)();
  ExprPtr left_associative(std::initializer_list<std::string_view> operators, Operand operand);

  ExprPtr name_or_constant(bool with_namespace);
  ExprPtr string_constant();
  ExprPtr list();
  ExprPtr dict();
  bool tuple_ends(std::string_view end_name) const;
  ExprPtr tuple_of(const std::function<ExprPtr()>& item, std::string_view end_name,
                   bool may_be_empty);

  TokenCursor& tokens_;
  SymbolTable& symbols_;
  PostfixParser postfix_;
};

}  // namespace sftrun::templates::jinja
