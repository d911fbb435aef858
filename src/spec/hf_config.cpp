#include <algorithm>

#include "arch_checks.h"
#include "family.h"
#include "hf_rope.h"
#include "json_fields.h"
#include "sftrun/core/error.h"
#include "sftrun/spec/arch_spec.h"
#include "sftrun/spec/quantization_config.h"
#include "vision/whole_model.h"

/// The config.json keys that all families have in common.
namespace sftrun::spec {
namespace {

using nlohmann::json;

constexpr std::string_view kScoringEnd = "ForSequenceClassification";

/// Bits and variants of AWQ, GPTQ and compressed-tensors' integers that are not read.
void refuse_integers(const QuantizationConfig& quantization, const std::string& where) {
  constexpr const char* kFix =
      "use a checkpoint in 4 bits, or the unquantised one; `tuning.quant` quantises it when it is "
      "loaded";
  const std::string& method = quantization.method;
  for (const int64_t bits : quantization.bits) {
    if (bits == 4) continue;
    throw DataError(
        fmt::format("the checkpoint is quantised by \"{}\" to {} bits; supported: 4", method, bits),
        where, kFix);
  }
  if (quantization.not_read.empty()) return;
  throw DataError(
      fmt::format("the checkpoint is quantised by \"{}\", and {}", method, quantization.not_read),
      where, kFix);
}

void refuse_quantized(const json& config, const std::string& where, const Family& family) {
  const auto quantization = read_quantization_config(config, where);
  if (!quantization) return;
  const QuantLayout layout = quantization->layout();
  for (const std::string& strategy : quantization->strategies) {
    if (layout != QuantLayout::kCompressedFp8 || strategy == "channel" || strategy == "tensor" ||
        strategy == "block")
      continue;
    throw DataError(
        fmt::format(
            "the checkpoint's FP8 scales use the strategy \"{}\"; supported: one scale per row "
            "(\"channel\"), per block (\"block\") or per matrix (\"tensor\")",
            strategy),
        where, "use the unquantised checkpoint with tuning.quant: fp8");
  }
  const std::vector<int64_t>& block = quantization->block;
  if (!block.empty() && block != std::vector{kFp8Block, kFp8Block}) {
    throw DataError(
        fmt::format("the checkpoint's FP8 scales are of blocks of {} rows and {} columns; "
                    "supported: {} and {}",
                    block[0], block[1], kFp8Block, kFp8Block),
        where, "use the unquantised checkpoint with tuning.quant: fp8");
  }
  refuse_integers(*quantization, where);
  const std::string& method = quantization->method;
  if (method == "mxfp4" && family.reads_mxfp4) return;
  if (layout != QuantLayout::kNone) return;
  throw DataError(
      fmt::format("the checkpoint is quantised by \"{}\", which is not supported", method), where,
      "use the unquantised checkpoint; `tuning.quant` quantises it when it is loaded");
}

Activation read_activation(const JsonFields& config, const Family& family) {
  const std::string key(family.activation_key);
  const std::string name = config.get_string(key, "silu");
  if (name == "silu") return Activation::kSilu;
  if (name == "gelu_pytorch_tanh") return Activation::kGeluTanh;
  throw DataError(fmt::format("`{}` \"{}\" is not supported", key, name), config.where(),
                  "supported: \"silu\" and \"gelu_pytorch_tanh\"");
}

void read_hf_sizes(const JsonFields& config, ArchSpec& arch) {
  arch.vocab_size = config.require_int("vocab_size", 1, kMaxSize);
  arch.hidden_size = config.require_int("hidden_size", 1, kMaxSize);
  arch.intermediate_size = config.require_int("intermediate_size", 1, kMaxSize);
  arch.num_layers = config.require_int("num_hidden_layers", 1, kMaxLayers);
  arch.num_heads = config.require_int("num_attention_heads", 1, kMaxSize);
  arch.num_kv_heads = config.get_int("num_key_value_heads", arch.num_heads, 1, kMaxSize);
  if (!config.has("head_dim") && arch.hidden_size % arch.num_heads != 0) {
    throw DataError(fmt::format("hidden_size {} is not a multiple of num_attention_heads {} and "
                                "`head_dim` is missing",
                                arch.hidden_size, arch.num_heads),
                    config.where());
  }
  arch.head_dim = config.get_int("head_dim", arch.hidden_size / arch.num_heads, 1, kMaxSize);
  arch.max_position_embeddings = config.get_int("max_position_embeddings", 2048, 1, kMaxSize);
  arch.layers.resize(static_cast<size_t>(arch.num_layers));
}

json ids_json(const std::vector<int64_t>& ids) {
  if (ids.empty()) return nullptr;
  return ids.size() == 1 ? json(ids[0]) : json(ids);
}

/// The keys of a file over its family's defaults; a null in the file replaces a default.
json with_defaults(const json& config, const Family& family) {
  json merged = json::parse(family.defaults);
  merged.update(config);
  return merged;
}

bool is_scoring_class(const json& config) {
  const auto classes = config.find("architectures");
  return classes != config.end() && classes->is_array() && !classes->empty() &&
         classes->front().is_string() &&
         classes->front().get_ref<const std::string&>().ends_with(kScoringEnd);
}

/// `id2label`, or the number of labels alone; as in transformers there are two where nothing is said.
ScoreSpec read_score(const JsonFields& config) {
  constexpr int64_t kMaxLabels = 1 << 20, kUsualLabels = 2;
  ScoreSpec score{.problem_type = config.get_string("problem_type", "")};
  const json* names = config.find("id2label");
  if (names == nullptr) {
    score.num_labels = config.get_int("num_labels", kUsualLabels, 1, kMaxLabels);
  } else if (!names->is_object() || names->empty()) {
    config.fail("id2label", "an object with the name of each label");
  } else {
    score.num_labels = std::ssize(*names);
    for (int64_t label = 0; label < score.num_labels; ++label) {
      const auto name = names->find(std::to_string(label));
      if (name == names->end() || !name->is_string())
        config.fail("id2label", "an object with the name of each label from 0");
      score.names.push_back(name->get<std::string>());
    }
  }
  return score;
}

}  // namespace

std::string score_class(const ArchSpec& arch) {
  const Family& family = family_named(arch.family, {});
  if (!family.score_class.empty())
    return family.score_class == "-" ? std::string() : std::string(family.score_class);
  std::string name(family.model_class);
  constexpr std::string_view kCausal = "ForCausalLM";
  SFTRUN_CHECK(name.ends_with(kCausal));
  return name.replace(name.size() - kCausal.size(), kCausal.size(), kScoringEnd);
}

void set_score(ArchSpec& arch, ScoreSpec score) {
  for (int64_t label = std::ssize(score.names); label < score.num_labels; ++label)
    score.names.push_back(fmt::format("LABEL_{}", label));
  arch.score = std::move(score);
  arch.tie_word_embeddings = false;  // there is no head that could be tied
}

ArchSpec ArchSpec::from_hf_config(const json& config_json, const std::string& where) {
  const JsonFields as_written(config_json, where);
  const std::string model_type = as_written.get_string("model_type", "");
  if (model_type.empty())
    throw DataError("`model_type` is missing", where,
                    "name the config.json of a transformers model, or download it again");
  if (const WholeModel* model = find_whole_model(model_type))
    return read_whole_model(as_written, *model);
  const Family& family = family_named(model_type, where);
  ArchSpec arch;
  arch.family = model_type;
  const json merged = with_defaults(config_json, family);
  const JsonFields config(merged, where);
  refuse_quantized(merged, where, family);
  if (family.traits) family.traits(arch);
  read_hf_sizes(config, arch);
  arch.activation = read_activation(config, family);
  arch.rms_norm_eps = config.get_positive("rms_norm_eps", 1e-6);
  arch.tie_word_embeddings = config.get_bool("tie_word_embeddings", false);
  if (config.has("bos_token_id"))
    arch.bos_token_id = config.require_int("bos_token_id", 0, kMaxSize);
  arch.eos_token_ids = config.get_ids("eos_token_id");
  if (const json* pad = config.find("pad_token_id");
      pad != nullptr && pad->is_number_integer() && *pad >= 0)
    arch.pad_token_id = pad->get<int64_t>();
  if (const json* range = config.find("initializer_range"); range != nullptr && range->is_number())
    arch.initializer_range = range->get<double>();
  if (family.read) family.read(config, arch);
  read_ropes(config, family, arch);
  if (is_scoring_class(config_json)) set_score(arch, read_score(config));
  check_arch(arch, where);
  return arch;
}

json ArchSpec::to_hf_config() const {
  const Family& family_of_model = family_named(family, {});
  json config = {
      {"architectures", {family_of_model.model_class}},
      {"model_type", family},
      {"vocab_size", vocab_size},
      {"hidden_size", hidden_size},
      {"intermediate_size", intermediate_size},
      {"num_hidden_layers", num_layers},
      {"num_attention_heads", num_heads},
      {"num_key_value_heads", num_kv_heads},
      {"head_dim", head_dim},
      {std::string(family_of_model.activation_key),
       activation == Activation::kGeluTanh ? "gelu_pytorch_tanh" : "silu"},
      {"max_position_embeddings", max_position_embeddings},
      {"rms_norm_eps", rms_norm_eps},
      {"tie_word_embeddings", tie_word_embeddings},
      {"bos_token_id", bos_token_id ? json(*bos_token_id) : json(nullptr)},
      {"eos_token_id", ids_json(eos_token_ids)},
      {"pad_token_id", nullptr},  // some classes' default lies outside a smaller vocabulary
  };
  write_ropes(*this, family_of_model, config);
  if (family_of_model.write) family_of_model.write(*this, config);
  return config;
}

}  // namespace sftrun::spec
