#include "interview.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>

#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"

namespace sftrun::app {
namespace {

std::string complaint_about(const Question& question, std::string& answer) {
  return question.check ? question.check(answer) : "";
}

}  // namespace

Interview::Interview(bool takes_defaults)
    : is_interactive_(!takes_defaults && ::isatty(STDIN_FILENO) == 1 &&
                      ::isatty(STDOUT_FILENO) == 1) {}

std::string Interview::ask(const Question& question,
                           const std::optional<std::string>& given) const {
  if (given) {
    std::string answer = *given;
    if (const std::string complaint = complaint_about(question, answer); !complaint.empty())
      throw ConfigError(complaint, fmt::format("{} on the command line", question.flag),
                        question.initial ? fmt::format("write, for example, {} {}", question.flag,
                                                       shell_word(*question.initial))
                                         : fmt::format("give {}: {}", question.flag, question.why));
    return answer;
  }
  if (is_interactive_) return ask_at_terminal(question);
  if (question.initial) {
    fmt::print("{}: {} ({})\n", question.text, *question.initial, question.why);
    return *question.initial;
  }
  throw ConfigError(fmt::format("`config init` has no answer to \"{}\"", question.text),
                    "the command line", fmt::format("give {}: {}", question.flag, question.why));
}

std::string Interview::ask_at_terminal(const Question& question) const {
  while (true) {
    fmt::print("\n{} ({})\n  {}{}: ", question.text, question.flag, question.why,
               question.initial ? fmt::format(" [{}]", *question.initial) : "");
    std::fflush(stdout);
    std::string line;
    if (!std::getline(std::cin, line))
      throw ConfigError("the input ended before the last question; nothing was written",
                        "the terminal", "answer all questions, or take the defaults with --yes");
    std::string answer(trim(line));
    if (answer.empty() && question.initial) answer = *question.initial;
    const std::string complaint =
        answer.empty() ? "an answer is needed" : complaint_about(question, answer);
    if (complaint.empty()) return answer;
    fmt::print("  {}\n", complaint);
  }
}

}  // namespace sftrun::app
