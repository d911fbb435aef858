#include "whole_model.h"

#include "../arch_checks.h"
#include "../family.h"
#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"
#include "sftrun/spec/vision_tensors.h"

namespace sftrun::spec {
namespace {

using nlohmann::json;

/// Qwen3-VL's router always normalises, and files have experts in another order than those of Qwen 3.
void adjust_qwen3_vl_moe(ArchSpec& arch) {
  arch.mixture.normalise = true;
  arch.mixture.files = ExpertFiles::kTransposed;
}

/// Beside these a text model may be of any family. Those without sections only add the defaults that a file with a text model alone
/// must spell out.
const std::vector<TextPart>& text_parts() {
  static const std::vector<TextPart> parts = {
      {.model_type = "qwen2_5_vl_text",
       .family = "qwen2",
       .defaults =
           R"({"vocab_size": 152064, "hidden_size": 8192, "intermediate_size": 29568, "num_hidden_layers": 80,
                       "num_attention_heads": 64, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1000000.0,
                       "max_position_embeddings": 32768, "max_window_layers": 80, "bos_token_id": 151643, "eos_token_id": 151645})",
       .sections = {16, 24, 24}},
      {.model_type = "qwen3_vl_text",
       .family = "qwen3",
       .defaults =
           R"({"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
                       "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128, "rope_theta": 500000.0,
                       "max_position_embeddings": 128000})",
       .sections = {24, 20, 20},
       .sections_alternate = true},
      {.model_type = "qwen3_vl_moe_text",
       .family = "qwen3_moe",
       .defaults =
           R"({"vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24,
                       "num_attention_heads": 16, "num_key_value_heads": 16, "rope_theta": 500000.0, "max_position_embeddings": 128000,
                       "moe_intermediate_size": 1408, "num_experts_per_tok": 4, "num_experts": 60})",
       .sections = {24, 20, 20},
       .sections_alternate = true,
       .adjust = adjust_qwen3_vl_moe},
      {.model_type = "qwen3_5_text",
       .family = "qwen3_5_text",
       .sections = {11, 11, 10},
       .sections_alternate = true},
      {.model_type = "qwen3_5_moe_text",
       .family = "qwen3_5_moe_text",
       .sections = {11, 11, 10},
       .sections_alternate = true},
      {.model_type = "llama",
       .family = "llama",
       .defaults =
           R"({"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
                       "num_attention_heads": 32, "bos_token_id": 1, "eos_token_id": 2})"},
      {.model_type = "mistral",
       .family = "mistral",
       .defaults =
           R"({"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
                       "num_attention_heads": 32, "num_key_value_heads": 8, "bos_token_id": 1, "eos_token_id": 2})"},
      {.model_type = "qwen2",
       .family = "qwen2",
       .defaults =
           R"({"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
                       "num_attention_heads": 32, "num_key_value_heads": 32})"},
      {.model_type = "qwen3",
       .family = "qwen3",
       .defaults =
           R"({"vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
                       "num_attention_heads": 32, "num_key_value_heads": 32})"},
  };
  return parts;
}

/// The text model's keys as files have them: an object of its own, or beside `vision_config`.
json text_config_of(const JsonFields& config, const WholeModel& model) {
  const json* text = config.find("text_config");
  if (!text && !model.may_be_flat) config.fail_missing("text_config");
  if (text && !text->is_object()) config.fail("text_config", "an object");
  if (text) return *text;
  json flat = config.object();
  for (const char* key : {"vision_config", "model_type", "architectures"}) flat.erase(key);
  return flat;
}

/// transformers 5 reads the whole model's key. Earlier files have it beside the text model's.
bool ties(const JsonFields& config, const json& text, const WholeModel& model) {
  constexpr const char* kKey = "tie_word_embeddings";
  const JsonFields fields(text, config.where(), {}, "text_config.");
  const bool of_text = fields.get_bool(kKey, model.is_tied);
  return config.get_bool(kKey, of_text) || (model.text_config_ties && of_text);
}

/// Gives the RoPE the type that transformers uses for "mrope".
void replace_mrope(json& text) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const auto rope = text.find(key);
    if (rope == text.end() || !rope->is_object()) continue;
    for (const char* type : {"type", "rope_type"})
      if (rope->contains(type) && (*rope)[type] == "mrope") (*rope)[type] = "default";
  }
}

std::vector<int64_t> written_sections(const json& text, const TextPart& part,
                                      const std::string& where) {
  constexpr const char* kKey = "mrope_section";
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    const auto rope = text.find(name);
    if (rope == text.end() || !rope->is_object() || rope->empty()) continue;
    const JsonFields fields(*rope, where, {}, fmt::format("text_config.{}.", name));
    const json* written = fields.find(kKey);
    if (!written) break;
    const std::vector<int64_t> sections = fields.get_ids(kKey);
    if (!written->is_array() || sections.size() != 3)
      fields.fail(kKey, "a list of three numbers: the frequencies of time, height and width");
    return sections;
  }
  return part.sections;
}

