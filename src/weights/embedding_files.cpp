#include "sftrun/weights/embedding_files.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "forwarding_checkpoint.h"
#include "json_text.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/optional_file.h"
#include "sftrun/core/outside_json.h"
#include "sftrun/core/presence.h"
#include "sftrun/spec/trained_names.h"

namespace sftrun::weights {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr const char *kModules = "modules.json", *kModel = "config_sentence_transformers.json",
                     *kTransformer = "sentence_bert_config.json", *kPooling = "1_Pooling",
                     *kNormalize = "2_Normalize", *kConfig = "config.json";

void write_json(const fs::path& path, const ordered_json& json) {
  write_file_atomically(path, json.dump(2) + "\n");
}

/// Names that version 5 wrote; version 6 reads them, too.
ordered_json module_row(int number, const std::string& path, const std::string& type) {
  return {{"idx", number},
          {"name", std::to_string(number)},
          {"path", path},
          {"type", "sentence_transformers.models." + type}};
}

ordered_json pooling_config(const EmbeddingSettings& settings, int64_t width) {
  return {{"word_embedding_dimension", width},
          {"pooling_mode_cls_token", false},
          {"pooling_mode_mean_tokens", settings.is_mean},
          {"pooling_mode_max_tokens", false},
          {"pooling_mode_mean_sqrt_len_tokens", false},
          {"pooling_mode_weightedmean_tokens", false},
          {"pooling_mode_lasttoken", !settings.is_mean},
          {"include_prompt", true}};
}

ordered_json read_json(const fs::path& path) {
  const ordered_json json = ordered_json(parse_json(read_text_file(path), path.string()));
  return json;
}

[[noreturn]] void refuse_embedder(const std::string& what, const fs::path& path) {
  throw DataError(what, path.string(),
                  "embeddings are the pooled last layer (mean or last token), with or without "
                  "normalisation");
}

/// The mode of the pooling's file in the layouts of versions 5 and 6.
bool is_mean_pooling(const fs::path& path) {
  const ordered_json config = read_json(path);
  const auto is_on = [&](const char* key) { return config.value(key, false); };
  std::string mode = is_on("pooling_mode_mean_tokens") ? "mean"
                     : is_on("pooling_mode_lasttoken") ? "lasttoken"
                                                       : "";
  if (config.contains("pooling_mode") && config["pooling_mode"].is_string())
    mode = config["pooling_mode"].get<std::string>();
  if (mode != "mean" && mode != "lasttoken")
    refuse_embedder("the pooling is neither mean nor lasttoken", path);
  if (!config.value("include_prompt", true))
    refuse_embedder("the pooling leaves out the tokens of prompts", path);
  return mode == "mean";
}

std::string prompt_in(const ordered_json& config, const char* name) {
  return config.contains("prompts") ? text_under(config["prompts"], name) : std::string();
}

class HeadlessCheckpoint final : public ForwardingCheckpoint {
 public:
  explicit HeadlessCheckpoint(std::shared_ptr<const Checkpoint> base)
      : ForwardingCheckpoint(std::move(base)) {
    arch_.tie_word_embeddings = true;
    std::erase_if(tensors_, [](const TensorInfo& info) { return info.name == spec::kHeadTensor; });
  }
  bool has(const std::string& name) const override {
    return name != spec::kHeadTensor && ForwardingCheckpoint::has(name);
  }
};

}  // namespace

void write_embedding_files(const fs::path& folder, const EmbeddingSettings& settings,
                           int64_t width) {
  ordered_json modules = {module_row(0, "", "Transformer"), module_row(1, kPooling, "Pooling")};
  if (settings.normalizes) modules.push_back(module_row(2, kNormalize, "Normalize"));
  make_directories(folder / kPooling);
  write_json(folder / kPooling / kConfig, pooling_config(settings, width));
  if (settings.normalizes) {
    make_directories(folder / kNormalize);
    write_json(folder / kNormalize / kConfig, ordered_json::object());  // git keeps no empty folder
  }
  write_json(folder / kTransformer,
             {{"max_seq_length", settings.max_seq_length}, {"do_lower_case", false}});
  write_json(
      folder / kModel,
      {{"model_type", "SentenceTransformer"},
       {"prompts", {{"query", settings.query_prompt}, {"document", settings.document_prompt}}},
       {"default_prompt_name", nullptr},
       {"similarity_fn_name", settings.normalizes ? "cosine" : "dot"}});
  write_json(folder / kModules, modules);
}

bool is_embedding_model(const fs::path& folder) {
  return is_folder(folder) && has_optional_file(folder / kModules);
}

void refuse_embedding_model(const fs::path& folder, const EmbedderRefusal& refusal) {
  if (!is_embedding_model(folder)) return;
  throw ConfigError(
      fmt::format("{} embeds texts (it has a {}), and {}", refusal.model, kModules, refusal.why),
      refusal.where, refusal.fix);
}

std::optional<EmbeddingSettings> read_embedding_files(const fs::path& folder) {
  if (!is_embedding_model(folder)) return std::nullopt;
  const fs::path path = folder / kModules;
  EmbeddingSettings settings{.normalizes = false};
  bool is_pooled = false;
  const ordered_json modules = read_json(path);
  if (!modules.is_array()) refuse_embedder("the file is no list of modules", path);
  for (const ordered_json& module : modules) {
    const auto type = module.value("type", std::string());
    const std::string name = type.substr(type.rfind('.') + 1);
    if (name == "Pooling") {
      settings.is_mean = is_mean_pooling(folder / module.value("path", std::string()) / kConfig);
      is_pooled = true;
    } else if (name == "Normalize") {
      settings.normalizes = true;
    } else if (name != "Transformer") {
      refuse_embedder(fmt::format("a module of the model is {}", type), path);
    }
  }
  if (!is_pooled) refuse_embedder("no module pools", path);
  if (has_optional_file(folder / kModel)) {
    const ordered_json config = read_json(folder / kModel);
    settings.query_prompt = prompt_in(config, "query");
    settings.document_prompt = prompt_in(config, "document");
  }
  if (has_optional_file(folder / kTransformer)) {
    const ordered_json config = read_json(folder / kTransformer);
    const auto length = config.find("max_seq_length");
    if (length != config.end() && length->is_number_integer())
      settings.max_seq_length = length->get<int64_t>();
  }
  return settings;
}

std::shared_ptr<const Checkpoint> without_head(std::shared_ptr<const Checkpoint> model) {
  return std::make_shared<const HeadlessCheckpoint>(std::move(model));
}

}  // namespace sftrun::weights
