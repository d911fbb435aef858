#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "answering_model.h"
#include "question.h"
#include "sftrun/config/run_config.h"
#include "sftrun/data/dataset.h"
#include "sftrun/train/evaluation.h"
#include "text_generator.h"

namespace sftrun::engine {

/// Answers the validation prompts with the weights of a training run, and scores the answers
/// (`train.predict_with_generate`). The ranks share the prompts, which are taken from the tokenised
/// data once; ranks that have one copy of the model together answer the same ones.
class TrainingAnswers {
 public:
  struct Inputs {
    const config::TrainConfig& config;
    const data::TextModel& text;
    const data::Dataset& val;
    AnsweringModel::Inputs model;
  };
  /// All of them must outlive this object.
  explicit TrainingAnswers(const Inputs& inputs);

  /// Takes the memory of an evaluation and gives it back, so that a lack of it shows when the run
  /// starts, not hours later. Then the weights are gathered unit by unit, where they are sharded; if
  /// that does not help, evaluations have no answers, with one warning. All ranks call it.
  /// @throws NoMemoryForAnswers if answers choose the best model
  void rehearse();

  /// A strategy that shards the weights gathers them on each rank meanwhile. All ranks call it.
  /// @param step of the run   @param allowed_s see `train::answer_seconds_allowed`. The first
  /// answers show how long all take; too long: rank 0 logs that there are none, and why.
  /// @param lost examples whose images cannot be read: they are asked no more
  train::AnswerEvaluation evaluate(int64_t step, double allowed_s,
                                   const std::set<int64_t>& lost = {});

 private:
  struct Turn;
  void leave_out(const std::set<int64_t>& lost);
  int answer(const std::vector<size_t>& examples, const std::string& name, Turn& turn);
  int answer_in_time(Turn& turn);
  bool has_time(Turn& turn, double seconds, const char* what) const;
  observe::AnswerMetrics scores_of(const std::map<size_t, Answer>& answers) const;
  std::string samples_of(const std::map<size_t, Answer>& answers) const;

  Inputs in_;
  AnsweringModel model_;
  TextGenerator generator_;
  std::vector<size_t> asked_;  // examples
  size_t num_first_;           // of which the answers show how long one takes
  std::map<size_t, Question> questions_;
  double seconds_per_answer_ = 0;                   // as last measured; 0: not yet
  std::map<size_t, std::string> before_, prompts_;  // of the samples: answers before the first step
};

}  // namespace sftrun::engine
