#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/app/requests/parts.h"
#include "sftrun/data/text_model.h"
#include "sftrun/model/generate.h"
#include "sftrun/tokenizer/generated_text.h"

namespace sftrun::engine {

struct Answer {
  std::string text;  ///< up to the stop text
  size_t num_tokens = 0;
  bool stopped = false;  ///< at a stop token or stop text; false: max_new_tokens reached
  /// If the options keep log-probabilities: all tokens that were generated, a stop token included,
  /// and as many log-probabilities.
  std::vector<int32_t> token_ids = {};
  std::vector<model::DrawnLogprob> logprobs = {};
  const char* finish_reason() const { return stopped ? "stop" : "length"; }
};

/// As model::GenerationHooks, with texts.
struct AnswerHooks {
  std::function<std::optional<model::Prompt>()> next_prompt;
  std::function<void(size_t, Answer&&)> on_answer;
  /// Called after each token: what cannot change any more. May be empty.
  std::function<void(std::string_view)> on_text = {};
  std::function<bool(size_t)> before_step = {};
};

/// Generates texts that end at stop tokens and stop texts.
class TextGenerator {
 public:
  /// @param stops texts; a control token stops as a token   @param text must outlive this object
  TextGenerator(const data::TextModel& text, model::SamplingOptions options,
                const std::vector<std::string>& stops);

  /// @param ranks as of model::generate
  void run(model::Decoder& decoder, size_t batch_size, const AnswerHooks& hooks,
           layers::CopyRanks* ranks = nullptr) const;

 private:
  Answer answer_of(model::Generation&& generation, const tokenizer::GeneratedText* text) const;

  const data::TextModel& text_;
  model::SamplingOptions options_;
  std::vector<std::string> stop_texts_;
};

model::SamplingOptions sampling_options(const app::SamplingRequest& request);

}  // namespace sftrun::engine
