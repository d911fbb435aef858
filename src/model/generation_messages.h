#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "sftrun/layers/copy_ranks.h"
#include "sftrun/model/generation_batch.h"

namespace sftrun::model {

/// Scores of the tokens of prompts, by the index of the prompt.
using PromptScores = std::vector<std::pair<size_t, std::vector<TokenLogprobs>>>;

/// What the rank with the head finds in a pass.
struct Choices {
  std::vector<int32_t> tokens;                         ///< the next one of each row
  std::vector<std::optional<TokenLogprobs>> logprobs;  ///< of these, where they were asked for
  PromptScores prompt_scores;
  std::vector<std::vector<float>> scores;  ///< of each row, by a head of scores; no tokens then
  bool is_finite = true;                   ///< false: the logits are not, and there is nothing else
};

/// What the ranks of a copy of the model tell each other while they generate. The lead collects the
/// changes of its batch and tells them when it says what comes next.
class GenerationMessages {
 public:
  enum class Next : uint8_t { kRest, kStep, kReset, kEnd };
  struct Message {
    size_t batch = 0;  ///< number of the batch that it is for
    Next next = Next::kRest;
    nlohmann::json changes;
  };
  /// How another rank makes the changes of the lead.
  struct Changes {
    std::function<void(SequenceRequest&&)> add;
    std::function<void(size_t row)> remove;
    std::function<void(const std::function<bool(size_t)>& is_dropped)> drop;  ///< by prompt
  };

  /// @param batch number of the batch among those of the model's copies
  GenerationMessages(layers::CopyRanks& ranks, size_t batch) : ranks_(ranks), batch_(batch) {}

  bool leads() const { return ranks_.leads(); }
  layers::CopyRanks& ranks() { return ranks_; }

  // On the lead.
  void added(const SequenceRequest& request);
  void removed(size_t row);
  void dropped(const std::vector<size_t>& prompts);
  void tell(Next next);

  // On the others.
  static Message hear(layers::CopyRanks& ranks);
  static void make(const Message& message, const Changes& changes);

  /// All ranks call it.   @param own ignored but on the rank with the head
  Choices of_head(const Choices& own);

 private:
  layers::CopyRanks& ranks_;
  size_t batch_;
  nlohmann::json changes_ = nlohmann::json::array();
};

}  // namespace sftrun::model
