#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "answering_model.h"
#include "environment.h"
#include "sftrun/config/run_config.h"
#include "sftrun/data/dataset.h"
#include "sftrun/reward/rewards.h"
#include "sftrun/train/evaluation.h"
#include "sftrun/train/rollout_batches.h"
#include "text_generator.h"

namespace sftrun::engine {

/// Whether rewards can judge answers to all prompts of a run: each record has what its functions read.
/// @throws DataError naming the record, ConfigError for a setting that cannot be used here
void require_judgeable(const config::RunConfig& config, const data::Dataset& prompts);

/// Writes the answers of `train.rollouts`, and judges them. Answers are dealt to the ranks in turn, and
/// each rank judges those that it wrote. What is written depends only on weights, prompts, seed and
/// step, and by rounding on the number of ranks: a run that is resumed writes the same again.
class Rollouts {
 public:
  struct Inputs {
    const config::RunConfig& config;
    const data::TextModel& text;
    const data::Dataset& train;
    const data::Dataset* val;  ///< null: no evaluation
    AnsweringModel::Inputs model;
    std::filesystem::path run_dir;
  };
  /// All of them must outlive this object.
  explicit Rollouts(const Inputs& inputs);

  /// Takes the memory of answers and gives it back.   @throws NoMemoryForAnswers   All ranks call it.
  void rehearse();
  /// Answers prompts of the training data, and keeps some answers of logged steps in the run directory.
  /// All ranks call it.
  train::Rollout write(int64_t step, const std::vector<int64_t>& prompts);
  /// Answers each prompt of the validation data once, always with the same random numbers.
  /// @param step steps that are done
  train::AnswerEvaluation evaluate(int64_t step);
  /// Ends what rewards and environment have started.
  void finish();
  /// Throws what a reward or the environment of this rank threw. `write` and `evaluate` then gave the
  /// exit code of a failure on every rank, so that a checkpoint could be written before.
  void throw_failure() const;

 private:
  struct Task;
  struct Conversation;
  struct Judged;
  using Conversations = std::map<size_t, Conversation>;
  train::Rollout answer(const Task& task);
  int guarded(const std::function<int()>& work);
  int converse(const Task& task, Conversations& own);
  int write_turns(const Task& task, int64_t turn, const std::vector<size_t>& open,
                  Conversations& own);
  int hear(const Task& task, Conversations& own);
  void add(const Task& task, Conversation& conversation, const std::optional<OutsideTurn>& turn,
           size_t index) const;
  int judge(const Task& task, const Conversations& own, std::vector<Judged>& judged);
  Judged judged_of(const Task& task, size_t index, const Conversation& conversation) const;
  void keep_samples(const Task& task, const std::vector<Judged>& all) const;
  TextGenerator generator_of(uint64_t number, int64_t turn) const;

  Inputs in_;
  AnsweringModel model_;
  reward::Rewards rewards_;
  std::optional<Environment> environment_;
  std::exception_ptr failure_;  // of this rank; null: none
};

}  // namespace sftrun::engine
