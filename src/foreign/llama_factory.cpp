#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "factory_preference.h"
#include "fsdp.h"
#include "sftrun/config/yaml_reader.h"
#include "sftrun/core/file.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"
#include "templates.h"

/// Values of LLaMA-Factory's YAML that have another form here (tools/llama-factory.yaml), and its
/// dataset_info.json.
namespace sftrun::foreign {

extern const std::string_view kLlamaFactoryTable;  // its table

namespace {

using Json = nlohmann::ordered_json;

constexpr auto kFactoryModes =
    std::to_array<WordPair>({{"lora", "lora"}, {"full", "full"}, {"freeze", "partial"}});

void factory_mode(Conversion& conversion, const SourceKey& key) {
  set_mode(conversion, key, kFactoryModes);
}

/// "q_proj, v_proj", or a list.
void set_names(Conversion& conversion, const SourceKey& key, std::string_view field) {
  if (key.value.kind != Value::Kind::kScalar) return conversion.set(key, field, key.value);
  Json names = Json::array();
  for (const std::string& name : split(key.value.text, ','))
    names.push_back(std::string(trim(name)));
  conversion.set(key, field, value_from_json(names));
}

void factory_target(Conversion& conversion, const SourceKey& key) {
  if (ascii_lower(key.value.text) == "all")
    return conversion.set(key, "tuning.lora.target_modules", "all-linear");
  set_names(conversion, key, "tuning.lora.target_modules");
}

void factory_saved(Conversion& conversion, const SourceKey& key) {
  set_names(conversion, key, "tuning.lora.modules_to_save");
}

void factory_bits(Conversion& conversion, const SourceKey& key) {
  if (key.value.text == "4") return conversion.set(key, "tuning.quant", "nf4");
  if (key.value.text == "8") return conversion.set(key, "tuning.quant", "int8");
  if (!is_off(key.value)) conversion.note_lost(key, "a base has 4 or 8 bits: `tuning.quant`");
}

void factory_quantization_method(Conversion& conversion, const SourceKey& key) {
  const std::string method = ascii_lower(key.value.text);
  if (method == "bnb" || method == "bitsandbytes")
    return conversion.note_no_meaning(key, "`tuning.quant` nf4, fp4 and int8 are bitsandbytes'");
  conversion.note_lost(key, "`tuning.quant` takes nf4, fp4, int8 and fp8");
}

/// "default" and "empty" are templates of LLaMA-Factory's own.
void factory_template(Conversion& conversion, const SourceKey& key) {
  const std::string name = ascii_lower(key.value.text);
  if (name != "default" && name != "empty") return set_template(conversion, key);
  conversion.note_lost(key,
                       fmt::format("LLaMA-Factory's template {} is not built in: the model's own "
                                   "chat template is used",
                                   name));
}

void factory_thinking(Conversion& conversion, const SourceKey& key) {
  const auto thinks = parse_bool(key.value.text);
  if (thinks)
    conversion.set(key, "data.chat_template_kwargs",
                   value_from_json(Json{{"enable_thinking", *thinks}}));
}

/// Packing in which examples do not see each other, which LLaMA-Factory turns packing on for.
void factory_neat_packing(Conversion& conversion, const SourceKey& key) {
  if (is_off(key.value)) return;
  const auto packing = conversion.find("packing");
  if (!packing) return conversion.set(key, "data.packing", "true");
  if (parse_bool(packing->value.text) == true)
    return conversion.note_no_meaning(key, "attention does not cross packed examples");
  conversion.note_lost(key, "packing is false: set `data.packing: true`");
}

void factory_deepspeed(Conversion& conversion, const SourceKey& key) {
  if (!is_off(key.value))
    conversion.set(key, "parallel.deepspeed",
                   conversion.source().path_beside(key.value.text).string());
}

/// An entry of dataset_info.json.
class FactoryEntry {
 public:
  FactoryEntry(Conversion& conversion, const SourceKey& key, std::string name, const Value& entry)
      : conversion_(conversion), key_(key), name_(std::move(name)), entry_(entry) {}

  /// The data set; its files are beside dataset_info.json, in `folder`.
  Json source(const std::filesystem::path& folder) const {
    Json source = Json::object();
    source["path"] = text("hf_hub_url");
    if (!text("file_name").empty()) source["path"] = (folder / text("file_name")).string();
    if (source["path"].get<std::string>().empty())
      note("it names neither file_name nor hf_hub_url");
    if (!text("subset").empty()) source["name"] = text("subset");
    if (const std::string what = set_split(conversion_, source, text("split")); !what.empty())
      note(what);
    source["format"] = std::string(format());
    if (const Json names = fields(); !names.empty()) source["fields"] = names;
    if (has_media() && !conversion_.find("media_dir") &&
        std::filesystem::path(text("file_name")).has_parent_path())
      source["image_root"] = folder.string();  // the default of media_dir
    if (const auto limit = max_samples()) source["max_samples"] = *limit;
    note_unread();
    return source;
  }

