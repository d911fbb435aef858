#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "jinja/ast.h"
#include "jinja/lexer.h"

namespace sftrun::templates::jinja {

/// The expression half of the parser: jinja2's grammar and precedences, by recursive descent.
class ExpressionParser {
 public:
  ExpressionParser(std::vector<Token> tokens, SymbolTable& symbols)
      : tokens_(std::move(tokens)), symbols_(symbols) {}

 protected:
  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const Token& advance();
  bool skip_op(std::string_view op);
  bool skip_name(std::string_view name);
  void expect_op(std::string_view op);
  void expect_name(std::string_view name);
  void expect(TokenType type, const char* what);
  std::string expect_identifier();
  [[noreturn]] void fail_expected(std::string_view what) const;

  ExprPtr expression(bool with_condition = true);
  /// One expression, or several with commas between: a tuple. Ends before `end_name`, if given.
  ExprPtr tuple(bool with_condition = true, std::string_view end_name = {},
                bool parenthesised = false);
  /// A name, a tuple of names, or (with_namespace) a namespace's attribute.
  ExprPtr assignment_target(std::string_view end_name, bool with_namespace);
  ExprPtr filters(ExprPtr operand, bool start_inline);
  ExprPtr node(ExprKind kind, int line, std::vector<ExprPtr> operands = {}) const;
  Symbol intern(const std::string& name) { return symbols_.intern(name); }

  /// Bounds the recursion of nested syntax.
  class Nesting {
   public:
    Nesting(ExpressionParser& parser);
    ~Nesting() { --parser_.depth_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    ExpressionParser& parser_;
  };

 private:
  ExprPtr condition();
  ExprPtr disjunction();
  ExprPtr conjunction();
  ExprPtr negation();
  ExprPtr comparison();
  ExprPtr sum();
  ExprPtr concatenation();
  ExprPtr product();
  ExprPtr power();
  ExprPtr unary(bool with_filter = true);
  ExprPtr primary(bool with_namespace = false);
  ExprPtr name_or_constant(bool with_namespace);
  ExprPtr string_constant();
  ExprPtr list();
  ExprPtr dict();
  ExprPtr postfix(ExprPtr operand);
  ExprPtr filter_expression(ExprPtr operand);
  ExprPtr subscript(ExprPtr operand);
  ExprPtr slice(ExprPtr operand, ExprPtr start, int line);
  ExprPtr call(ExprPtr operand);
  ExprPtr test(ExprPtr operand);
  Arguments arguments();
  void set_arguments(Expr& expr, Arguments arguments) const;
  void check_depth(const Expr& expr) const;
  void argument(Arguments& arguments, int line);
  std::string dotted_name();
  bool tuple_ends(std::string_view end_name) const;
  ExprPtr simple_tuple(std::string_view end_name, bool with_namespace);
  void check_target(const Expr& target) const;

  std::vector<Token> tokens_;
  SymbolTable& symbols_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace sftrun::templates::jinja
