#include "sftrun/reward/outside_program.h"

#include <fmt/format.h>

#include <utility>

#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/strings.h"

namespace sftrun::reward {
namespace {

using launch::LineAnswers;

std::string with_errors(const LineAnswers& said) {
  if (said.last_errors.empty()) return "; it wrote nothing to its standard error";
  std::string text = "; the end of its standard error:";
  for (const std::string& line : split(said.last_errors, '\n')) text += "\n    " + excerpt(line);
  return text;
}

}  // namespace

OutsideProgram::OutsideProgram(OutsideProgramOptions options)
    : options_(std::move(options)),
      program_({.command = options_.command,
                .should_stop = options_.should_stop,
                .on_error_line =
                    [label = options_.label](std::string_view line) {
                      if (!trim(line).empty()) log::debug("{}: {}", label, excerpt(trim(line)));
                    },
                .guard = options_.guard}) {
  const std::string why = missing_program(options_.command);
  if (!why.empty())
    throw ConfigError(fmt::format("{} cannot run: {}", options_.name, why), place(),
                      "correct the command; paths in it begin at the working directory");
}

std::string OutsideProgram::place() const {
  return options_.where.empty() ? excerpt(options_.command)
                                : fmt::format("{} ({})", excerpt(options_.command), options_.where);
}

std::string OutsideProgram::advice() const {
  return fmt::format(
      "run the command by hand: for each JSON object on a line of its standard input it prints {} "
      "on "
      "a line of its standard output, nothing else, and flushes it",
      options_.answer);
}

/// Maybe after restarts.
std::vector<std::string> OutsideProgram::ask(const std::vector<std::string>& lines) {
  for (int64_t restart = 0;; ++restart) {
    LineAnswers said = attempt(lines);
    switch (said.end) {
      case LineAnswers::End::kComplete:
        return std::move(said.lines);
      case LineAnswers::End::kTooMany:
        refuse_extra(said);
      case LineAnswers::End::kStopped:
        throw Error(ExitCode::kInterrupted, fmt::format("{} {}", options_.name, said.what),
                    place());
      case LineAnswers::End::kEnded:
      case LineAnswers::End::kLate:
        break;
    }
    if (restart == options_.max_restarts) give_up(said);
    log::warn("{} {}; it is started again ({} of {})", options_.name, said.what, restart + 1,
              options_.max_restarts);
  }
}

LineAnswers OutsideProgram::attempt(const std::vector<std::string>& lines) {
  try {
    return program_.ask(lines, options_.timeout_s);
  } catch (const DeviceError& error) {  // no process or pipe could be made
    throw DeviceError(fmt::format("{} {}", options_.name, error.message()), place(), error.fix());
  }
}

void OutsideProgram::finish() {
  const LineAnswers rest = program_.finish();
  if (rest.end == LineAnswers::End::kTooMany) refuse_extra(rest);
  if (rest.end == LineAnswers::End::kEnded)
    log::warn("{} {} after its last answer", options_.name, rest.what);
}

void OutsideProgram::give_up(const LineAnswers& said) const {
  throw DeviceError(
      fmt::format(
          "{} {}{}{}", options_.name, said.what,
          options_.max_restarts > 0
              ? fmt::format(" (the last of {})",
                            counted(static_cast<size_t>(options_.max_restarts) + 1, "attempt"))
              : "",
          with_errors(said)),
      place(),
      said.end == LineAnswers::End::kLate
          ? fmt::format("flush standard output after each line, or raise `{}`",
                        options_.timeout_key)
          : advice());
}

void OutsideProgram::refuse_extra(const LineAnswers& said) const {
  throw DataError(
      fmt::format("{} {}: `{}`", options_.name, said.what, said.extra), place(),
      fmt::format("write messages to standard error, and {} for each record", options_.answer));
}

}  // namespace sftrun::reward
