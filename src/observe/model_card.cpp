#include "sftrun/observe/model_card.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"

namespace sftrun::observe {
namespace {

std::string last_part(const std::filesystem::path& path) {
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

/// A local path is shortened to its last part.
std::string shown_name(const ModelCard& card) {
  return card.is_on_hub ? card.base_model : last_part(card.base_model);
}

/// One line: control characters become blanks.
std::string one_line(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = ' ';
  return text;
}

bool is_word_char(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || static_cast<unsigned char>(c) >= 0x80;
}

/// Text that Markdown shows as it is, also in a table's cell: characters that could be markup or HTML get a backslash. An underscore
/// within a word is none.
std::string markdown(const std::string& given) {
  constexpr std::string_view kMarkup = "\\`*[]<>|~&#$!";
  const std::string text = one_line(given);
  std::string escaped;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_within =
        i > 0 && is_word_char(text[i - 1]) && i + 1 < text.size() && is_word_char(text[i + 1]);
    if (kMarkup.find(text[i]) != std::string_view::npos || (text[i] == '_' && !is_within))
      escaped += '\\';
    escaped += text[i];
  }
  return escaped;
}

/// A code span, between more backticks than the text has in a row.
std::string code(const std::string& given) {
  const std::string text = one_line(given);
  size_t most = 0, run = 0;
  for (const char c : text) most = std::max(most, run = c == '`' ? run + 1 : 0);
  const std::string fence(most + 1, '`');
  const char* blank = text.starts_with('`') || text.ends_with('`') ? " " : "";
  return fence + blank + text + blank + fence;
}

/// A string in double quotes with JSON's escapes, which YAML and Python read, too.
std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string metadata(const ModelCard& card) {
  std::string text = "---\n";
  if (card.is_on_hub) {
    text += fmt::format("base_model: {}\nbase_model_relation: {}\n", quoted(card.base_model),
                        card.is_adapter ? "adapter" : "finetune");
  }
  text += fmt::format("library_name: {}\npipeline_tag: {}\ntags:\n- sftrun\n- {}\n",
                      card.embeds       ? "sentence-transformers"
                      : card.is_adapter ? "peft"
                                        : "transformers",
                      card.embeds         ? "sentence-similarity"
                      : card.has_scores   ? "text-classification"
                      : card.reads_images ? "image-text-to-text"
                                          : "text-generation",
                      card.objective);
  if (card.is_adapter) text += card.is_quantised ? "- lora\n- qlora\n" : "- lora\n";
  return text + "---\n\n";
}

std::string results(const RunSummary& summary, const std::optional<KeptWeights>& kept) {
  std::string text = "## Result\n\n| | |\n|---|---|\n";
  const auto row = [&](const std::string& name, const std::string& value) {
    text += fmt::format("| {} | {} |\n", name, value);
  };
  const auto loss_row = [&](const std::string& name, const std::optional<StepLoss>& loss) {
    if (loss) row(fmt::format("{} (step {})", name, loss->step), fmt::format("{:.4f}", loss->loss));
  };
  const ShownValues& shown = summary.shown;
  loss_row("first " + shown.word, shown.first);
  loss_row("last " + shown.word, shown.last);
  loss_row("first validation " + shown.word, shown.first_eval);
  loss_row("last validation " + shown.word, shown.last_eval);
  loss_row("first loss", summary.first);
  loss_row("last loss", summary.last);
  if (kept) {
    row("saved weights", fmt::format("those after step {}, with the best {}: {:.6g}", kept->step,
                                     markdown(kept->metric), kept->value));
    for (const StepLoss& loss : summary.evals)
      if (loss.step == kept->step) loss_row("validation loss of the saved weights", loss);
  } else {
    loss_row("best validation loss", summary.best_eval);
  }
  loss_row("last validation loss", summary.last_eval);
  row("tokens", format_count(static_cast<uint64_t>(summary.tokens)));
  row("time of the steps", format_duration(summary.seconds));
  row("peak memory of a process", format_bytes(summary.peak_memory_bytes));
  return text + "\n";
}

/// What transformers' from_pretrained takes for the base. Local folders are not named.
std::string loading_of(const ModelCard& card) {
  if (!card.quantised_base.empty()) return quoted("path/to/" + last_part(card.quantised_base));
  const std::string name = shown_name(card);
  if (card.is_on_hub) return quoted(name);
  if (name.ends_with(".gguf")) return fmt::format("\"path/to\", gguf_file={}", quoted(name));
  return quoted("path/to/" + name);
}

/// "or `sftrun generate --adapter . --prompt "…"`, in this directory."
std::string generate_line(const ModelCard& card) {
  if (card.embeds)
    return fmt::format("or `sftrun score {} . --input texts.jsonl --output embedded.jsonl`.\n",
                       card.is_adapter ? "--adapter" : "--model");
  if (card.has_scores)
    return fmt::format("or `sftrun score {} . --input texts.jsonl --output scores.jsonl`.\n",
                       card.is_adapter ? "--adapter" : "--model");
  return fmt::format(
      "or `sftrun generate {} .{}{} --prompt \"…\"`, in this directory{}.\n",
      card.is_adapter ? "--adapter" : "--model", card.leaves_template_unused ? " --no-chat" : "",
      card.reads_images ? " --image photo.png" : "",
      card.leaves_template_unused ? ": it was trained on raw text, without the chat template" : "");
}

/// transformers' classes for the model, and for what makes its inputs.
struct Classes {
  const char *model, *inputs, *inputs_name;
};

constexpr Classes classes_of(bool reads_images, bool has_scores) {
  if (has_scores) return {"AutoModelForSequenceClassification", "AutoTokenizer", "tokenizer"};
  return reads_images ? Classes{"AutoModelForImageTextToText", "AutoProcessor", "processor"}
                      : Classes{"AutoModelForCausalLM", "AutoTokenizer", "tokenizer"};
}

/// A question about an image, and its answer. A chat template writes the image's place.
constexpr const char* kQuestion = R"(
messages = [{"role": "user", "content": [{"type": "image", "path": "photo.png"},
                                         {"type": "text", "text": "What is this?"}]}]
inputs = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=True,
                                       return_dict=True, return_tensors="pt")
output = model.generate(**inputs, max_new_tokens=64)
print(processor.decode(output[0, inputs["input_ids"].shape[1]:], skip_special_tokens=True))
)";