 private:
  std::string text(std::string_view name) const {
    const Value* value = value_at(entry_, name);
    return value == nullptr ? std::string() : value->text;
  }
  void note(const std::string& what) const {
    conversion_.note_lost(key_, fmt::format("{}: {}", name_, what));
  }

  bool is_pair() const { return parse_bool(text("ranking")) == true; }
  /// One answer that is judged.
  bool is_judged() const { return is_stage(conversion_, "kto") && !is_pair(); }
  bool has_turns() const { return text("formatting") == "sharegpt" || is_openai(); }
  bool has_columns() const { return value_at(entry_, "columns") != nullptr; }
  bool is_openai() const { return text("formatting") == "openai"; }
  bool has_media() const {
    return !text("columns.images").empty() || !text("columns.videos").empty();
  }

  std::string_view format() const {
    if (is_stage(conversion_, "pt")) return "text";
    if (is_pair()) return "preference";
    return is_openai() ? "messages" : has_turns() ? "sharegpt" : "alpaca";
  }

  /// Names of columns and roles, ours first.
  Json fields() const {
    Json fields = Json::object();
    const auto take = [&](std::string_view ours, std::string_view column, std::string_view usual) {
      const std::string own = text(column);
      const std::string name = own.empty() ? std::string(usual) : own;
      if (!name.empty() && name != ours) fields[std::string(ours)] = name;
    };
    take("images", "columns.images", "");
    take("videos", "columns.videos", "");
    if (format() == "text") {
      take("text", "columns.prompt", "instruction");
      return fields;
    }
    if (has_turns()) {
      take(is_pair()     ? "prompt"
           : is_openai() ? "messages"
                         : "conversations",
           "columns.messages", "conversations");
      const bool renames = is_pair() && !is_openai();  // preference data have messages here
      take("role", "tags.role_tag", is_openai() ? "" : renames ? "from" : "");
      take("content", "tags.content_tag", is_openai() ? "" : renames ? "value" : "");
      take_roles(fields, renames);
    } else {
      take("instruction", "columns.prompt", "instruction");
      take("input", "columns.query", "");
      if (!is_pair()) take("output", "columns.response", "output");
    }
    if (is_pair()) {
      take("chosen", "columns.chosen", "chosen");
      take("rejected", "columns.rejected", "rejected");
    }
    if (is_judged()) take("label", "columns.kto_tag", "");
    take("system", "columns.system", "system");
    take("tools", "columns.tools", "tools");
    leave_out_unnamed(fields);
    return fields;
  }

  /// Columns that are read here if records have them, and there if `columns` names them.
  void leave_out_unnamed(Json& fields) const {
    if (is_pair() && has_turns()) return;
    if (!has_turns() && has_columns() && text("columns.query").empty())
      leave_out(fields, {"input"});
    if (!is_openai() && text("columns.system").empty()) leave_out(fields, {"system"});
    if (has_turns() && text("columns.tools").empty()) leave_out(fields, {"tools"});
  }

  /// @param all also the roles that ShareGPT's turns have anyway
  void take_roles(Json& fields, bool all) const {
    struct Role {
      std::string_view tag, usual, ours;
    };
    constexpr auto kRoles = std::to_array<Role>({{"tags.user_tag", "human", "user"},
                                                 {"tags.assistant_tag", "gpt", "assistant"},
                                                 {"tags.system_tag", "system", "system"},
                                                 {"tags.observation_tag", "observation", "tool"},
                                                 {"tags.function_tag", "function_call", ""}});
    for (const Role& role : kRoles) {
      const std::string own = text(role.tag);
      const std::string theirs = own.empty() ? std::string(all ? role.usual : "") : own;
      // ShareGPT's name of a call is kept: its turn becomes tool calls.
      const std::string_view ours = !role.ours.empty()     ? role.ours
                                    : has_sharegpt_calls() ? role.usual
                                                           : "assistant";
      if (!theirs.empty() && theirs != ours) fields["roles"][theirs] = std::string(ours);
    }
  }
  bool has_sharegpt_calls() const { return !is_pair() && !is_openai(); }

