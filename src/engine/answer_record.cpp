#include "answer_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace sftrun::engine {
namespace {

using AnswerJson = nlohmann::ordered_json;

/// The number that JSON writes with as many digits as the value has.
double shortest(float value) {
  return std::strtod(fmt::format("{}", value).c_str(), nullptr);
}

}  // namespace

AnswerJson record_of(const Answer& answer) {
  return {{"generated", answer.text},
          {"generated_tokens", answer.num_tokens},
          {"finish_reason", answer.finish_reason()}};
}

AnswerJson sample_of(const Answer& answer, const std::vector<int32_t>& prompt_ids,
                     bool is_changed) {
  AnswerJson sample = {{"prompt_ids", prompt_ids}, {"completion_ids", answer.token_ids}};
  const auto list = [&](float model::DrawnLogprob::*of) {
    AnswerJson values = AnswerJson::array();
    for (const model::DrawnLogprob& logprob : answer.logprobs)
      values.push_back(shortest(logprob.*of));
    return values;
  };
  const bool is_known = std::ranges::any_of(
      answer.logprobs,
      [](const model::DrawnLogprob& logprob) { return !std::isnan(logprob.model); });
  if (is_known) sample["logprobs"] = list(&model::DrawnLogprob::model);
  if (is_changed) sample["sampling_logprobs"] = list(&model::DrawnLogprob::drawn);
  return sample;
}

}  // namespace sftrun::engine
