#include "sftrun/weights/vllm_adapter.h"
#include "sftrun/spec/blocks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/regex.h"
#include "sftrun/core/strings.h"
#include "sftrun/spec/trained_names.h"
#include "sftrun/weights/adapter_file.h"
#include "sftrun/weights/hf_text_files.h"

namespace sftrun::weights {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr std::string_view kGateUp = "gate_up_proj", kDown = "down_proj";

bool is_mixtral(const spec::ArchSpec& arch) {
  return arch.mixture.files == spec::ExpertFiles::kMixtral;
}

/// "gate_proj", "up_proj", "down_proj"; for Mixtral "w1", "w3", "w2".
struct MatrixNames {
  std::string gate, up, down;
};
MatrixNames matrix_names(const spec::ArchSpec& arch) {
  if (is_mixtral(arch)) return {"w1", "w3", "w2"};
  return {"gate_proj", "up_proj", "down_proj"};
}

/// vLLM's Mixtral uses the names in the files, which differ from transformers 5.
std::string vllm_name(const spec::ArchSpec& arch, const std::string& module) {
  constexpr std::string_view kOurs = ".mlp.", kTheirs = ".block_sparse_moe.";
  const size_t at = module.find(kOurs);
  if (!is_mixtral(arch) || at == std::string::npos) return module;
  return std::string(module).replace(at, kOurs.size(), kTheirs);
}

std::string leaf(const std::string& module) {
  return module.substr(module.rfind('.') + 1);
}

/// Replaces the last component of a name by `ending`.
std::string with_leaf(const std::string& name, std::string_view ending) {
  return name.substr(0, name.size() - leaf(name).size()) + std::string(ending);
}

/// gate_up_proj for down_proj and vice versa; empty for other names.
std::string partner_of(const std::string& name) {
  const std::string last = leaf(name);
  if (last == kGateUp) return with_leaf(name, kDown);
  return last == kDown ? with_leaf(name, kGateUp) : "";
}

/// The k_proj of layers that use their keys as values.
std::vector<std::string> keys_that_are_values(const spec::ArchSpec& arch) {
  std::vector<std::string> names;
  for (int64_t layer = 0; layer < arch.num_layers; ++layer) {
    if (arch.layers.at(static_cast<size_t>(layer)).value_is_key)
      names.push_back(spec::name_in_layer(arch, layer, "self_attn.k_proj"));
  }
  return names;
}

/// One matrix of an expert, as a part of the adapter of all experts of a layer.
struct ExpertMatrix {
  std::string name;
  int64_t first_row = 0, rows = 0;    ///< in B
  int64_t first_rank = 0, ranks = 0;  ///< in A and B
};

/// A module under its name in vLLM's file.
struct Written {
  std::string module;
  int64_t r = 0;
  double scale = 1;
};

void copy_a(const LoraPair& pair, int64_t expert, const ExpertMatrix& matrix, float* to) {
  const auto first = pair.a.begin() + (expert * pair.r + matrix.first_rank) * pair.in_features;
  std::copy(first, first + matrix.ranks * pair.in_features, to);
}

void copy_b(const LoraPair& pair, int64_t expert, const ExpertMatrix& matrix, float* to) {
  for (int64_t row = 0; row < matrix.rows; ++row) {
    for (int64_t i = 0; i < matrix.ranks; ++i) {
      const int64_t from = (matrix.first_row + row) * pair.r + matrix.first_rank + i;
      *to++ = pair.b[static_cast<size_t>(from * pair.num_experts + expert)];
    }
  }
}

/// Whether B is block diagonal: gate's rows are zero in up's ranks (the second half), and up's rows
/// in gate's ranks.
bool is_block_diagonal(const LoraPair& pair) {
  const int64_t half = pair.r / 2;
  for (int64_t row = 0; row < pair.out_features; ++row) {
    const bool is_gate = row < pair.out_features / 2;
    const auto others = pair.b.begin() + (row * pair.r + (is_gate ? half : 0)) * pair.num_experts;
    if (std::any_of(others, others + half * pair.num_experts, [](float b) { return b != 0; }))
      return false;
  }
  return true;
}

class VllmWriter {
 public:
  VllmWriter(const spec::ArchSpec& arch, AdapterConfig config, AdapterTensors adapter)
      : arch_(arch), config_(std::move(config)), adapter_(std::move(adapter)) {}