  /// The smaller of the entry's own number and that of the file.
  std::optional<int64_t> max_samples() const {
    const auto positive = [](const std::string& text) {
      const auto number = parse_int(text);
      return number && *number > 0 ? number : std::optional<int64_t>();
    };
    const auto own = positive(text("num_samples")),
               common = positive(conversion_.text_of("max_samples"));
    return own && common ? std::min(*own, *common) : own ? own : common;
  }

  void note_unread() const {
    for (const char* column : {"history", "audios"})
      if (!text(fmt::format("columns.{}", column)).empty())
        note(fmt::format("columns.{} is not read", column));
    note_judgements();
    if (!text("columns.images").empty() && !conversion_.find("image_max_pixels"))
      note(
          "LLaMA-Factory shrinks images to 589824 pixels (image_max_pixels), here to the limit of "
          "the model: `data.max_image_pixels` lowers that of Qwen, Gemma 4 and InternVL");
    if (is_pair() && has_turns() && !text("columns.query").empty())
      note("columns.query is not read");
    const bool reads_input = !has_columns() || !text("columns.query").empty();
    if (!has_turns() && format() != "text" && reads_input)
      note(
          "LLaMA-Factory puts one line break between instruction and input; here an empty line is "
          "between them");
    if (has_columns() && !has_turns() && text("columns.prompt").empty())
      note(
          "columns.prompt is not named, so LLaMA-Factory has no prompt; here the column "
          "instruction "
          "is read");
    for (const char* key : {"script_url", "folder"})
      if (!text(key).empty()) note(fmt::format("{} has no equivalent", key));
  }

  void note_judgements() const {
    const bool is_named = !text("columns.kto_tag").empty();
    if (is_named && !is_judged()) note("columns.kto_tag is not read");
    if (!is_stage(conversion_, "kto")) return;
    if (is_pair())
      note(
          "LLaMA-Factory trains on the chosen answer alone, as a desirable one; here the rejected "
          "one is an undesirable example, too");
    else if (!is_named)
      note("columns.kto_tag is not named, so LLaMA-Factory leaves these records out");
  }

  Conversion& conversion_;
  const SourceKey& key_;
  std::string name_;
  const Value& entry_;
};

/// Names of data sets, in a list or a text.
std::vector<std::string> factory_names(const Value& value) {
  std::vector<std::string> names;
  for (const Value& item : value.items) names.push_back(item.text);
  if (value.kind == Value::Kind::kScalar) names = split(value.text, ',');
  for (std::string& name : names) name = std::string(trim(name));
  return names;
}

std::filesystem::path factory_info(const Conversion& conversion) {
  const auto given = conversion.find("dataset_dir");
  const std::filesystem::path folder = given ? given->value.text : "data";
  return conversion.source().path_beside((folder / "dataset_info.json").string());
}

/// The folder of relative paths of images and videos.
void factory_media_dir(Conversion& conversion, const SourceKey& key) {
  if (!is_off(key.value))
    conversion.set(key, "data.image_root",
                   conversion.source().path_beside(key.value.text).string());
}

void factory_max_samples(Conversion& conversion, const SourceKey& key) {
  if (is_plain_file(factory_info(conversion)))
    return conversion.note_no_meaning(key, "it is a part of each entry of data.train");
  conversion.note_lost(key, fmt::format("write it in each entry of data.train and data.val: "
                                        "[{{path: FILE, max_samples: {}}}]",
                                        key.value.text));
}

void factory_sources(Conversion& conversion, const SourceKey& key, std::string_view field) {
  if (is_off(key.value)) return;
  const std::filesystem::path info = factory_info(conversion), folder = info.parent_path();
  const std::vector<std::string> names = factory_names(key.value);
  if (!is_plain_file(info))
    return conversion.note_lost(key, fmt::format("{} was not found: set {} to the files of {}",
                                                 info.string(), field, join(names, ", ")));
  Problems problems;
  const Value entries = config::parse_yaml(read_text_file(info), info.string(), problems);
  conversion.problems.insert(conversion.problems.end(), problems.begin(), problems.end());
  Json sources = Json::array();
  for (const std::string& name : names) {
    const Value* entry = name.find('.') == std::string::npos ? value_at(entries, name) : nullptr;
    if (entry == nullptr)
      conversion.refuse(
          key, fmt::format("`{}` has `{}`, which {} does not list", key.name, name, info.string()),
          "correct the name, or dataset_dir");
    else
      sources.push_back(FactoryEntry(conversion, key, name, *entry).source(folder));
  }
  if (!sources.empty()) conversion.set(key, field, value_from_json(sources));
}
void factory_dataset(Conversion& conversion, const SourceKey& key) {
  factory_sources(conversion, key, "data.train");
}
void factory_eval_dataset(Conversion& conversion, const SourceKey& key) {
  factory_sources(conversion, key, "data.val");
}

/// The number of layers of a model on this machine.
std::optional<int64_t> num_layers(const Conversion& conversion) {
  const std::filesystem::path config =
      conversion.source().path_beside(conversion.text_of("model_name_or_path")) / "config.json";
  if (!is_plain_file(config)) return std::nullopt;
  const Json model = Json::parse(read_text_file(config), nullptr, /*allow_exceptions=*/false);
  for (const Json* part :
       {&model,
        model.is_object() && model.contains("text_config") ? &model["text_config"] : nullptr}) {
    if (part == nullptr || !part->is_object() || !part->contains("num_hidden_layers")) continue;
    const Json& number = (*part)["num_hidden_layers"];
    constexpr int64_t kMaxLayers = 4096;  // a sane length of the pattern
    if (number.is_number_integer() && number >= 1 && number <= kMaxLayers)
      return number.get<int64_t>();
  }
  return std::nullopt;
}

/// A pattern of any of `names`.
std::string any_of_names(const std::vector<std::string>& names) {
  std::vector<std::string> escaped;
  for (const std::string& name : names) {
    std::string& text = escaped.emplace_back();
    for (const char c : name) {
      if (std::string_view("\\^$.|?*+()[]{}").find(c) != std::string_view::npos) text += '\\';
      text += c;
    }
  }
  return escaped.size() == 1 ? escaped.front() : fmt::format("({})", join(escaped, "|"));
}

/// finetuning_type freeze: what trains, as patterns.
class FactoryFreeze {
 public:
  explicit FactoryFreeze(Conversion& conversion) : conversion_(conversion) {}

