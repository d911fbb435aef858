#include <fmt/format.h>

#include "makers.h"
#include "outside_value.h"
#include "sftrun/core/error.h"
#include "sftrun/core/exact_json.h"
#include "sftrun/core/log.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/strings.h"
#include "sftrun/launch/line_program.h"

namespace sftrun::reward {
namespace {

using launch::LineAnswers;

constexpr const char* kFix =
    "run the command by hand: for each JSON object on a line of its standard input it prints one "
    "number on a line of its standard output, nothing else, and flushes it";

/// A program that keeps running between batches.
class ProgramReward : public Function {
 public:
  ProgramReward(const config::RewardSpec& spec, const Surroundings& surroundings)
      : label_(spec.label),
        command_(spec.settings.at("command").get<std::string>()),
        where_(spec.where),
        timeout_s_(spec.settings.at("timeout").get<double>()),
        max_restarts_(spec.settings.at("restarts").get<int64_t>()),
        program_({.command = command_,
                  .should_stop = surroundings.should_stop,
                  .guard = surroundings.guard}) {}

  std::vector<Value> values(std::span<const Answer> answers) override {
    std::vector<std::string> lines;
    for (const Answer& answer : answers) lines.push_back(to_json_text(judged_record(answer)));
    const LineAnswers said = ask(lines);
    std::vector<Value> values(answers.size());
    for (size_t i = 0; i < answers.size(); ++i)
      if (const std::string fault = read_outside_line(said.lines[i], values[i]); !fault.empty())
        throw DataError(fmt::format("the program of the reward {} answers {} with {}", label_,
                                    answers[i].where, fault),
                        place(), kFix);
    return values;
  }

  void finish() override {
    const LineAnswers rest = program_.finish();
    if (rest.end == LineAnswers::End::kTooMany) refuse_extra(rest);
    if (rest.end == LineAnswers::End::kEnded)
      log::warn("the program of the reward {} {} after its last answer", label_, rest.what);
  }

 private:
  std::string place() const {
    return where_.empty() ? excerpt(command_) : fmt::format("{} ({})", excerpt(command_), where_);
  }

  /// One answer to each line, maybe after restarts.
  LineAnswers ask(const std::vector<std::string>& lines) {
    for (int64_t restart = 0;; ++restart) {
      LineAnswers said = attempt(lines);
      switch (said.end) {
        case LineAnswers::End::kComplete:
          return said;
        case LineAnswers::End::kTooMany:
          refuse_extra(said);
        case LineAnswers::End::kStopped:
          throw Error(ExitCode::kInterrupted,
                      fmt::format("the program of the reward {} {}", label_, said.what), place());
        case LineAnswers::End::kEnded:
        case LineAnswers::End::kLate:
          break;
      }
      if (restart == max_restarts_) give_up(said);
      log::warn("the program of the reward {} {}; it is started again ({} of {})", label_,
                said.what, restart + 1, max_restarts_);
    }
  }

  LineAnswers attempt(const std::vector<std::string>& lines) {
    try {
      return program_.ask(lines, timeout_s_);
    } catch (const DeviceError& error) {  // no process or pipe could be made
      throw DeviceError(fmt::format("the program of the reward {} {}", label_, error.message()),
                        place(), error.fix());
    }
  }

  static std::string with_errors(const LineAnswers& said) {
    if (said.last_errors.empty()) return "; it wrote nothing to its standard error";
    std::string text = "; the end of its standard error:";
    for (const std::string& line : split(said.last_errors, '\n')) text += "\n    " + excerpt(line);
    return text;
  }

  [[noreturn]] void give_up(const LineAnswers& said) const {
    throw DeviceError(
        fmt::format("the program of the reward {} {}{}{}", label_, said.what,
                    max_restarts_ > 0
                        ? fmt::format(" (the last of {})",
                                      counted(static_cast<size_t>(max_restarts_) + 1, "attempt"))
                        : "",
                    with_errors(said)),
        place(),
        said.end == LineAnswers::End::kLate
            ? "flush standard output after each line, or raise `timeout`"
            : kFix);
  }

  [[noreturn]] void refuse_extra(const LineAnswers& said) const {
    throw DataError(
        fmt::format("the program of the reward {} {}: `{}`", label_, said.what, said.extra),
        place(), "write messages to standard error, and one number for each record");
  }

  std::string label_, command_, where_;
  double timeout_s_;
  int64_t max_restarts_;
  launch::LineProgram program_;
};

}  // namespace

std::unique_ptr<Function> make_program(const config::RewardSpec& spec,
                                       const Surroundings& surroundings) {
  return std::make_unique<ProgramReward>(spec, surroundings);
}

}  // namespace sftrun::reward
