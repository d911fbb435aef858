#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sftrun/serve/answer_channel.h"
#include "sftrun/serve/completion_request.h"
#include "sftrun/serve/served_model.h"

namespace sftrun::serve {

/// Turns the events of a request into OpenAI's objects: one for the whole response, or a chunk for
/// each event of a stream.
class Answers {
 public:
  /// @param created Unix time   @param model, request must outlive this object
  Answers(const CompletionRequest& request, const ServedModel& model, std::string id,
          int64_t created);

  /// @return the chunks of this event, which a stream sends; maybe none
  std::vector<Json> add(const AnswerEvent& event);
  bool is_complete() const { return num_unfinished_ == 0; }
  /// The response to a request without `stream`.   @pre is_complete
  Json whole() const;
  /// The chunk with the numbers of tokens that ends a stream.
  Json usage_chunk() const;

 private:
  /// Of one answer, or what is new of it.
  struct Choice {
    std::string text, finish_reason;
    std::vector<Json> logprobs;  ///< an entry for each token: see `logprobs_json`
  };

  Json entry_of(int32_t token, const model::TokenLogprobs* logprobs) const;
  void add_prompt(Choice& fresh, size_t index, const AnswerEvent& event) const;
  Json logprobs_json(const std::vector<Json>& entries, size_t first_char) const;
  Json head(bool is_chunk) const;
  Json choice_json(size_t index, const Choice& choice, bool is_chunk, size_t first_char) const;
  Json usage() const;
  const std::vector<int32_t>& prompt_of(size_t index) const;

  const CompletionRequest& request_;
  const ServedModel& model_;
  std::string id_;
  int64_t created_;
  std::vector<Choice> choices_;
  std::vector<bool> is_begun_;     // of each choice
  std::vector<size_t> num_chars_;  // of each choice's tokens
  size_t num_unfinished_ = 0, num_tokens_ = 0;
};

}  // namespace sftrun::serve
