#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/config/run_config.h"
#include "sftrun/data/text_model.h"
#include "sftrun/reward/outside_program.h"

namespace sftrun::engine {

/// A turn that is not the model's.
struct OutsideTurn {
  std::string role = "tool";
  std::string content;
};

/// The program of `train.rollouts.environment`: it reads a conversation and says what follows the
/// model's last turn. Not thread-safe.
class Environment {
 public:
  /// @param text must outlive this object
  Environment(const config::RunConfig& config, const data::TextModel& text,
              std::function<bool()> should_stop);

  /// @param conversations JSON objects: a record with "prompt", "completion" (the model's last turn)
  /// and "turns" (all turns behind the prompt, the last one included)
  /// @return what follows each; nullopt: nothing, the conversation has ended
  /// @throws as OutsideProgram::ask; DataError for other lines than null, a text, or
  /// {"content": …, "role": …}
  std::vector<std::optional<OutsideTurn>> ask(
      const std::vector<nlohmann::ordered_json>& conversations);

  /// The tokens from the end of the model's turn to the beginning of its next one, as the chat template
  /// writes them; without one those of the turn's text.
  /// @param stop_token with which the model ended its turn, which the template writes, too
  /// @throws DataError if the template writes no such turn behind an answer
  std::vector<int32_t> tokens_between(const OutsideTurn& turn, int32_t stop_token) const;

  void finish() { program_.finish(); }

 private:
  std::string text_between(const OutsideTurn& turn) const;

  const data::TextModel& text_;
  bool is_chat_;
  nlohmann::ordered_json template_variables_;
  reward::OutsideProgram program_;
};

}  // namespace sftrun::engine
