#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "jinja/value.h"

/// Splits template source into tokens, like jinja2's lexer with trim_blocks and lstrip_blocks.
namespace sftrun::templates::jinja {

enum class TokenType : uint8_t {
  kData,
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenType type = TokenType::kEnd;
  int line = 1;
  std::string text;  ///< name, operator, or the value of data and string
  Int integer = 0;
  double number = 0;

  bool is_op(std::string_view op) const { return type == TokenType::kOperator && text == op; }
  bool is_name(std::string_view name) const { return type == TokenType::kName && text == name; }
};

/// jinja2's name of a token in its messages.
std::string describe(const Token& token);

/// Ends with one kEnd token. @throws TemplateError with the line.
std::vector<Token> tokenize(std::string_view source);

}  // namespace sftrun::templates::jinja
