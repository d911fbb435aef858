#pragma once

#include <stdexcept>
#include <string>

namespace sftrun::text::jinja {

/// What went wrong in a template. The interpreter knows the line; the public API turns this into a
/// DataError.
class TemplateError : public std::runtime_error {
 public:
  explicit TemplateError(const std::string& message, int line = 0)
      : std::runtime_error(message), line_(line) {}
  int line() const { return line_; }  ///< 1-based; 0: where the interpreter stands

 private:
  int line_;
};

[[noreturn]] inline void fail(const std::string& message, int line = 0) {
  throw TemplateError(message, line);
}

}  // namespace sftrun::text::jinja
