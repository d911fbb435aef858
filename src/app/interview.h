#pragma once

#include <functional>
#include <optional>
#include <string>

/// Questions of `sftrun config init`: answered by a flag, at the terminal, or by the default.
namespace sftrun::app {

/// A complaint about an answer, or "". May rewrite it.
using AnswerCheck = std::function<std::string(std::string&)>;

struct Question {
  std::string flag;                    ///< "--epochs"
  std::string text;                    ///< "Passes over the data"
  std::string why;                     ///< of the default, or what the answer is good for
  std::optional<std::string> initial;  ///< the default; nullopt: there is none
  AnswerCheck check;                   ///< empty: every answer is accepted
};

class Interview {
 public:
  /// @param takes_defaults --yes: nothing is asked. Nothing is asked without a terminal, either.
  explicit Interview(bool takes_defaults);

  /// @param given by the flag
  /// @throws ConfigError naming the flag if its value is not accepted, or if there is neither an
  /// answer nor a default
  std::string ask(const Question& question, const std::optional<std::string>& given) const;

 private:
  std::string ask_at_terminal(const Question& question) const;
  bool is_interactive_;
};

}  // namespace sftrun::app
