#include "generation_messages.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "sftrun/core/error.h"

namespace sftrun::model {
namespace {

using nlohmann::json;

std::string packed(const json& value) {
  std::string bytes;
  json::to_msgpack(value, bytes);
  return bytes;
}

json to_json(const TokenLogprobs& found) {
  json top = json::array();
  for (const TokenLogprobs::Candidate& candidate : found.top)
    top.push_back({candidate.token, candidate.logprob});
  return {found.logprob, top, found.drawn, found.entropy};
}

TokenLogprobs logprobs_of(const json& value) {
  TokenLogprobs found{.logprob = value[0].get<float>(),
                      .drawn = value[2].get<float>(),
                      .entropy = value[3].get<float>(),
                      .top = {}};
  for (const json& candidate : value[1])
    found.top.push_back({candidate[0].get<int32_t>(), candidate[1].get<float>()});
  return found;
}

json to_json(const std::vector<TokenLogprobs>& scores) {
  json list = json::array();
  for (const TokenLogprobs& score : scores) list.push_back(to_json(score));
  return list;
}

/// Without the stop tokens: the lead alone ends sequences.
json to_json(const SamplingOptions& options) {
  json top_k;
  if (options.top_k) top_k = *options.top_k;
  return {
      options.max_new_tokens, options.temperature,        options.top_p, top_k,
      options.min_p,          options.repetition_penalty, options.seed,  options.keeps_logprobs};
}

SamplingOptions options_of(const json& value) {
  SamplingOptions options;
  options.max_new_tokens = value[0].get<int64_t>();
  options.temperature = value[1].get<double>();
  options.top_p = value[2].get<double>();
  if (!value[3].is_null()) options.top_k = value[3].get<int64_t>();
  options.min_p = value[4].get<double>();
  options.repetition_penalty = value[5].get<double>();
  options.keeps_logprobs = value[7].get<bool>();
  options.seed = value[6].get<uint64_t>();
  return options;
}

json to_json(const data::SequenceMedia& image) {
  const std::string files = data::packed_files(image);
  const data::VideoFrames& frames = image.frames;
  return {json::binary({files.begin(), files.end()}),
          image.width,
          image.height,
          image.rows,
          image.num_tokens,
          image.grid_thw,
          image.begin,
          image.end,
          image.feature,
          image.projector,
          {frames.video, frames.of_video, frames.first, frames.time}};
}

data::SequenceMedia image_of(const json& value) {
  data::SequenceMedia image;
  const auto& packed = value[0].get_binary();
  std::vector<data::Media> files =
      data::unpacked_files({reinterpret_cast<const char*>(packed.data()), packed.size()});
  image.media = std::move(files.at(0));
  image.width = value[1].get<int64_t>(), image.height = value[2].get<int64_t>();
  image.rows = value[3].get<int64_t>(), image.num_tokens = value[4].get<int64_t>();
  image.grid_thw = value[5].get<std::array<int64_t, 3>>();
  image.begin = value[6].get<int64_t>(), image.end = value[7].get<int64_t>();
  image.feature = value[8].get<int32_t>();
  image.projector = value[9].get<int64_t>();
  const auto frames = value[10].get<std::array<int64_t, 4>>();
  image.frames = {.video = frames[0], .of_video = frames[1], .first = frames[2], .time = frames[3]};
  image.frames.further.assign(files.begin() + 1, files.end());
  return image;
}

json to_json(const SequenceRequest& request) {
  json images = json::array();
  for (const data::SequenceMedia& image : request.prompt.media) images.push_back(to_json(image));
  json num_logprobs;
  if (request.num_logprobs) num_logprobs = *request.num_logprobs;
  return {{"prompt", request.prompt.index},         {"tokens", request.prompt.tokens},
          {"stream", request.prompt.stream},        {"draw", request.prompt.draw},
          {"options", to_json(*request.options)},   {"num_logprobs", num_logprobs},
          {"scores_prompt", request.scores_prompt}, {"images", images}};
}

SequenceRequest request_of(const json& value) {
  SequenceRequest request;
  request.prompt = {value.at("prompt").get<size_t>(),
                    value.at("tokens").get<std::vector<int32_t>>(),
                    value.at("stream").get<uint64_t>()};
  request.prompt.draw = value.at("draw").get<uint32_t>();
  for (const json& image : value.at("images")) request.prompt.media.push_back(image_of(image));
  request.options = std::make_shared<const SamplingOptions>(options_of(value.at("options")));
  if (!value.at("num_logprobs").is_null())
    request.num_logprobs = value.at("num_logprobs").get<size_t>();
  request.scores_prompt = value.at("scores_prompt").get<bool>();
  return request;
}

json to_json(const Choices& choices) {
  json logprobs = json::array();
  for (const auto& found : choices.logprobs) logprobs.push_back(found ? to_json(*found) : json());
  json scores = json::array();
  for (const auto& [prompt, of_prompt] : choices.prompt_scores)
    scores.push_back({prompt, to_json(of_prompt)});
  return {choices.is_finite, choices.tokens, logprobs, scores, choices.scores};
}

Choices choices_of(const json& value) {
  Choices choices{.tokens = value[1].get<std::vector<int32_t>>(),
                  .logprobs = {},
                  .prompt_scores = {},
                  .scores = value[4].get<std::vector<std::vector<float>>>(),
                  .is_finite = value[0].get<bool>()};
  for (const json& found : value[2]) {
    choices.logprobs.emplace_back();
    if (!found.is_null()) choices.logprobs.back() = logprobs_of(found);
  }
  for (const json& of_prompt : value[3]) {
    choices.prompt_scores.emplace_back(of_prompt[0].get<size_t>(), std::vector<TokenLogprobs>());
    for (const json& score : of_prompt[1])
      choices.prompt_scores.back().second.push_back(logprobs_of(score));
  }
  return choices;
}

}  // namespace

void GenerationMessages::added(const SequenceRequest& request) {
  changes_.push_back({{"add", to_json(request)}});
}

void GenerationMessages::removed(size_t row) {
  changes_.push_back({{"remove", row}});
}

void GenerationMessages::dropped(const std::vector<size_t>& prompts) {
  if (!prompts.empty()) changes_.push_back({{"drop", prompts}});
}

void GenerationMessages::tell(Next next) {
  ranks_.from_lead(
      packed({{"batch", batch_}, {"next", static_cast<int>(next)}, {"changes", changes_}}));
  changes_ = json::array();
}

GenerationMessages::Message GenerationMessages::hear(layers::CopyRanks& ranks) {
  json message = json::from_msgpack(ranks.from_lead({}));
  return {message.at("batch").get<size_t>(), static_cast<Next>(message.at("next").get<int>()),
          std::move(message.at("changes"))};
}

void GenerationMessages::make(const Message& message, const Changes& changes) {
  for (const json& change : message.changes) {
    if (const auto added = change.find("add"); added != change.end()) {
      changes.add(request_of(*added));
    } else if (const auto removed = change.find("remove"); removed != change.end()) {
      changes.remove(removed->get<size_t>());
    } else {
      const auto prompts = change.at("drop").get<std::vector<size_t>>();
      changes.drop([&](size_t prompt) {
        return std::find(prompts.begin(), prompts.end(), prompt) != prompts.end();
      });
    }
  }
}

Choices GenerationMessages::of_head(const Choices& own) {
  return choices_of(json::from_msgpack(ranks_.from_head(packed(to_json(own)))));
}

}  // namespace sftrun::model