  void apply() const {
    const SourceKey key = named_or_type("freeze_trainable_layers");
    if (const auto pro = conversion_.find("use_llama_pro"); pro && !is_off(pro->value))
      return conversion_.note_lost(*pro, "name the layers that it trains in `tuning.trainable`");
    const int64_t wanted = parse_int(key.value.text).value_or(kUsualLayers);
    const auto all = num_layers(conversion_);
    if (wanted > 0 && !all)
      return conversion_.note_lost(
          key, fmt::format("name the last {} of the model's layers in `tuning.trainable`. Of 32 "
                           "layers that is ['{}']. num_hidden_layers in the model's config.json, "
                           "which was not found, is their number",
                           wanted, pattern(32, wanted)));
    Json patterns = Json::array();
    if (const std::string layers = pattern(all.value_or(kMaxLayers), wanted); !layers.empty())
      patterns.push_back(layers);
    for (const std::string& name : names_of("freeze_extra_modules"))
      patterns.push_back(any_of_names({name}));
    if (patterns.empty()) return conversion_.note_lost(key, "it names no layers");
    conversion_.set(key, "tuning.trainable", value_from_json(patterns));
  }

 private:
  static constexpr int64_t kUsualLayers = 2, kMaxLayers = 1024;

  SourceKey named_or_type(const char* name) const {
    const auto key = conversion_.find(name);
    return key ? *key : *conversion_.find("finetuning_type");
  }
  std::vector<std::string> names_of(const char* key) const {
    const auto given = conversion_.find(key);
    return given ? factory_names(given->value) : std::vector<std::string>();
  }
  /// The last `wanted` of `all` layers, or the first of a negative number. "": none
  std::string pattern(int64_t all, int64_t wanted) const {
    const int64_t begin = wanted > 0 ? std::max<int64_t>(0, all - wanted) : 0;
    const int64_t end = wanted > 0 ? all : std::min(all, wanted < -all ? all : -wanted);
    std::vector<std::string> layers;
    for (int64_t layer = begin; layer < end; ++layer) layers.push_back(fmt::format("{}", layer));
    if (layers.empty()) return {};
    const std::vector<std::string> modules = names_of("freeze_trainable_modules");
    const bool is_whole =
        modules.empty() || std::find(modules.begin(), modules.end(), "all") != modules.end();
    return fmt::format("layers\\.{}\\.{}", any_of_names(layers),
                       is_whole ? "" : any_of_names(modules));
  }

