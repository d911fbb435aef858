#include "sftrun/serve/scoring_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "parameters.h"
#include "request_reading.h"
#include "sftrun/core/json_memory.h"
#include "sftrun/core/utf8.h"
#include "sftrun/data/scored_text.h"
#include "sftrun/serve/api_error.h"
#include "sftrun/serve/http_status.h"

namespace sftrun::serve {
namespace {

const spec::ScoreSpec& head_of(const ServedModel& model) {
  return *model.decoder.arch().score;
}

void add_text(CompletionRequest& texts, std::vector<int32_t> tokens, const std::string& where,
              const ServedModel& model) {
  if (tokens.empty())
    throw ApiError(kBadRequest, fmt::format("{} has no tokens to score", where), where);
  if (static_cast<int64_t>(tokens.size()) > model.max_length) {
    throw ApiError(kBadRequest,
                   fmt::format("the model's context is {} tokens; {} has {}", model.max_length,
                               where, tokens.size()),
                   where, "context_length_exceeded");
  }
  texts.prompts.push_back(std::move(tokens));
  texts.prompt_texts.emplace_back();
}

/// A record as `sftrun score` reads it.
void add_record(CompletionRequest& texts, const Json& record, const std::string& where,
                const ServedModel& model, std::optional<data::SequenceBuilder>& builder) {
  if (!builder)
    builder.emplace(data::scored_text_builder(record, where, model.text, head_of(model)));
  add_text(texts, std::move(builder->build(record, where).at(0).ids), where, model);
}

const std::string& text_in(const Json& value, const std::string& where) {
  if (!value.is_string())
    throw ApiError(kBadRequest, fmt::format("{} must be a string", where), where);
  const std::string& text = value.get_ref<const std::string&>();
  if (!is_valid_utf8(text))
    throw ApiError(kBadRequest, fmt::format("{} is not UTF-8", where), where);
  return text;
}

void require_count(const Json& list, const char* key) {
  if (list.empty() || list.size() > kMaxPrompts)
    throw ApiError(kBadRequest, fmt::format("\"{}\" must have 1 to {} entries", key, kMaxPrompts),
                   key);
}

/// "input": a text, token ids, or a list of these.
void read_input(const Json& input, CompletionRequest& texts, const ServedModel& model) {
  std::optional<data::SequenceBuilder> builder;
  const auto add = [&](const Json& one, const std::string& where) {
    if (is_token_list(one)) return add_text(texts, tokens_of(one, "input", model), where, model);
    add_record(texts, {{"text", text_in(one, where)}}, where, model, builder);
  };
  if (!input.is_array() || is_token_list(input)) return add(input, "input");
  require_count(input, "input");
  for (size_t i = 0; i < input.size(); ++i) add(input[i], fmt::format("input[{}]", i));
}

/// Rendered without a generation prompt, as in training.
void read_conversation(Parameters& parameters, CompletionRequest& texts, const ServedModel& model,
                       Json& body) {
  if (parameters.find("messages") == nullptr)
    throw ApiError(kBadRequest, "\"input\" or \"messages\" is missing", "input");
  Json record = take_conversation(parameters, body, model, "send \"input\"");
  const JsonEmptier emptier(record);
  std::optional<data::SequenceBuilder> builder;
  add_record(texts, record, "messages", model, builder);
}

void read_texts(Parameters& parameters, CompletionRequest& texts, const ServedModel& model,
                Json& body) {
  const Json* input = parameters.find("input");
  if (input == nullptr) return read_conversation(parameters, texts, model, body);
  if (parameters.find("messages") != nullptr)
    throw ApiError(kBadRequest, "\"input\" and \"messages\" exclude each other: send one of them",
                   "messages");
  read_input(*input, texts, model);
}

/// The list of one side of pairs; one text is a list of one.
std::vector<std::string> read_side(Parameters& parameters, const char* key, const char* other) {
  const Json* value = parameters.find(key);
  const char* found = value == nullptr ? other : key;
  const Json* same = parameters.find(other);
  if (value == nullptr) value = same;
  if (value == nullptr) throw ApiError(kBadRequest, fmt::format("\"{}\" is missing", key), key);
  if (!value->is_array()) return {text_in(*value, found)};
  require_count(*value, found);
  std::vector<std::string> texts;
  for (size_t i = 0; i < value->size(); ++i)
    texts.push_back(text_in((*value)[i], fmt::format("{}[{}]", found, i)));
  return texts;
}

/// A text with each of several, or as many on both sides. A pair is a prompt and its completion.
void read_pairs(Parameters& parameters, CompletionRequest& texts, const ServedModel& model) {
  const std::vector<std::string> first = read_side(parameters, "text_1", "queries"),
                                 second = read_side(parameters, "text_2", "documents");
  if (first.size() != 1 && first.size() != second.size()) {
    throw ApiError(kBadRequest,
                   fmt::format("\"text_1\" has {} entries and \"text_2\" {}: send one and any "
                               "number, or as many of both",
                               first.size(), second.size()),
                   "text_1");
  }
  std::optional<data::SequenceBuilder> builder;
  for (size_t i = 0; i < second.size(); ++i)
    add_record(texts, {{"prompt", first[first.size() == 1 ? 0 : i]}, {"completion", second[i]}},
               fmt::format("text_2[{}]", i), model, builder);
}

void require_one_score(const ServedModel& model) {
  if (head_of(model).num_labels == 1) return;
  throw ApiError(kBadRequest,
                 fmt::format("{} gives {} scores, and /score needs a model with one: use /classify",
                             model.id, head_of(model).num_labels),
                 "model");
}

/// vLLM's parameters that change nothing here with their default.
void read_neutral(Parameters& parameters, ScoringTask task) {
  parameters.ignore({"request_id"});
  parameters.require_neutral("priority", {Json(0)}, "requests are answered in order of arrival");
  parameters.require_neutral("truncate_prompt_tokens", {}, "send shorter texts");
  if (task == ScoringTask::kScore) return;
  parameters.require_neutral("add_special_tokens", {Json(true)},
                             "texts are tokenized as in training; send token ids");
  parameters.require_neutral("add_generation_prompt", {Json(false)},
                             "conversations are rendered as in training");
  parameters.require_neutral("continue_final_message", {Json(false)},
                             "conversations are rendered as in training");
  if (task != ScoringTask::kPool) return;
  parameters.require_neutral("encoding_format", {Json("float")}, "scores are numbers");
  parameters.require_neutral("task", {Json("classify")}, "the model has a head of scores");
}

/// vLLM's older versions call it "activation" or "softmax".
void read_activation(Parameters& parameters, ScoringRequest& request) {
  std::optional<bool> given;
  for (const char* key : {"use_activation", "activation", "softmax"}) {
    if (parameters.find(key) == nullptr) continue;
    const bool value = parameters.flag(key);
    if (given && *given != value)
      throw ApiError(kBadRequest, fmt::format("\"{}\" contradicts \"use_activation\"", key), key);
    given = value;
  }
  request.use_activation = given.value_or(true);
}

}  // namespace

const ScoringTaskInfo* find_scoring_task(std::string_view path) {
  constexpr std::string_view kVersion = "/v1";
  if (path.starts_with(kVersion)) path.remove_prefix(kVersion.size());
  const auto* found = std::find_if(std::begin(kScoringTasks), std::end(kScoringTasks),
                                   [&](const ScoringTaskInfo& info) { return info.path == path; });
  return found == std::end(kScoringTasks) ? nullptr : found;
}

ScoringRequest parse_scoring(Json body, const ScoringTaskInfo& task, const ServedModel& model) {
  const JsonEmptier emptier(body);
  return reading([&] {
    Parameters parameters(body);
    ScoringRequest request{.task = &task};
    ignore_common(parameters);
    read_neutral(parameters, task.task);
    read_activation(parameters, request);
    if (task.task == ScoringTask::kScore) {
      require_one_score(model);
      read_pairs(parameters, request.texts, model);
    } else {
      read_texts(parameters, request.texts, model, body);
    }
    request.texts.sampling.max_new_tokens = 0;
    parameters.require_no_others();
    return request;
  });
}

std::vector<double> activated(const std::vector<float>& scores, const spec::ScoreSpec& head) {
  std::vector<double> values(scores.begin(), scores.end());
  if (head.problem_type == "regression") return values;
  if (values.size() == 1 || head.problem_type == "multi_label_classification") {
    for (double& value : values) value = 1 / (1 + std::exp(-value));
    return values;
  }
  const double largest = *std::max_element(values.begin(), values.end());
  double sum = 0;
  for (double& value : values) sum += value = std::exp(value - largest);
  for (double& value : values) value /= sum;
  return values;
}

}  // namespace sftrun::serve