  void write(const fs::path& directory) {
    add_missing_experts();
    add_values();
    const bool each = vllm_experts(arch_) == VllmExperts::kEach;
    if (each) take_gate_and_up_apart();
    std::vector<TensorToWrite> tensors;
    for (const auto& [module, pair] : adapter_.lora) {
      if (pair.num_experts == 0)
        add_linear(module, pair, tensors);
      else if (each)
        add_each(module, pair, tensors);
      else
        add_whole(peft_expert_module(module, /*both_adapted=*/true), pair, tensors);
    }
    make_directories(directory);
    write_safetensors(directory / "adapter_model.safetensors", tensors);
    write_file_atomically(directory / "adapter_config.json", config_json(each).dump(2) + "\n");
  }

 private:
  /// vLLM needs adapters of both gate_up_proj and down_proj of a layer, or of none.
  void add_missing_experts() {
    for (int64_t layer = 0; layer < arch_.num_layers; ++layer) {
      for (const spec::ExpertSpec& experts : spec::layer_experts(arch_, layer)) {
        const std::string name = spec::name_in_layer(arch_, layer, experts.module);
        const bool is_missing = !adapter_.lora.contains(name);
        if (is_missing && adapter_.lora.contains(partner_of(name))) add_zeros(name, experts);
      }
    }
    std::vector<std::string> partners;
    for (const std::string& target : config_.lora.target_parameters) {
      if (const std::string partner = partner_of(target); !partner.empty())
        partners.push_back(partner);
    }
    add_names(config_.lora.target_parameters, partners);
  }

  void add_zeros(const std::string& name, const spec::ExpertSpec& experts) {
    LoraPair& pair = adapter_.lora[name];
    pair.num_experts = arch_.mixture.num_experts;
    pair.in_features = experts.in_features;
    pair.out_features = experts.out_features;
    pair.r = config_.lora.r_of(name);
    pair.scale = config_.lora.scale_of(name);
    pair.a.resize(static_cast<size_t>(pair.num_experts * pair.r * pair.in_features));
    pair.b.resize(static_cast<size_t>(pair.out_features * pair.r * pair.num_experts));
  }

  /// vLLM fuses q, k and v and needs an adapter for each.
  void add_values() {
    for (const std::string& key : keys_that_are_values(arch_)) {
      const auto pair = adapter_.lora.find(key);
      if (pair == adapter_.lora.end()) continue;
      const std::string value = with_leaf(key, "v_proj");
      adapter_.lora[value] = pair->second;
      added_modules_.push_back("v_proj");
    }
  }

  /// Detects older adapters, with separate ranks for gate and up: r is doubled and B block
  /// diagonal.
  void take_gate_and_up_apart() {
    const double scale =
        spec::LoraSpec{
            .r = config_.lora.r, .alpha = config_.lora.alpha, .rslora = config_.lora.rslora}
            .scale_of("");
    for (const auto& [module, pair] : adapter_.lora) {
      if (leaf(module) != kGateUp || pair.num_experts == 0) continue;
      if (pair.r != 2 * config_.lora.r || pair.scale != scale || !is_block_diagonal(pair)) return;
    }
    apart_ = true;
  }

