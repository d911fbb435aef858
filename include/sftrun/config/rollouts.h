#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sftrun/config/rewards.h"

/// `train.rollouts`: between steps the model answers prompts, and is trained on its answers: on all that
/// something judges, or, beside a teacher, on those of a share of the examples.
namespace sftrun::config {

struct RolloutsConfig {
  static constexpr const char* kSelf = "self";  ///< the model that trains
  static constexpr int64_t kMaxRequests = 256;  ///< of a device to a server at the same time

  RewardSpecs reward;  ///< what judges answers; empty: nothing does
  /// Of the examples that get an answer of the model's own; unset: none does.
  std::optional<double> share;
  int64_t n = 8;               ///< answers to each prompt: a group
  int64_t num_iterations = 1;  ///< optimizer steps on the same answers
  int64_t max_new_tokens = 256;
  double temperature = 1, top_p = 1, min_p = 0;
  std::optional<int64_t> top_k;
  int64_t batch_size =
      32;  ///< answers that a device writes, or has a server write, at the same time
  /// Command of a program that answers each turn of the model; empty: an answer is one turn.
  std::string environment;
  int64_t max_turns = 4;            ///< of the model, with an environment
  double environment_timeout = 60;  ///< seconds for the turns of one batch
  std::optional<bool> chat;  ///< strings are a user's turn; unset: where there is a chat template
  int64_t num_samples = 2;   ///< groups of which `rollouts/` has the answers
  /// What writes the answers: kSelf, or the URL of an OpenAI-compatible server that takes adapters.
  std::string engine = kSelf;
  std::string engine_model;           ///< the base's name at the server; empty: model.name
  std::string engine_token_variable;  ///< with the server's token; empty: it needs none
  double engine_timeout = 300;        ///< seconds of a request

  bool are_judged() const { return !reward.empty(); }
  /// Whether tokens are drawn from another distribution than the model's own.
  bool changes_distribution() const {
    return temperature != 1 || top_p < 1 || min_p > 0 || top_k.has_value();
  }
  bool is_by_server() const { return engine != kSelf; }
  /// Whether examples have the log-probabilities with which their tokens were drawn, because the model
  /// that trains gives others.
  bool keeps_sampled_logps() const { return is_by_server() || changes_distribution(); }
};

}  // namespace sftrun::config
