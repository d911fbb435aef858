#pragma once

#include "answering_model.h"
#include "sftrun/config/run_config.h"
#include "sftrun/data/text_model.h"
#include "turn_writer.h"

namespace sftrun::engine {

/// The ranks write with the weights that train. Answers are dealt to the copies of the model in turn.
class OwnTurns final : public TurnWriter {
 public:
  /// All of them must outlive this object.
  OwnTurns(const config::RunConfig& config, const data::TextModel& text,
           const AnsweringModel::Inputs& model)
      : config_(config), text_(text), model_(model) {}

  int write(const Turns& turns) override;
  void rehearse(int64_t length) override;

 private:
  const config::RunConfig& config_;
  const data::TextModel& text_;
  AnsweringModel model_;
};

}  // namespace sftrun::engine
