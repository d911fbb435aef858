#include "sftrun/weights/ollama_modelfile.h"

#include <algorithm>

#include "gguf_vocab.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "sftrun/templates/chat_template.h"

namespace sftrun::weights {
namespace {

/// Modelfiles have no escapes: a text with quotes or newlines is enclosed in triple quotes.
std::string quoted(const std::string& text) {
  const bool is_plain = text.find_first_of("\"\n") == std::string::npos;
  return is_plain ? "\"" + text + "\"" : "\"\"\"" + text + "\"\"\"";
}

templates::OllamaTemplate template_of(const Checkpoint& base, const std::string& chat_template,
                                      const std::string& added_bos,
                                      const templates::Json& variables) {
  templates::RenderOptions options = base.render_defaults();
  options.kwargs = variables;
  try {
    return templates::ollama_template_of(templates::ChatTemplate(chat_template), options,
                                         added_bos);
  } catch (const DataError& error) {
    return {.text = std::nullopt, .reason = error.message(), .notes = {}};
  }
}

std::vector<std::string> stops_of(const Checkpoint& base) {
  const tokenizer::Tokenizer tokenizer = base.tokenizer();
  std::vector<int64_t> ends = base.arch().eos_token_ids;
  if (ends.empty() && tokenizer.eos_id()) ends.push_back(*tokenizer.eos_id());
  std::vector<std::string> stops;
  for (const int64_t id : ends) {
    std::string stop = tokenizer.id_to_token(static_cast<tokenizer::TokenId>(id));
    if (!stop.empty()) stops.push_back(std::move(stop));
  }
  return stops;
}

}  // namespace

std::string added_bos_of(const tokenizer::GgufVocab& vocab) {
  return vocab.add_bos && vocab.bos ? vocab.tokens.at(static_cast<size_t>(*vocab.bos))
                                    : std::string();
}

std::string added_bos_of(const GgufFile& file) {
  return added_bos_of(read_gguf_vocab(file));
}

OllamaModelfile ollama_modelfile(const Checkpoint& base,
                                 const std::optional<std::string>& chat_template,
                                 const std::string& added_bos, const templates::Json& variables) {
  OllamaModelfile file{.from = {},
                       .adapter = {},
                       .template_text = std::nullopt,
                       .remarks = {},
                       .stops = stops_of(base)};
  if (!chat_template) {
    file.remarks = {
        "The model has no chat template, so this file has no TEMPLATE. Add one to use the model "
        "for chat."};
    return file;
  }
  const templates::OllamaTemplate made = template_of(base, *chat_template, added_bos, variables);
  file.template_text = made.text;
  file.remarks = made.notes;
  if (!made.text) {
    file.remarks.push_back(fmt::format(
        "There is no TEMPLATE, because no Ollama template equal to the chat template was found: "
        "{}. Ollama 0.30 and later use the GGUF file's chat template, unless they recognise it as "
        "one of their built-in ones; for earlier versions write a TEMPLATE (docs/export.md).",
        made.reason));
  }
  return file;
}

void OllamaModelfile::write_to(const std::filesystem::path& directory) const {
  write_file_atomically(directory / "Modelfile", text());
  for (const std::string& remark : remarks) {
    if (template_text)
      log::info("Modelfile: {}", remark);
    else
      log::warn("Modelfile: {}", remark);
  }
}

std::string OllamaModelfile::text() const {
  std::string text;
  for (const std::string& remark : remarks) {
    std::string line = remark;  // may have several lines
    std::replace(line.begin(), line.end(), '\n', ' ');
    text += fmt::format("# {}\n", line);
  }
  text += fmt::format("FROM {}\n", from);
  if (!adapter.empty()) text += fmt::format("ADAPTER {}\n", adapter);
  if (template_text) text += fmt::format("TEMPLATE \"\"\"{}\"\"\"\n", *template_text);
  for (const std::string& stop : stops) text += fmt::format("PARAMETER stop {}\n", quoted(stop));
  return text;
}

}  // namespace sftrun::weights
