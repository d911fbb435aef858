#include "environment.h"

#include <fmt/format.h>

#include <utility>

#include "sftrun/core/error.h"
#include "sftrun/core/exact_json.h"
#include "sftrun/core/strings.h"
#include "sftrun/data/json_lines.h"
#include "sftrun/data/message_form.h"
#include "sftrun/data/sequence.h"

namespace sftrun::engine {
namespace {

using TurnJson = nlohmann::ordered_json;

constexpr const char* kTakes =
    R"(null, a text in quotes ("…"), or {"role": "tool", "content": "…"})";

/// @return what is wrong with the line; empty: nothing
std::string read_turn(const std::string& line, std::optional<OutsideTurn>& turn) {
  const TurnJson said = data::parse_json_text(line);
  if (trim(line).empty()) return "an empty line";
  if (said.is_null()) return {};
  if (said.is_string()) {
    turn = {.content = said.get<std::string>()};
    return {};
  }
  const bool is_turn = said.is_object() && said.contains("content") &&
                       said["content"].is_string() &&
                       (!said.contains("role") || said["role"].is_string());
  if (!is_turn) return excerpt(line) + ", which is no turn";
  turn = {.role = said.value("role", std::string("tool")),
          .content = said["content"].get<std::string>()};
  return {};
}

reward::OutsideProgramOptions program_of(const config::RunConfig& config,
                                         std::function<bool()> should_stop) {
  return {.name = reward::kEnvironmentProgram,
          .label = "environment",
          .command = config.train.rollouts.environment,
          .where = reward::kEnvironmentSetting,
          .timeout_s = config.train.rollouts.environment_timeout,
          .answer = kTakes,
          .timeout_key = "train.rollouts.environment_timeout",
          .should_stop = std::move(should_stop)};
}

}  // namespace

Environment::Environment(const config::RunConfig& config, const data::TextModel& text,
                         std::function<bool()> should_stop)
    : text_(text),
      is_chat_(config.train.rollouts.chat.value_or(text.chat_template != nullptr)),
      template_variables_(data::template_variables(config.data)),
      program_(program_of(config, std::move(should_stop))) {}

std::vector<std::optional<OutsideTurn>> Environment::ask(
    const std::vector<TurnJson>& conversations) {
  std::vector<std::string> lines;
  for (const TurnJson& conversation : conversations) lines.push_back(to_json_text(conversation));
  const std::vector<std::string> said = program_.ask(lines);
  std::vector<std::optional<OutsideTurn>> turns(said.size());
  for (size_t i = 0; i < said.size(); ++i)
    if (const std::string fault = read_turn(said[i], turns[i]); !fault.empty())
      throw DataError(fmt::format("{} says {}", reward::kEnvironmentProgram, fault),
                      program_.place(), fmt::format("print {} for each line", kTakes));
  return turns;
}

/// Other turns before it do not change it, so a made-up conversation shows what the template writes.
std::string Environment::text_between(const OutsideTurn& turn) const {
  if (!is_chat_ || text_.chat_template == nullptr) return turn.content;
  constexpr const char* kAnswer = "sftrun-answer";
  TurnJson messages = {{{"role", "user"}, {"content", "question"}},
                       {{"role", "assistant"}, {"content", kAnswer}},
                       {{"role", turn.role}, {"content", turn.content}}};
  data::MessageForm(text_).apply(messages);
  templates::RenderOptions options = text_.render_defaults;
  options.add_generation_prompt = true;
  for (const auto& [key, value] : template_variables_.items()) options.kwargs[key] = value;
  const auto refuse = [&](const std::string& why) {
    throw DataError(fmt::format("the chat template cannot write a turn of {} behind an answer: {}",
                                excerpt(turn.role), why),
                    reward::kEnvironmentSetting,
                    "say another role, such as user, or use a model whose template has the role");
  };
  std::string text;
  try {
    text = text_.chat_template->render(messages, options).text;
  } catch (const DataError& error) {
    refuse(error.message());
  }
  const size_t answer = text.find(kAnswer);
  if (answer == std::string::npos) refuse("it leaves the answer out");
  return text.substr(answer + std::string_view(kAnswer).size());
}

std::vector<int32_t> Environment::tokens_between(const OutsideTurn& turn,
                                                 int32_t stop_token) const {
  std::vector<int32_t> tokens =
      text_.tokenizer->encode(text_between(turn), /*add_special_tokens=*/false);
  if (!tokens.empty() && tokens.front() == stop_token) tokens.erase(tokens.begin());
  return tokens;
}

}  // namespace sftrun::engine