constexpr const char* kLabels =
    "labels = {key: value for key, value in json.load(open(\"labels.json\")).items()\n"
    "          if value is not None}\n"
    "labels[\"id2label\"] = {int(i): name for i, name in labels[\"id2label\"].items()}\n";

constexpr const char* kEmbedding = R"(```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer(".")
queries = model.encode_query(["…"])
documents = model.encode_document(["…", "…"])
print(model.similarity(queries, documents))
```

)";

std::string python_code(const ModelCard& card) {
  if (card.embeds) return kEmbedding;
  const Classes classes = classes_of(card.reads_images, card.has_scores);
  const bool reads_labels = card.has_scores && card.is_adapter;
  const std::string imports =
      fmt::format("from transformers import {}, {}\n\n", classes.model, classes.inputs);
  const std::string model = card.is_adapter
                                ? fmt::format(
                                      "{}base = {}.from_pretrained({}{})\n"
                                      "model = PeftModel.from_pretrained(base, \".\")\n",
                                      reads_labels ? kLabels : "", classes.model, loading_of(card),
                                      reads_labels ? ", **labels" : "")
                                : fmt::format("model = {}.from_pretrained(\".\")\n", classes.model);
  const bool asks = card.reads_images && !card.leaves_template_unused;
  return fmt::format("```python\n{}{}{}{}{} = {}.from_pretrained(\".\")\n{}```\n\n",
                     reads_labels ? "import json\n" : "",
                     card.is_adapter ? "from peft import PeftModel\n" : "", imports, model,
                     classes.inputs_name, classes.inputs, asks ? kQuestion : "");
}

std::string usage(const ModelCard& card) {
  std::string text = "## Use\n\n";
  if (card.is_adapter && (!card.is_on_hub || !card.quantised_base.empty()))
    text += "`path/to` stands for the folder of the base model.\n\n";
  if (card.is_adapter && !card.quantize_command.empty())
    text += fmt::format(
        "The adapter was trained on a quantised base. Write that base with {}, and load it "
        "instead of the unquantised one to get the results of training.\n\n",
        code(card.quantize_command));
  return text + python_code(card) + generate_line(card);
}

}  // namespace

std::string to_markdown(const ModelCard& card) {
  std::string text = metadata(card);
  text += fmt::format("# {} {}\n\n", card.is_adapter ? "An adapter for" : "Fine-tuned from",
                      markdown(shown_name(card)));
  text += fmt::format("Trained with sftrun {} on {}.\n\n", card.version,
                      markdown(card.data.empty() ? "unnamed data" : join(card.data, ", ")));
  text += "## Settings\n\n| setting | value |\n|---|---|\n";
  for (const auto& [name, value] : card.settings)
    text += fmt::format("| `{}` | {} |\n", name, markdown(value));
  return text + "\n" + results(card.summary, card.kept) + usage(card);
}

}  // namespace sftrun::observe
