#pragma once

#include <stdexcept>
#include <string>

namespace sftrun::templates::jinja {

/// An error in a template. The runtime knows the line; the public API converts it to a
/// DataError.
class TemplateError : public std::runtime_error {
 public:
  explicit TemplateError(const std::string& message, int line = 0)
      : std::runtime_error(message), line_(line) {}
  int line() const { return line_; }  ///< from 1; 0: the line of the runtime

 private:
  int line_;
};

/// The template used up the work that one render may take. Another render takes as long.
class WorkLimitError : public TemplateError {
 public:
  WorkLimitError() : TemplateError("the template takes too many steps (limit reached)") {}
};

[[noreturn]] inline void fail(const std::string& message, int line = 0) {
  throw TemplateError(message, line);
}

}  // namespace sftrun::templates::jinja