  std::vector<ExpertMatrix> matrices_of(const std::string& module, const LoraPair& pair) const {
    const MatrixNames names = matrix_names(arch_);
    if (leaf(module) == kDown) return {{names.down, 0, pair.out_features, 0, pair.r}};
    const int64_t rows = pair.out_features / 2, ranks = apart_ ? pair.r / 2 : pair.r;
    return {{names.gate, 0, rows, 0, ranks}, {names.up, rows, rows, apart_ ? ranks : 0, ranks}};
  }

  void add_each(const std::string& module, const LoraPair& pair,
                std::vector<TensorToWrite>& tensors) {
    const std::string experts = vllm_name(arch_, module.substr(0, module.rfind('.')));
    for (const ExpertMatrix& matrix : matrices_of(module, pair)) {
      added_modules_.push_back(matrix.name);
      for (int64_t expert = 0; expert < pair.num_experts; ++expert) {
        const std::string name = fmt::format("{}.{}.{}", experts, expert, matrix.name);
        written_.push_back({name, matrix.ranks, pair.scale});
        tensors.push_back({lora_a_name(name),
                           DType::kF32,
                           {matrix.ranks, pair.in_features},
                           [&pair, expert, matrix](void* to) {
                             copy_a(pair, expert, matrix, static_cast<float*>(to));
                           }});
        tensors.push_back({lora_b_name(name),
                           DType::kF32,
                           {matrix.rows, matrix.ranks},
                           [&pair, expert, matrix](void* to) {
                             copy_b(pair, expert, matrix, static_cast<float*>(to));
                           }});
      }
    }
  }

  void add_linear(const std::string& module, const LoraPair& pair,
                  std::vector<TensorToWrite>& tensors) {
    const bool is_router = std::any_of(
        config_.lora.target_parameters.begin(), config_.lora.target_parameters.end(),
        [&](const std::string& target) { return ends_with_name(module + ".weight", target); });
    if (is_router) added_modules_.push_back(leaf(module));
    written_.push_back({vllm_name(arch_, module), pair.r, pair.scale});
    add_whole(written_.back().module, pair, tensors);
  }

  /// Adds A and B unchanged.
  static void add_whole(const std::string& module, const LoraPair& pair,
                        std::vector<TensorToWrite>& tensors) {
    const int64_t ranks = pair.r * std::max<int64_t>(pair.num_experts, 1);
    const auto copy = [](const std::vector<float>& values) {
      return
          [&values](void* to) { std::copy(values.begin(), values.end(), static_cast<float*>(to)); };
    };
    tensors.push_back({lora_a_name(module), DType::kF32, {ranks, pair.in_features}, copy(pair.a)});
    tensors.push_back({lora_b_name(module), DType::kF32, {pair.out_features, ranks}, copy(pair.b)});
  }

  /// If experts are separate, all targets are modules.
  ordered_json config_json(bool each) const {
    AdapterConfig config = config_;
    if (each) {
      config.lora.target_parameters.clear();
      add_targets(config.lora);
      keep_sizes(config.lora);
    }
    return config.to_json();
  }

  void add_targets(spec::LoraSpec& lora) const {
    std::vector<std::string>& modules = lora.target_modules;
    const bool is_all = !modules.empty() && modules[0] == "all-linear";
    if (added_modules_.empty() || is_all) return;
    if (!lora.target_pattern) return add_names(modules, added_modules_);
    std::vector<std::string> added;
    add_names(added, added_modules_);
    lora.target_pattern = spec::target_pattern(
        fmt::format("(?:{})|.*\\.(?:{})", lora.target_pattern->pattern(), join(added, "|")));
  }

