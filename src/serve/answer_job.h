#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/model/generation_batch.h"
#include "sftrun/serve/answer_channel.h"
#include "sftrun/serve/completion_request.h"
#include "sftrun/serve/served_model.h"
#include "sftrun/tokenizer/generated_text.h"

namespace sftrun::serve {

/// One answer, from its request to its last token.
struct AnswerJob {
  AnswerJob(const ServedModel& served, const tokenizer::GeneratedText& empty)
      : model(&served), text(empty) {}

  const ServedModel* model;
  std::shared_ptr<AnswerChannel> channel;
  size_t choice = 0;
  model::SequenceRequest request;
  tokenizer::GeneratedText text;
  size_t num_sent = 0;  ///< bytes of the text

  /// Tokens of the prompt and of the longest answer to it.
  int64_t longest() const;
  /// What of the text has not been sent.
  /// @param settled what of the text cannot change any more
  std::string take_text(std::string_view settled);
  /// An event of this answer, to which the caller adds what is new.
  AnswerEvent event() const;
  /// Sends the error to whoever waits for the answer.
  void fail(const ApiError& error) const;
};

/// The answers that a request asks for: prompt p's choices are p * num_choices, …
std::vector<std::unique_ptr<AnswerJob>> jobs_of(const ServedModel& model,
                                                const CompletionRequest& request,
                                                const std::shared_ptr<AnswerChannel>& channel);

}  // namespace sftrun::serve
