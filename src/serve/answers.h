#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/serve/answer_channel.h"
#include "sftrun/serve/completion_request.h"
#include "sftrun/serve/served_model.h"

namespace sftrun::serve {

/// As JSON; what is not UTF-8 is replaced.
std::string dumped(const Json& json);

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
  /// The response to a request without `stream`, as JSON.   @pre is_complete
  std::string whole() const;
  /// The chunk with the numbers of tokens that ends a stream.
  Json usage_chunk() const;

 private:
  /// A token as responses report it, in little memory: its JSON takes thirty times as much.
  struct Entry {
    int32_t token = 0;
    size_t first_char = 0;                         ///< of the choice's text
    std::optional<model::TokenLogprobs> logprobs;  ///< not of a prompt's first token
  };
  /// Of one answer, or what is new of it.
  struct Choice {
    std::string text, finish_reason;
    std::vector<Entry> entries;
    std::vector<int32_t> token_ids;  ///< of the answer alone, stop tokens included
    bool begins = false;             ///< it has the answer's first part
  };

  std::string bytes_of(int32_t token) const;
  Json named(int32_t token, const Json& logprob) const;
  Json chat_entry(const Entry& entry) const;
  void add_prompt(Choice& fresh, const AnswerEvent& event);
  std::vector<Json> chunks_of(size_t index, const Choice& fresh) const;
  void add_token_ids(Json& json, size_t index, const Choice& choice) const;
  Json logprobs_json(const Choice& choice) const;
  Json head(bool is_chunk) const;
  Json choice_json(size_t index, const Choice& choice, bool is_chunk) const;
  Json usage() const;
  size_t prompt_index(size_t choice) const;

  const CompletionRequest& request_;
  const ServedModel& model_;
  std::string id_;
  int64_t created_;
  std::vector<Choice> choices_;
  std::vector<bool> is_begun_;  // of each choice
  size_t num_unfinished_ = 0, num_tokens_ = 0;
};

}  // namespace sftrun::serve
