#include <fmt/format.h>

#include <atomic>
#include <cmath>

#include "makers.h"
#include "outside_value.h"
#include "server_options.h"
#include "sftrun/core/error.h"
#include "sftrun/core/exact_json.h"
#include "sftrun/core/for_each_together.h"
#include "sftrun/core/strings.h"
#include "sftrun/hub/post.h"

namespace sftrun::reward {
namespace {

using ModelJson = nlohmann::ordered_json;

constexpr std::string_view kPath = "/classify", kHealth = "/health";

/// "http://host:8000", also with /v1 or the path itself behind it.
std::string classify_url(std::string url) {
  constexpr std::string_view kVersion = "/v1";
  const auto remove = [&](std::string_view end) {
    if (url.ends_with(end)) url.resize(url.size() - end.size());
  };
  for (const std::string_view end : {kPath, kVersion}) {
    while (url.ends_with('/')) url.pop_back();
    remove(end);
  }
  while (url.ends_with('/')) url.pop_back();
  return url + std::string(kPath);
}

bool is_conversation(const ModelJson& messages) {
  if (!messages.is_array() || messages.empty()) return false;
  for (const ModelJson& message : messages)
    if (!message.is_object() || !message.contains("role")) return false;
  return true;
}

/// What stands before the answer: a text or messages; null: the record has neither.
ModelJson before_answer(const ModelJson& prompt, const ModelJson& record) {
  if (prompt.is_string() || is_conversation(prompt)) return prompt;
  const auto text = record.find("text");
  return prompt.is_null() && text != record.end() && text->is_string() ? *text : ModelJson();
}

/// The turns of a conversation with tools (`rollouts.environment`), which end with the answer; null: there are none.
ModelJson turns_of(const Answer& answer) {
  const auto turns = answer.record->find("turns");
  if (turns == answer.record->end() || !is_conversation(*turns)) return {};
  return turns->back().value("content", ModelJson()) == answer.text ? *turns : ModelJson();
}

/// A model with a head of one score, behind a server that has vLLM's request for classifiers
/// (vllm/entrypoints/pooling/classify/protocol.py; docs/serving.md): one request for each answer.
class RewardModelReward : public Function {
 public:
  RewardModelReward(const config::RewardSpec& spec, const Surroundings& surroundings)
      : label_(spec.label),
        name_(outside_name("server", spec)),
        url_(classify_url(spec.settings.at("url").get<std::string>())),
        model_(spec.settings.at("model")),
        has_user_turns_(spec.settings.at("chat").is_null() ? surroundings.has_user_turns
                                                           : spec.settings.at("chat").get<bool>()),
        use_activation_(spec.settings.at("activation").get<bool>()),
        batch_size_(spec.settings.at("batch_size").get<size_t>()),
        options_(server_options(spec, surroundings)) {
    options_.should_stop = [this, is_stopped = surroundings.should_stop] {
      return has_failed_ || (is_stopped && is_stopped());
    };
  }

  std::vector<Value> values(std::span<const Answer> answers) override {
    std::vector<Value> values(answers.size());
    has_failed_ = false;
    for_each_together(answers.size(), batch_size_, has_failed_,
                      [&](size_t i) { values[i] = score_of(answers[i]); });
    return values;
  }

  /// A server without such a path is there, too.
  void rehearse() override {
    const std::string base = url_.substr(0, url_.size() - kPath.size());
    has_failed_ = false;
    try {
      hub::get_json(base + std::string(kHealth), name_, options_);
    } catch (const hub::RequestError& error) {
      constexpr int kFirstRefusal = 400;
      if (error.status.value_or(0) < kFirstRefusal) throw;
    }
  }

  void check_record(const ModelJson& record, const std::string& where) const override {
    require_prompt(before_answer(prompt_of(record), record), where);
  }

