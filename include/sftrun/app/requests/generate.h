#pragma once

#include "sftrun/app/requests/parts.h"

namespace sftrun::app {

/// Answers one prompt, or the records of a file.
struct GenerateRequest {
  ModelRequest model;
  RanksRequest ranks;
  std::optional<std::string> prompt;  ///< in place of an input, which needs an output
  std::vector<std::string> images;    ///< of the prompt: files
  InputRequest records;
  std::optional<std::string> output, system;
  std::optional<bool> chat;  ///< apply the chat template; null: if the model has one
  SamplingRequest sampling;
  int64_t num_answers = 1;  ///< to each prompt
  bool logprobs = false;    ///< with token ids and log-probabilities
  std::optional<int64_t> batch_size;
  bool overwrite = false, json = false;

  SFTRUN_FIELDS(model, ranks, prompt, images, records, output, system, chat, sampling, num_answers,
                logprobs, batch_size, overwrite, json)
};

}  // namespace sftrun::app