/// Each image token has three positions. transformers ignores `mrope_interleaved`.
void set_sections(ArchSpec& arch, const json& text, const TextPart& part,
                  const std::string& where) {
  RopeSpec& rope = arch.ropes.at(0);
  rope.sections = written_sections(text, part, where);
  rope.sections_alternate = part.sections_alternate;
  int64_t sum = 0;
  for (const int64_t section : rope.sections) sum += section;
  if (rope.sections_alternate || sum == rope.rotary_dim / 2) return;
  throw DataError(
      fmt::format("`mrope_section` divides {} frequencies into three parts; a head has {}", sum,
                  rope.rotary_dim / 2),
      where, "its three numbers must add up to half of `head_dim`");
}

std::string text_type_of(const json& text, const WholeModel& model, const std::string& where) {
  if (!model.text_type_is_open) return std::string(model.text_type);
  return JsonFields(text, where, {}, "text_config.")
      .get_string("model_type", std::string(model.text_type));
}

ArchSpec read_text(const JsonFields& config, const WholeModel& model) {
  const json written = text_config_of(config, model);
  const std::string type = text_type_of(written, model, config.where());
  const TextPart* part = find_text_part(type);
  json text = json::parse(part ? part->defaults : "{}");
  text.update(json::parse(model.text_defaults));
  text.update(written);
  text["model_type"] = part ? std::string(part->family) : type;
  text["tie_word_embeddings"] = ties(config, written, model);
  for (const char* key : {"bos_token_id", "eos_token_id", "quantization_config"})
    if (!written.contains(key) && config.has(key)) text[key] = *config.find(key);
  replace_mrope(text);
  ArchSpec arch = ArchSpec::from_hf_config(text, config.where());
  if (part && !part->sections.empty()) set_sections(arch, written, *part, config.where());
  if (part && part->adjust) part->adjust(arch);
  return arch;
}

/// Either of the two names that transformers has for the key.
int64_t image_token_of(const JsonFields& config, int64_t otherwise) {
  constexpr const char *kId = "image_token_id", *kIndex = "image_token_index";
  const int64_t index = config.get_int(kIndex, otherwise, 0, kMaxSize),
                id = config.get_int(kId, index, 0, kMaxSize);
  if (!config.has(kIndex) || id == index) return id;
  throw DataError(fmt::format("`{}` {} differs from `{}` {}", kId, id, kIndex, index),
                  config.where(), "keep the one that the tokenizer has for images");
}

}  // namespace

const std::vector<const WholeModel*>& whole_models() {
  static const std::vector<const WholeModel*> all = {
      &kWholeQwen2_5Vl, &kWholeQwen3Vl,  &kWholeQwen3VlMoe, &kWholeQwen3_5,  &kWholeQwen3_5Moe,
      &kWholeGemma3,    &kWholeGemma4,   &kWholeSmolVlm,    &kWholeIdefics3, &kWholeLlava,
      &kWholeLlavaNext, &kWholeInternVl, &kWholeMistral3};
  return all;
}

const WholeModel* find_whole_model(const std::string& model_type) {
  for (const WholeModel* model : whole_models())
    if (model->model_type == model_type) return model;
  return nullptr;
}

const TextPart* find_text_part(const std::string& model_type) {
  for (const TextPart& part : text_parts())
    if (part.model_type == model_type) return &part;
  return nullptr;
}

ArchSpec read_whole_model(const JsonFields& config, const WholeModel& model) {
  ArchSpec arch = read_text(config, model);
  arch.prefix = model.text_prefix;
  arch.whole_model = model.model_type;
  if (model.may_lack_vision && !config.has("vision_config")) return arch;
  VisionSpec vision = model.read(config, arch);
  vision.model_type = model.model_type;
  vision.model_class = model.model_class;
  vision.image_token_id = image_token_of(config, model.image_token_id);
  for (LayerSpec& layer : arch.layers)
    layer.both_ways = vision.both_ways == BothWays::kEveryLayer ||
                      (vision.both_ways == BothWays::kWindowedLayers && layer.window > 0);
  arch.vision = std::move(vision);
  return arch;
}

std::string name_in_whole_model(const ArchSpec& arch, const std::string& stored) {
  const WholeModel* model = find_whole_model(arch.whole_model);
  SFTRUN_CHECK(model != nullptr);
  std::string name = stored;
  for (const Rename& rename : model->renames())
    if (name.starts_with(rename.from))
      name = std::string(rename.to) + name.substr(rename.from.size());
  return name;
}

}  // namespace sftrun::spec