  /// Adds patterns for the new module names before the existing patterns, and removes those that no
  /// longer match. In PEFT and vLLM a pattern matches the end of a name, so one pattern covers the
  /// experts of all layers if their sizes agree.
  void keep_sizes(spec::LoraSpec& lora) const {
    for (const bool one_for_all : {true, false}) {
      for (const Written& written : written_) {
        if (lora.r_of(written.module) == written.r &&
            lora.scale_of(written.module) == written.scale)
          continue;
        const std::string pattern = pattern_of(written.module, one_for_all);
        set_first(lora.rank_pattern, pattern, static_cast<double>(written.r));
        const double r = lora.rslora ? std::sqrt(static_cast<double>(written.r))
                                     : static_cast<double>(written.r);
        set_first(lora.alpha_pattern, pattern, written.scale * r);
      }
    }
    for (spec::NamePattern* patterns : {&lora.rank_pattern, &lora.alpha_pattern})
      std::erase_if(*patterns, [&](const auto& entry) { return !is_of_written(entry); });
  }

  bool is_of_written(const spec::NamePattern::value_type& entry) const {
    return std::any_of(written_.begin(), written_.end(), [&](const Written& written) {
      return spec::pattern_value({entry}, written.module).has_value();
    });
  }

  std::string pattern_of(const std::string& module, bool one_for_all) const {
    const MatrixNames names = matrix_names(arch_);
    const size_t at = module.rfind("experts.");
    const bool is_expert = at != std::string::npos && leaf(module) != "gate";
    if (!is_expert || module.find(".shared_expert") != std::string::npos) return escaped(module);
    const std::string which =
        leaf(module) == names.down ? names.down : fmt::format("(?:{}|{})", names.gate, names.up);
    return fmt::format("{}experts\\.[0-9]+\\.{}", one_for_all ? "" : escaped(module.substr(0, at)),
                       which);
  }

  static void set_first(spec::NamePattern& patterns, const std::string& pattern, double value) {
    std::erase_if(patterns, [&](const auto& entry) { return entry.first.expression() == pattern; });
    patterns.insert(patterns.begin(), {pattern, value});
  }

  static void add_names(std::vector<std::string>& names, const std::vector<std::string>& added) {
    names.insert(names.end(), added.begin(), added.end());
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
  }

  const spec::ArchSpec& arch_;
  AdapterConfig config_;
  AdapterTensors adapter_;
  bool apart_ = false;  // gate and up have separate ranks
  std::vector<Written> written_;
  std::vector<std::string> added_modules_;  // as in target_modules
};

int64_t largest_rank(const spec::LoraSpec& lora) {
  double largest = static_cast<double>(lora.r);
  for (const auto& [name, r] : lora.rank_pattern) largest = std::max(largest, r);
  return static_cast<int64_t>(largest);
}

}  // namespace

VllmExperts vllm_experts(const spec::ArchSpec& arch) {
  const bool is_gpt_oss = arch.mixture.files == spec::ExpertFiles::kGptOss;
  // vLLM has different classes for the text part alone (Qwen3_5MoeForCausalLM) and the whole model.
  const bool is_whole_qwen = arch.family == "qwen3_5_moe_text" && arch.is_text_part();
  return is_gpt_oss || is_whole_qwen ? VllmExperts::kTogether : VllmExperts::kEach;
}

std::string VllmReading::advice() const {
  return what + ": to serve the adapter there, write it with `sftrun merge --format vllm`";
}

std::string VllmRefusal::advice() const {
  return fmt::format("vLLM does not support adapters with {}{}", what,
                     may_serve_merged ? ": to serve the model there, merge it (sftrun merge)"
                                      : ", and not the merged model either");
}

int64_t vllm_max_lora_rank(const spec::LoraSpec& lora) {
  static constexpr std::array<int64_t, 7> kRanks = {16, 32, 64, 128, 256, 320, 512};
  const auto* found = std::lower_bound(kRanks.begin(), kRanks.end(), largest_rank(lora));
  return found == kRanks.end() ? 0 : *found;
}