  Conversion& conversion_;
};

/// Keys that FactoryFreeze reads.
void factory_frozen(Conversion& conversion, const SourceKey& key) {
  if (conversion.text_of("finetuning_type") != "freeze")
    conversion.note_no_meaning(key, "only used with finetuning_type freeze");
}

bool factory_is_lora(const Conversion& conversion) {
  const std::string type = conversion.text_of("finetuning_type");
  return type.empty() || type == "lora";
}

/// The parts that freeze_vision_tower, freeze_multi_modal_projector, freeze_language_model and
/// train_mm_proj_only leave to train. Adapters are not for the projector there.
Json factory_trained_parts(const Conversion& conversion) {
  const auto says = [&](const char* name, bool by_default) {
    const auto key = conversion.find(name);
    return key ? parse_bool(key->value.text).value_or(by_default) : by_default;
  };
  const bool is_projector_alone = says("train_mm_proj_only", false);
  Json parts = Json::array();
  if (!is_projector_alone && !says("freeze_language_model", false)) parts.push_back("language");
  if ((is_projector_alone || !says("freeze_multi_modal_projector", true)) &&
      !factory_is_lora(conversion))
    parts.push_back("projector");
  if (!says("freeze_vision_tower", true)) parts.push_back("vision");
  return parts;
}

void factory_parts(Conversion& conversion, const SourceKey& key) {
  if (key.name == "train_mm_proj_only" && is_off(key.value))
    return conversion.note_no_meaning(key, "the projector is frozen by default");
  if (key.name == "freeze_multi_modal_projector" && factory_is_lora(conversion) &&
      is_off(key.value))
    return conversion.note_no_meaning(key, "LLaMA-Factory has no adapters for the projector");
  const Json parts = factory_trained_parts(conversion);
  if (parts.empty())
    return conversion.refuse(key, "all parts of the model are frozen",
                             "set freeze_vision_tower, freeze_multi_modal_projector or "
                             "freeze_language_model to false; the projector trains with "
                             "finetuning_type full");
  if (parts == Json::array({"language"}))
    return conversion.note_no_meaning(key, "the text model alone trains by default");
  conversion.set(key, "tuning.train_parts", value_from_json(parts));
}

/// lora_alpha is twice the rank by default; stage pt trains on every token of plain text.
void factory_finish(Conversion& conversion) {
  constexpr int64_t kLoggingSteps = 500;
  finish_losses_of_factory(conversion);
  complete_eval_steps(conversion, kLoggingSteps);
  if (const auto rank = conversion.count_of("lora_rank", 1); !conversion.has("tuning.lora.alpha")) {
    constexpr int64_t kRank = 8;
    conversion.set_default("tuning.lora.alpha", fmt::format("{}", 2 * rank.value_or(kRank)));
  }
  if (is_stage(conversion, "pt")) {
    const SourceKey stage = *conversion.find("stage");
    conversion.set(stage, "data.format", "text");
    conversion.set(stage, "data.loss_on", "all");
    if (!conversion.has("data.packing")) conversion.set_default("data.packing", "true");
    conversion.note_lost(
        stage,
        "a text longer than cutoff_len is cut off there; LLaMA-Factory continues it "
        "in the next sequence");
  }
  if (conversion.text_of("finetuning_type") == "freeze") FactoryFreeze(conversion).apply();
}

constexpr auto kLlamaFactoryConverters = std::to_array<Converter>({
    {"mode", factory_mode},
    {"frozen", factory_frozen},
    {"parts", factory_parts},
    {"stage", factory_stage},
    {"target", factory_target},
    {"saved", factory_saved},
    {"bits", factory_bits},
    {"quantization_method", factory_quantization_method},
    {"dataset", factory_dataset},
    {"eval_dataset", factory_eval_dataset},
    {"neat_packing", factory_neat_packing},
    {"preference", factory_preference},
    {"cross_entropy", factory_cross_entropy},
    {"bco", factory_bco},
    {"smoothing", factory_smoothing},
    {"length", factory_length},
    {"reference", factory_reference},
    {"reference_adapter", factory_reference_adapter},
    {"start_adapter", factory_adapter},
    {"max_samples", factory_max_samples},
    {"media_dir", factory_media_dir},
    {"named_template", factory_template},
    {"thinking", factory_thinking},
    {"deepspeed", factory_deepspeed},
});

}  // namespace

const ToolCode& llama_factory() {
  static const ToolCode code{.tool = Tool::kLlamaFactory,
                             .name = "LLaMA-Factory",
                             .word = "llama-factory",
                             .table = kLlamaFactoryTable,
                             .converters = kLlamaFactoryConverters,
                             .finish = factory_finish};
  return code;
}

}  // namespace sftrun::foreign
