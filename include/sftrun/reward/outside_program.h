#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sftrun/config/run_config.h"
#include "sftrun/launch/line_program.h"

namespace sftrun::reward {

/// `train.rollouts.environment`, for messages.
inline constexpr const char *kEnvironmentProgram = "the program of the environment",
                            *kEnvironmentSetting = "train.rollouts.environment";

struct OutsideProgramOptions {
  std::string name;     ///< for messages: "the program of the reward judge"
  std::string label;    ///< of its standard error in the log: "judge"
  std::string command;  ///< for `sh -c`
  std::string where;    ///< where it was named, for errors; empty: unknown
  double timeout_s = 60;
  int64_t max_restarts = 2;  ///< for the lines of one call
  std::string answer;        ///< what it prints for each line: "one number"
  std::string timeout_key;   ///< the setting to raise, for errors
  std::function<bool()> should_stop = {};
  std::string guard = "/proc/self/exe";
};

/// Why the shell would not find what a command runs: "./judge.py does not exist"; empty: it finds it, or the command says that
/// only as it runs (variables, quotes, several commands). Of an interpreter (python3, bash, node, …) the same of its script.
/// @param command for `sh -c`
std::string missing_program(const std::string& command);
/// @throws ConfigError if the program of `callbacks.command` cannot run
void require_program(const config::CallbacksConfig& callbacks);

/// A program of the user that answers each line with one, started again where it ends or hangs
/// (launch::LineProgram). Not thread-safe.
class OutsideProgram {
 public:
  /// @throws ConfigError for a command whose program is missing or may not be executed
  explicit OutsideProgram(OutsideProgramOptions options);

  /// One answer to each line.
  /// @throws DeviceError for a program that ended or hung too often; DataError for more lines than it
  /// was asked for; Error (130) if `should_stop` returned true
  std::vector<std::string> ask(const std::vector<std::string>& lines);
  /// Ends it.   @throws DataError for output beside its answers
  void finish();
  /// "python3 judge.py (rewards.yaml:3:5)", for errors.
  std::string place() const;
  std::string advice() const;  ///< how to try it by hand

 private:
  launch::LineAnswers attempt(const std::vector<std::string>& lines);
  [[noreturn]] void give_up(const launch::LineAnswers& said) const;
  [[noreturn]] void refuse_extra(const launch::LineAnswers& said) const;

  OutsideProgramOptions options_;
  launch::LineProgram program_;
};

}  // namespace sftrun::reward
