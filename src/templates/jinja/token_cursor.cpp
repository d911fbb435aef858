#include "jinja/token_cursor.h"

#include <fmt/format.h>

namespace sftrun::templates::jinja {

TokenCursor::Nesting::Nesting(TokenCursor& tokens) : tokens_(tokens) {
  constexpr int kMaxSyntaxDepth = 200;
  if (++tokens_.depth_ > kMaxSyntaxDepth) {
    --tokens_.depth_;
    fail("the template is nested too deeply", tokens_.current().line);
  }
}

const Token& TokenCursor::advance() {
  const Token& token = tokens_[at_];
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}
bool TokenCursor::skip_op(std::string_view op) {
  if (!current().is_op(op)) return false;
  advance();
  return true;
}
bool TokenCursor::skip_name(std::string_view name) {
  if (!current().is_name(name)) return false;
  advance();
  return true;
}
void TokenCursor::fail_expected(std::string_view what) const {
  if (current().type == TokenType::kEnd) {
    fail(fmt::format("unexpected end of template, expected '{}'", what), current().line);
  }
  fail(fmt::format("expected token '{}', got '{}'", what, describe(current())), current().line);
}
void TokenCursor::expect_op(std::string_view op) {
  if (!skip_op(op)) fail_expected(op);
}
void TokenCursor::expect_name(std::string_view name) {
  if (!skip_name(name)) fail_expected(name);
}
void TokenCursor::expect(TokenType type, const char* what) {
  if (current().type != type) fail_expected(what);
  advance();
}
std::string TokenCursor::expect_identifier() {
  if (current().type != TokenType::kName) fail_expected("name");
  return advance().text;
}

}  // namespace sftrun::templates::jinja
