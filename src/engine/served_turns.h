#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "answering_model.h"
#include "completion_server.h"
#include "held_failure.h"
#include "served_adapter.h"
#include "sftrun/config/run_config.h"
#include "sftrun/data/text_model.h"
#include "turn_writer.h"

namespace sftrun::engine {

/// A server writes, with the adapter that trains. Each copy of the model asks for the answers that are
/// dealt to it, and its lead has them.
class ServedTurns final : public TurnWriter {
 public:
  /// All of them must outlive this object.   @param adapter of the run, as PEFT's files say it
  ServedTurns(const config::RunConfig& config, const data::TextModel& text,
              const AnsweringModel::Inputs& model, const weights::AdapterConfig& adapter,
              const std::filesystem::path& run_dir, HeldFailure& failure);

  int write(const Turns& turns) override;
  /// Asks for the server's models and one token.
  /// @throws as CompletionServer; ConfigError for a base that the server does not have, or whose context
  /// is too short
  void rehearse(int64_t length) override;
  void finish() override { adapter_.finish(); }

 private:
  void ask_for_all(const Turns& turns);
  void require_base(const std::vector<ListedModel>& models, int64_t length) const;
  Answer answer_of(ServedCompletion&& completion) const;
  uint64_t seed_of_answer(const Turns& turns, size_t answer) const;

  const config::RunConfig& config_;
  const data::TextModel& text_;
  AnsweringModel model_;
  HeldFailure& failure_;
  std::atomic<bool> has_failed_{false};  // a request of this rank
  CompletionServer server_;
  ServedAdapter adapter_;
};

}  // namespace sftrun::engine
