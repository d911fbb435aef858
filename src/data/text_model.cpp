#include "sftrun/data/text_model.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

#include "sftrun/core/encoding.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"
#include "sftrun/templates/builtin_templates.h"

namespace sftrun::data {
namespace {

bool is_template_text(const std::string& text) {
  return text.find("{{") != std::string::npos || text.find("{%") != std::string::npos ||
         text.find('\n') != std::string::npos;
}

/// Whether the word is in the text, and no part of another word there.
bool has_word(std::string_view text, const std::string& word) {
  for (size_t at = text.find(word); at != std::string_view::npos && !word.empty();
       at = text.find(word, at + 1)) {
    const size_t end = at + word.size();
    const bool begins = at == 0 || !is_word_char(text[at - 1]);
    if (begins && (end == text.size() || !is_word_char(text[end]))) return true;
  }
  return false;
}

/// @param path a Jinja file, or a directory with a tokenizer's files
std::string template_at(const std::string& path) {
  const std::string where = fmt::format("model.chat_template: {}", excerpt(path));
  if (!leads_to_file(path)) {
    throw ConfigError("no such chat template file", where,
                      "write the path of a Jinja file, a directory with chat_template.jinja or "
                      "tokenizer_config.json, the template itself, or one of " +
                          join(templates::builtin_template_names(), ", "));
  }
  if (!is_folder(path)) return read_utf8_file(path);
  if (auto found = tokenizer::chat_template_in(path)) return *std::move(found);
  throw ConfigError("the directory has no chat template", where,
                    "name a directory with chat_template.jinja, or with a tokenizer_config.json "
                    "or chat_template.json that has a chat_template, or the path of a Jinja file");
}

std::shared_ptr<const templates::ChatTemplate> parsed_template(std::string_view source,
                                                               std::string name) {
  return std::make_shared<const templates::ChatTemplate>(source, std::move(name));
}

/// Of `model.chat_template`; null: it is empty.
std::shared_ptr<const templates::ChatTemplate> configured_template(const std::string& configured) {
  if (configured.empty()) return nullptr;
  const std::string_view builtin = templates::builtin_template(configured);
  if (!builtin.empty()) return parsed_template(builtin, "the built-in chat template " + configured);
  if (is_template_text(configured)) return parsed_template(configured, "model.chat_template");
  return parsed_template(template_at(configured), configured);
}

}  // namespace

tokenizer::Encoding encode_open_text(const tokenizer::Tokenizer& tokenizer, std::string_view text) {
  tokenizer::Encoding encoding = tokenizer.encode_with_spans(text, /*add_special_tokens=*/true);
  const size_t size = encoding.ids.size() - tokenizer.tokens_behind_texts().size();
  encoding.ids.resize(size);
  encoding.spans.resize(size);
  return encoding;
}

tokenizer::Encoding encode_whole_text(const tokenizer::Tokenizer& tokenizer,
                                      std::string_view text) {
  tokenizer::Encoding encoding = encode_open_text(tokenizer, text);
  const auto end = static_cast<uint32_t>(text.size());
  const auto eos = tokenizer.eos_id();
  const auto ends_in_eos = [&] {
    return eos && !encoding.ids.empty() && encoding.ids.back() == *eos;
  };
  const auto add = [&](tokenizer::TokenId id) {
    if (id == eos && ends_in_eos()) return;
    encoding.ids.push_back(id);
    encoding.spans.push_back({end, end});
  };
  for (const tokenizer::TokenId id : tokenizer.tokens_behind_texts()) add(id);
  if (eos) add(*eos);
  return encoding;
}

void require_one_bos(std::span<const tokenizer::TokenId> ids,
                     std::span<const tokenizer::ByteSpan> spans,
                     const tokenizer::Tokenizer& tokenizer, const std::string& where) {
  const auto bos = tokenizer.bos_id();
  if (!bos || ids.size() < 2 || ids[0] != *bos || ids[1] != *bos) return;
  constexpr size_t kShown = 8;
  std::string shown;
  for (size_t i = 0; i < std::min(ids.size(), kShown); ++i)
    shown += (i == 0 ? "" : " ") + tokenizer.id_to_token(ids[i]);
  const bool by_tokenizer = spans[0].begin == spans[0].end;
  throw DataError(
      fmt::format("the example begins with {} twice: {} …", tokenizer.id_to_token(*bos), shown),
      where,
      by_tokenizer ? "the tokenizer adds one; remove it from the text"
                   : "remove one of them from the text or the chat template");
}

bool has_tokens_beyond_embeddings(const TextModel& model) {
  return model.num_embeddings && model.tokenizer->vocab_size() > *model.num_embeddings;
}

void require_embedded(std::span<const tokenizer::TokenId> ids, const TextModel& model,
                      const std::string& where) {
  if (!has_tokens_beyond_embeddings(model)) return;
  for (const tokenizer::TokenId id : ids) {
    if (id < *model.num_embeddings) continue;
    throw DataError(
        fmt::format("the text contains the token `{}` with the id {}, but the model has embeddings "
                    "for only {} tokens",
                    model.tokenizer->id_to_token(id), id, *model.num_embeddings),
        where,
        "remove the token from the text or the chat template, or from the tokenizer's files "
        "(tokenizer_config.json, special_tokens_map.json, added_tokens.json), or enlarge the model "
        "with resize_token_embeddings of transformers");
  }
}

TextModel make_text_model(tokenizer::Tokenizer tokenizer,
                          const std::optional<std::string>& own_template,
                          templates::RenderOptions render_defaults, const std::string& configured,
                          const std::vector<int64_t>& eos_token_ids) {
  TextModel model{.tokenizer = std::make_shared<const tokenizer::Tokenizer>(std::move(tokenizer)),
                  .render_defaults = std::move(render_defaults)};
  for (const int64_t id : eos_token_ids)
    model.stop_ids.push_back(static_cast<tokenizer::TokenId>(id));
  if (const auto eos = model.tokenizer->eos_id()) {
    if (std::find(model.stop_ids.begin(), model.stop_ids.end(), *eos) == model.stop_ids.end())
      model.stop_ids.push_back(*eos);
  }
  model.chat_template = configured_template(configured);
  if (!model.chat_template && own_template)
    model.chat_template = parsed_template(*own_template, "the model's chat template");
  return model;
}

void require_chat_template(const config::LoadedConfig& loaded) {
  try {
    configured_template(loaded.config.model.chat_template);
  } catch (const Error& error) {
    throw Error(error.code(), error.message(),
                fmt::format("{}; {}", loaded.place_of("model.chat_template"), error.where()),
                error.fix());
  }
}

namespace {

/// Why a variable of the chat template changes no text; empty: it may change some.
std::string idle_reason(const TextModel& model, const std::string& name) {
  constexpr std::array<std::string_view, 3> kOurs = {"messages", "add_generation_prompt",
                                                     "continue_final_message"};
  if (std::find(kOurs.begin(), kOurs.end(), name) != kOurs.end())
    return "sftrun sets it for each conversation";
  if (!model.chat_template) return "the model has no chat template";
  return has_word(model.chat_template->source(), name) ? "" : "the chat template does not name it";
}

}  // namespace

std::vector<std::string> idle_template_variables(const TextModel& model,
                                                 const templates::Json& variables) {
  std::vector<std::string> warnings;
  for (const auto& [name, value] : variables.items()) {
    const std::string reason = idle_reason(model, name);
    if (reason.empty()) continue;
    warnings.push_back(
        fmt::format("data.chat_template_kwargs.{} has no effect: {}", excerpt(name), reason));
  }
  return warnings;
}

void warn_of_idle_template_variables(const TextModel& model, const templates::Json& variables) {
  for (const std::string& idle : idle_template_variables(model, variables)) log::warn("{}", idle);
}

std::vector<std::string> idle_template_flag(const std::vector<const TextModel*>& models,
                                            const templates::Json& variables, bool renders) {
  if (variables.empty()) return {};
  const auto is_idle = [](const std::string& reason) { return !reason.empty(); };
  const bool has_template = std::any_of(models.begin(), models.end(), [](const TextModel* model) {
    return model->chat_template != nullptr;
  });
  if (!has_template)
    return {"--chat-template-kwargs has no effect: the model has no chat template"};
  if (!renders)
    return {
        "--chat-template-kwargs has no effect: no prompt or record is a conversation, so the "
        "chat template is not used"};
  std::vector<std::string> warnings;
  for (const auto& [name, value] : variables.items()) {
    std::vector<std::string> reasons;
    for (const TextModel* model : models) reasons.push_back(idle_reason(*model, name));
    if (std::all_of(reasons.begin(), reasons.end(), is_idle))
      warnings.push_back(fmt::format("--chat-template-kwargs: `{}` has no effect: {}",
                                     excerpt(name), reasons.front()));
  }
  return warnings;
}

}  // namespace sftrun::data
