#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "answering_model.h"
#include "held_failure.h"
#include "sftrun/config/run_config.h"
#include "sftrun/data/text_model.h"
#include "sftrun/weights/adapter_file.h"
#include "turn_writer.h"

namespace sftrun::engine {

/// What writers of answers need of a run. All of it must outlive them.
struct TurnWriterInputs {
  const config::RunConfig& config;
  const data::TextModel& text;
  AnsweringModel::Inputs model;
  std::filesystem::path run_dir;
  std::optional<weights::AdapterConfig> adapter;  ///< that trains; nullopt: other values do
};

/// By train.rollouts.engine. Nobody else asks who writes.
std::unique_ptr<TurnWriter> make_turn_writer(const TurnWriterInputs& inputs, HeldFailure& failure);

}  // namespace sftrun::engine
