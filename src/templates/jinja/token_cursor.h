#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jinja/lexer.h"

namespace sftrun::templates::jinja {

/// The position in the tokens of a template, which the parsers of expressions and statements share.
/// Every `expect` throws a TemplateError if the current token is another one.
class TokenCursor {
 public:
  /// @param tokens end with a kEnd token, which is never passed
  explicit TokenCursor(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  /// The current token, which is passed.
  const Token& advance();
  bool skip_op(std::string_view op);
  bool skip_name(std::string_view name);
  void expect_op(std::string_view op);
  void expect_name(std::string_view name);
  void expect(TokenType type, const char* what);
  std::string expect_identifier();
  /// Items with commas between them, also after the last one, and the bracket that closes them.
  template <class ParseItem>
  void items_until(std::string_view bracket, ParseItem&& parse_item) {
    for (bool is_first = true; !current().is_op(bracket); is_first = false) {
      if (!is_first) expect_op(",");
      if (current().is_op(bracket)) break;
      parse_item();
    }
    expect_op(bracket);
  }

  /// Bounds the recursion of the parsers: one level for as long as it lives.
  class Nesting {
   public:
    explicit Nesting(TokenCursor& tokens);
    ~Nesting() { --tokens_.depth_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    TokenCursor& tokens_;
  };

 private:
  [[noreturn]] void fail_expected(std::string_view what) const;

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace sftrun::templates::jinja
