#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/config/rewards.h"
#include "sftrun/config/run_config.h"

/// Judges answers. config/rewards.h has a row for each function; an entry of src/reward/functions/
/// computes it.
namespace sftrun::reward {

/// An answer that is to be judged. What it refers to must outlive the call.
struct Answer {
  std::string_view text;                           ///< UTF-8
  const nlohmann::ordered_json* record = nullptr;  ///< its record, an object; not null
  nlohmann::ordered_json prompt = {};  ///< a text or a list of messages; null: the record has none
  std::optional<int64_t> num_tokens = {};                  ///< nullopt: unknown
  std::optional<std::span<const int32_t>> token_ids = {};  ///< nullopt: unknown
  std::string where = {};                                  ///< "answers.jsonl:7", for errors
};

/// The value of a function; nullopt: it has none for this answer, which does not count.
using Value = std::optional<double>;

/// What functions need of their surroundings.
struct Surroundings {
  /// Asked some times a second while a program or a server is waited for; true ends the wait.
  std::function<bool()> should_stop = {};
  bool has_user_turns = false;  ///< whether prompts that are texts are turns of a user, unless told
  /// The program that becomes the guard of programs (launch/command_guard.h): this one.
  std::string guard = "/proc/self/exe";
  double retry_delay_s = 1;  ///< before the second request to a server
  double busy_s = 300;       ///< in which a server that says that it is busy is asked again
};

/// One function with its settings. Not thread-safe.
class Function {
 public:
  virtual ~Function() = default;
  /// One value for each answer, all finite.
  /// @throws DataError for what a record lacks, and for output of a program or server that is no
  /// list of numbers; DeviceError for a program that ended or hung; CommError for a server that
  /// cannot be reached; Error (130) if `should_stop` returned true
  virtual std::vector<Value> values(std::span<const Answer> answers) = 0;
  /// Checks what the function reads of a record, before there is an answer.   @throws DataError
  virtual void check_record(const nlohmann::ordered_json& record, const std::string& where) const {
    (void)record, (void)where;
  }
  /// Before the first answer is written: asks whether what judges is there.   @throws CommError
  virtual void rehearse() {}
  /// Ends what the function runs.   @throws DataError for output beside the answers
  virtual void finish() {}
};

/// Judgement of some answers.
struct Judgement {
  std::vector<std::vector<Value>> values;  ///< [functions][answers], before weights
  /// Sum over the functions that have a value: weight * value.
  std::vector<Value> rewards;  ///< [answers]; nullopt: no function has one
};

/// All functions of a list, in its order. Not thread-safe.
class Rewards {
 public:
  /// @throws ConfigError for a setting that cannot be used here (a variable that is not set)
  Rewards(config::RewardSpecs specs, const Surroundings& surroundings);
  ~Rewards();
  Rewards(const Rewards&) = delete;
  Rewards& operator=(const Rewards&) = delete;

  const config::RewardSpecs& specs() const { return specs_; }
  /// @throws as Function::values; DataError for a weighted sum beyond 1e12
  Judgement judge(std::span<const Answer> answers);
  void check_record(const nlohmann::ordered_json& record, const std::string& where) const;
  void rehearse();
  void finish();

 private:
  config::RewardSpecs specs_;
  std::vector<std::unique_ptr<Function>> functions_;
};

/// Before anything is loaded: of the rewards and the environment of a run that judges its own answers.
/// @throws ConfigError for a program that is missing or may not be executed, as for a setting that cannot
/// be used here
void require_programs(const config::TrainConfig& train);

/// What was asked: "prompt", the messages before the last answer (of "messages", or of ShareGPT's "conversations"), or Alpaca's
/// "instruction" with its "input"; null: the record has none.
nlohmann::ordered_json prompt_of(const nlohmann::ordered_json& record);
/// What programs and servers get of an answer: {"prompt", "completion", the other keys of the
/// record}. A record's own `completion` is the reference: it becomes `reference_completion`.
nlohmann::ordered_json judged_record(const Answer& answer);

}  // namespace sftrun::reward