 private:
  void require_prompt(const ModelJson& prompt, const std::string& where) const {
    if (!prompt.is_null()) return;
    throw DataError(
        fmt::format(
            "the reward {} reads the answer with its prompt, and the record "
            "has no \"prompt\", \"messages\", \"conversations\", \"instruction\" or \"text\"",
            label_),
        where,
        "write the prompt as a text or a list of messages: {\"prompt\": [{\"role\": "
        "\"user\", \"content\": \"…\"}]}");
  }

  double score_of(const Answer& answer) const {
    const std::string what = fmt::format("{}, asked for {}", name_, answer.where);
    return read(hub::post_json(url_, to_json_text(request_of(answer)), what, options_),
                answer.where);
  }

  ModelJson request_of(const Answer& answer) const {
    ModelJson prompt = before_answer(answer.prompt, *answer.record);
    require_prompt(prompt, answer.where);
    ModelJson request = ModelJson::object();
    if (!model_.is_null()) request["model"] = model_;
    if (prompt.is_string() && has_user_turns_)
      prompt = ModelJson::array({{{"role", "user"}, {"content", std::move(prompt)}}});
    if (prompt.is_string())
      request["input"] = prompt.get<std::string>() + std::string(answer.text);
    else
      add_conversation(request, std::move(prompt), answer);
    request["use_activation"] = use_activation_;
    request["activation"] = use_activation_;  // its older name in vLLM, which ignores unknown keys
    return request;
  }

  static void add_conversation(ModelJson& request, ModelJson messages, const Answer& answer) {
    ModelJson turns = turns_of(answer);
    if (turns.is_null())
      turns = ModelJson::array({{{"role", "assistant"}, {"content", std::string(answer.text)}}});
    for (ModelJson& turn : turns) messages.push_back(std::move(turn));
    request["messages"] = std::move(messages);
    for (const char* key : {"tools", "chat_template_kwargs"}) {
      const auto found = answer.record->find(key);
      if (found == answer.record->end()) continue;
      // Tables have them as text.
      const ModelJson value =
          found->is_string() ? parse_response(found->get_ref<const std::string&>()) : *found;
      if (value.is_structured()) request[key] = value;
    }
  }

  double read(const std::string& body, const std::string& where) const {
    const ModelJson response = parse_response(body);
    const ModelJson data = response.is_object() ? response.value("data", ModelJson()) : ModelJson();
    const bool is_one = data.is_array() && data.size() == 1 && data[0].is_object();
    const ModelJson scores = is_one ? data[0].value("probs", ModelJson()) : ModelJson();
    if (!scores.is_array() || scores.empty())
      refuse(fmt::format("answers `{}` to {}, which is not {{\"data\": [{{\"probs\": […]}}]}}",
                         excerpt(body), where),
             "serve the model with `sftrun serve` or `vllm serve`");
    if (scores.size() > 1)
      refuse(fmt::format("has a model of {} scores, and a reward model has one", scores.size()),
             "serve a model of `objective: reward`, or one whose head has one label");
    if (!scores[0].is_number() || !std::isfinite(scores[0].get<double>()))
      refuse(fmt::format("answers {} with the score {}, which is not a finite number", where,
                         excerpt(scores[0].dump())),
             "look at the reward model: `sftrun score` gives its scores, too");
    return scores[0].get<double>();
  }

  [[noreturn]] void refuse(const std::string& what, const std::string& fix) const {
    throw DataError(fmt::format("{} {}", name_, what), url_, fix);
  }

  std::string label_, name_, url_;
  ModelJson model_;  // null: the server chooses
  bool has_user_turns_, use_activation_;
  size_t batch_size_;
  std::atomic<bool> has_failed_{false};
  hub::PostOptions options_;
};

}  // namespace

std::unique_ptr<Function> make_reward_model(const config::RewardSpec& spec,
                                            const Surroundings& surroundings) {
  return std::make_unique<RewardModelReward>(spec, surroundings);
}

}  // namespace sftrun::reward