std::optional<VllmRefusal> vllm_refusal(const spec::LoraSpec& lora, bool has_whole_modules,
                                        const spec::ArchSpec& arch,
                                        const std::function<bool(const std::string&)>& is_adapted) {
  if (lora.dora) return VllmRefusal{"DoRA"};
  if (!arch.projectors.empty()) return VllmRefusal{"projectors of features", false};
  if (lora.parts.has_image_side()) return VllmRefusal{"weights of the image side"};
  if (has_whole_modules) return VllmRefusal{"modules_to_save"};
  for (const std::string& module : {spec::embedding_module(arch), std::string(spec::kHeadModule)}) {
    if (is_adapted(module))
      return VllmRefusal{fmt::format("an update of {}, for most families", module)};
  }
  if (vllm_max_lora_rank(lora) == 0)
    return VllmRefusal{fmt::format("a rank of {}", largest_rank(lora))};
  return std::nullopt;
}

std::optional<VllmReading> vllm_reading(const spec::ArchSpec& arch,
                                        const std::function<bool(const std::string&)>& is_adapted) {
  for (const std::string& key : keys_that_are_values(arch)) {
    if (is_adapted(key))
      return VllmReading{
          true, "in layers that use keys as values, vLLM applies k_proj's update only to the keys"};
  }
  std::optional<VllmReading> reading;
  for (int64_t layer = 0; layer < arch.num_layers; ++layer) {
    const auto adapts = [&](const std::string& module) {
      return is_adapted(spec::name_in_layer(arch, layer, module));
    };
    const bool is_own_router = is_mixtral(arch) && adapts("mlp.gate");
    for (const spec::ExpertSpec& experts : spec::layer_experts(arch, layer)) {
      if (!adapts(experts.module) && !is_own_router) continue;
      if (is_mixtral(arch))
        return VllmReading{true, "vLLM ignores an adapter's weights for Mixtral's experts"};
      const bool is_alone = !adapts(partner_of(experts.module));
      if (vllm_experts(arch) == VllmExperts::kEach)
        reading = {false, "vLLM rejects adapters of this family's experts in PEFT's layout"};
      else if (is_alone)
        reading = {false, "vLLM rejects adapters of gate_up_proj or down_proj alone"};
    }
  }
  return reading;
}

std::optional<VllmAdvice> vllm_advice(const spec::LoraSpec& lora, bool has_whole_modules,
                                      const spec::ArchSpec& arch,
                                      const std::function<bool(const std::string&)>& is_adapted) {
  if (const auto refusal = vllm_refusal(lora, has_whole_modules, arch, is_adapted))
    return VllmAdvice{.text = refusal->advice()};
  const auto reading = vllm_reading(arch, is_adapted);
  if (!reading) return std::nullopt;
  return VllmAdvice{.is_warning = reading->is_silent, .text = reading->advice()};
}

void write_vllm_adapter(const fs::path& from, const fs::path& to, const spec::ArchSpec& arch) {
  AdapterConfig config = load_named_targets(from, arch);
  AdapterTensors adapter = load_adapter(from, config, arch);
  const auto is_adapted = [&](const std::string& name) { return adapter.lora.contains(name); };
  const std::string fix =
      fmt::format("serve the merged model: sftrun merge --adapter {} --output {}",
                  shell_word(from.string()), shell_word(from.string() + "-merged"));
  if (const auto refusal = vllm_refusal(config.lora, !adapter.saved.empty(), arch, is_adapted)) {
    throw DataError(
        fmt::format("vLLM does not support adapters with {}", refusal->what), from.string(),
        refusal->may_serve_merged ? fix : "use it with sftrun generate, or transformers");
  }
  if (!config.trainable_tokens.empty()) {
    throw DataError(
        "vLLM does not support adapters with single trained tokens (trainable_token_indices)",
        from.string(), fix);
  }
  if (config.lora.pissa) {
    throw DataError("the adapter's base is the PiSSA residual, which vLLM does not compute",
                    from.string(), fix);
  }
  VllmWriter(arch, std::move(config), std::move(adapter)).write(to);
  copy_text_files(from, to);
  write_template_variables(to, read_template_variables(from));
}

}  // namespace sftrun::weights
