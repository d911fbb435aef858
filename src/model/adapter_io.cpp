#include "sftrun/model/adapter_io.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "sftrun/core/dtype.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/interruption.h"
#include "sftrun/core/log.h"
#include "sftrun/core/optional_file.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/python_json.h"
#include "sftrun/core/regex.h"
#include "sftrun/core/strings.h"
#include "sftrun/spec/feature_projectors.h"
#include "sftrun/spec/trained_names.h"
#include "sftrun/spec/vision_tensors.h"
#include "sftrun/tokenizer/tokenizer.h"
#include "sftrun/weights/adapter_file.h"
#include "sftrun/weights/hf_text_files.h"
#include "sftrun/weights/score_head.h"

namespace sftrun::model {
namespace fs = std::filesystem;

namespace {

/// Splits "model.visual.blocks.3.attn.qkv" at its first number.   @return nullopt: it has none
std::optional<std::array<std::string, 3>> split_at_number(const std::string& module) {
  for (size_t dot = module.find('.'); dot != std::string::npos; dot = module.find('.', dot + 1)) {
    const size_t end = module.find('.', dot + 1);
    if (end == std::string::npos) break;
    const std::string word = module.substr(dot + 1, end - dot - 1);
    if (!word.empty() && word.find_first_not_of("0123456789") == std::string::npos)
      return std::array{module.substr(0, dot + 1), word, module.substr(end + 1)};
  }
  return std::nullopt;
}

/// An expression for these modules and no others. Layers with the same modules share a term.
std::vector<std::string> terms_of(const std::vector<std::string>& modules) {
  std::vector<std::string> terms;
  std::map<std::pair<std::string, std::string>, std::string> numbers;  // prefix, suffix -> numbers
  for (const std::string& module : modules) {
    const auto split = split_at_number(module);
    if (!split) {
      terms.push_back(escaped(module));
      continue;
    }
    const auto& [prefix, number, suffix] = *split;
    std::string& of = numbers[{prefix, suffix}];
    of += (of.empty() ? "" : "|") + number;
  }
  std::map<std::pair<std::string, std::string>, std::vector<std::string>> suffixes;
  for (const auto& [name, of] : numbers) suffixes[{name.first, of}].push_back(escaped(name.second));
  for (const auto& [name, of] : suffixes)
    terms.push_back(
        fmt::format("{}(?:{})\\.(?:{})", escaped(name.first), name.second, join(of, "|")));
  return terms;
}

/// Restricts the targets to what is adapted. Parts that do not train have modules with the same names,
/// which peft would adapt, too: in the text part names count below its prefix, of the image side each
/// module is named. The head is outside all parts.
void restrict_to_adapted(spec::LoraSpec& lora, Decoder& decoder) {
  std::vector<std::string> names, of_images, terms;
  for (const std::string& target : lora.target_modules) names.push_back(escaped(target));
  for (const layers::Linear* linear : decoder.linears())
    if (linear->lora && linear->lora->a->part != ModelPart::kLanguage)
      of_images.push_back(linear->name);
  if (decoder.options().parts.language)
    terms.push_back(
        fmt::format("{}(?:.*\\.)?(?:{})", escaped(decoder.arch().prefix), join(names, "|")));
  if (decoder.head().linear.lora) terms.push_back(spec::kHeadModule);
  for (std::string& term : terms_of(of_images)) terms.push_back(std::move(term));
  lora.target_pattern = spec::target_pattern(
      terms.size() == 1 ? terms.front() : fmt::format("(?:{})", join(terms, "|")));
  lora.target_modules.clear();
}

/// Whether an expression matches modules of the tower whose output nothing reads: peft would give them
/// adapters, and miss these in the files.
bool matches_unread(const PythonRegex& pattern, const spec::ArchSpec& arch) {
  if (!arch.vision) return false;
  const std::vector<spec::TensorSpec> tensors =
      spec::vision_tensor_specs(*arch.vision, arch.hidden_size);
  return std::any_of(tensors.begin(), tensors.end(), [&](const spec::TensorSpec& tensor) {
    return !spec::is_read(*arch.vision, tensor) &&
           pattern.matches(tensor.name.substr(0, tensor.name.rfind('.')));
  });
}

/// Doubles all ranks and adjusts alpha so that the scale of each adapter is unchanged.
void double_ranks(spec::LoraSpec& lora) {
  const double alphas = lora.rslora ? std::sqrt(2.0) : 2.0;
  lora.r *= 2;
  lora.alpha *= alphas;
  for (auto& entry : lora.rank_pattern) entry.second *= 2;
  for (auto& entry : lora.alpha_pattern) entry.second *= alphas;
}

/// Sorted and without repetition. "all-linear" becomes the modules' own names: peft accepts it only
/// as a string, not in a list.
std::vector<std::string> listed_targets(Decoder& decoder) {
  const spec::LoraSpec& lora = decoder.options().lora;
  std::set<std::string> names;
  for (const std::string& target : lora.target_modules) {
    if (target != "all-linear") {
      names.insert(target);
      continue;
    }
    for (const layers::Linear* linear : decoder.linears()) {
      // A router's adapter is requested by the name of its weight (target_parameters).
      const bool is_text = linear->lora && linear->lora->a->part == ModelPart::kLanguage;
      if (is_text && !spec::is_target(lora, linear->name + ".weight"))
        names.insert(linear->name.substr(linear->name.rfind('.') + 1));
    }
  }
  return {names.begin(), names.end()};
}

}  // namespace

weights::AdapterConfig adapter_config_of(Decoder& decoder,
                                         const std::string& base_model_name_or_path) {
  weights::AdapterConfig config;
  config.base_model_name_or_path = base_model_name_or_path;
  spec::LoraSpec& lora = config.lora = decoder.options().lora;
  if (lora.pissa) double_ranks(lora);
  lora.pissa = false;  // the files hold an adapter of the original base: see adapter_tensors
  if (decoder.arch().score) config.task_type = "SEQ_CLS";
  std::sort(lora.target_parameters.begin(), lora.target_parameters.end());
  if (lora.target_pattern) {
    if (!matches_unread(*lora.target_pattern, decoder.arch())) return config;
    const std::set<std::string> names = spec::adapted_names(lora, decoder.arch());
    lora.target_pattern = spec::target_pattern(fmt::format(
        "(?:{})", join(terms_of(std::vector<std::string>(names.begin(), names.end())), "|")));
    return config;
  }
  lora.target_modules = listed_targets(decoder);
  if (decoder.arch().is_text_part()) restrict_to_adapted(lora, decoder);
  return config;
}

namespace {

std::string yaml_of(const spec::NamePattern& pattern) {
  std::vector<std::string> entries;
  for (const auto& [name, value] : pattern)
    entries.push_back(fmt::format("'{}': {}", name.expression(), value));
  return "{" + join(entries, ", ") + "}";
}

constexpr std::string_view kOwnFilesDiffer =
    "adapter_config.json and adapter_model.safetensors do not belong together: copy both again";

/// What a run sets to start from an adapter with these targets.
std::string fix_of_targets(const spec::LoraSpec& lora, bool are_parameters) {
  constexpr size_t kMaxNames = 16;  // a list that is still written by hand
  if (are_parameters)
    return fmt::format("set tuning.lora.target_parameters: [{}], as in the adapter",
                       join(lora.target_parameters, ", "));
  if (lora.target_pattern || lora.target_modules.size() > kMaxNames)
    return "merge the adapter into its base (sftrun merge), and set model.name to the result "
           "without tuning.lora.init_from";
  return fmt::format("set tuning.lora.target_modules: [{}], as in the adapter",
                     join(lora.target_modules, ", "));
}

/// @param own of the run; equal: the adapter's files contradict each other
[[noreturn]] void fail_saved(const std::string& tensor, const char* what, const spec::LoraSpec& own,
                             const weights::AdapterConfig& config, const fs::path& directory) {
  const bool is_run = own.modules_to_save != config.lora.modules_to_save;
  if (is_run && spec::is_projector_name(tensor) && !own.parts.projector)
    throw DataError(fmt::format("the adapter {} {}, of a projector of features", what, tensor),
                    directory.string(),
                    "set tuning.train_parts to {projector: full, language: lora}");
  throw DataError(fmt::format("the adapter {} {}, a fully trained module", what, tensor),
                  directory.string(),
                  is_run ? fmt::format("set tuning.lora.modules_to_save: [{}], as in the adapter",
                                       join(config.lora.modules_to_save, ", "))
                         : std::string(kOwnFilesDiffer));
}

/// A and B have to have the rank of the run.
void require_same_rank(const std::string& name, int64_t theirs, int64_t ours,
                       const weights::AdapterConfig& config, const fs::path& directory) {
  if (theirs == ours) return;
  std::string fix = fmt::format("set tuning.lora.r: {}", config.lora.r);
  if (!config.lora.rank_pattern.empty())
    fix += fmt::format(", tuning.lora.rank_pattern: {}", yaml_of(config.lora.rank_pattern));
  if (!config.lora.alpha_pattern.empty())
    fix += fmt::format(", tuning.lora.alpha_pattern: {}", yaml_of(config.lora.alpha_pattern));
  throw ConfigError(
      fmt::format("the adapter's update of {} has the rank {}, the run's {}", name, theirs, ours),
      directory.string(), fix);
}

/// Tensors of parts that the decoder does not have: a model that reads texts alone has no image side.
/// @throws DataError if a run would lose them
template <class Values>
void leave_out_images(std::map<std::string, Values>& tensors, const Decoder& decoder,
                      const fs::path& directory) {
  if (decoder.options().with_vision) return;
  std::erase_if(tensors, [&](const auto& entry) {
    const auto part = spec::part_of(decoder.arch(), entry.first + ".");
    const bool is_there = spec::is_of_projectors(decoder.arch(), entry.first);
    if (!part || *part == ModelPart::kLanguage || is_there) return false;
    if (!decoder.options().lora.parts.has(*part)) {
      throw DataError(
          fmt::format("the adapter has {}, of the {} part", entry.first, part_name(*part)),
          directory.string(), fmt::format("add {} to tuning.train_parts", part_name(*part)));
    }
    return true;
  });
}

/// Adapters of tower layers after the one whose output is used. PEFT makes them, and nothing reads them.
void leave_out_unread(std::map<std::string, weights::LoraPair>& pairs, Decoder& decoder) {
  if (!decoder.options().with_vision) return;
  std::set<std::string> modules;
  for (const layers::Linear* linear : decoder.linears()) modules.insert(linear->name);
  std::erase_if(pairs, [&](const auto& entry) {
    const auto part = spec::part_of(decoder.arch(), entry.first + ".");
    return part && *part != ModelPart::kLanguage && !modules.contains(entry.first);
  });
}

}  // namespace

void load_adapter_weights(Decoder& decoder, const fs::path& directory) {
  load_adapter_weights(decoder, directory, [](layers::Parameter& to, const at::Tensor& values) {
    to.master.copy_(values);
  });
  decoder.parameters().refresh_compute();
}

void load_adapter_weights(Decoder& decoder, const fs::path& directory,
                          const SetMaster& set_master) {
  const auto config = weights::load_adapter_config(directory, decoder.arch());
  auto tensors = weights::load_adapter(directory, config, decoder.arch());
  const spec::LoraSpec& own = decoder.options().lora;
  leave_out_images(tensors.lora, decoder, directory);
  leave_out_images(tensors.saved, decoder, directory);
  leave_out_unread(tensors.lora, decoder);
  if (config.lora.pissa && !own.pissa) {
    throw DataError("the adapter needs the PiSSA residual of the base, not the original base",
                    directory.string(),
                    "merge it into its base (sftrun merge) and train that, or save it by PEFT with "
                    "path_initial_model_for_weight_conversion");
  }
  if (config.lora.dora != own.dora) {
    throw ConfigError(
        fmt::format("the adapter has {}magnitudes (DoRA), the run {}",
                    config.lora.dora ? "" : "no ", own.dora ? "asks for them" : "none"),
        directory.string(), fmt::format("set tuning.lora.dora: {}", config.lora.dora));
  }
  const at::NoGradGuard no_grad;
  size_t used = 0;
  std::string rescaled;  // first module whose scale differs between adapter and run
  const auto copy = [&](layers::Parameter& to, const std::vector<float>& from) {
    interruption_point();
    if (to.whole_numel() != static_cast<int64_t>(from.size())) {
      throw DataError(
          fmt::format("{} has {} values, expected {}", to.name, from.size(), to.whole_numel()),
          directory.string(), "it belongs to a model of another size");
    }
    const at::Tensor values = at::empty(to.whole_shape(), at::kFloat),
                     ordered = to.in_file_order(values);
    ordered.copy_(at::from_blob(const_cast<float*>(from.data()), ordered.sizes(), at::kFloat));
    set_master(to, values);
  };
  const auto is_parameter = [&](const std::string& name) {
    return spec::is_target(own, name) || spec::is_target(config.lora, name);
  };
  const bool is_run = own.target_texts() != config.lora.target_texts() ||
                      own.target_parameters != config.lora.target_parameters;
  /// Loads a layer's adapter, or checks that neither file nor layer has one.
  /// @param parameter its name in target_parameters
  const auto take = [&](const std::string& name, auto& lora, const std::string& parameter) {
    const auto found = tensors.lora.find(name);
    if (lora.has_value() != (found != tensors.lora.end())) {
      throw DataError(fmt::format("the adapter {} {}", lora ? "lacks" : "also has", name),
                      directory.string(),
                      !is_run ? std::string(kOwnFilesDiffer)
                              : fix_of_targets(config.lora, is_parameter(parameter)));
    }
    if (!lora) return;
    require_same_rank(name, found->second.r, *(lora->a->shape.end() - 2), config, directory);
    if (found->second.scale != lora->scale && rescaled.empty()) {
      rescaled = fmt::format("{} was made with a scaling of {:.4g}, this run uses {:.4g}", name,
                             found->second.scale, lora->scale);
    }
    copy(*lora->a, found->second.a);
    copy(*lora->b, found->second.b);
    if constexpr (requires { lora->magnitude; }) {
      if (lora->magnitude) copy(*lora->magnitude, found->second.magnitude);
    }
    ++used;
  };
  for (layers::Linear* linear : decoder.linears())
    take(linear->name, linear->lora, linear->name + ".weight");
  layers::Embedding& embedding = decoder.embedding();
  take(embedding.name, embedding.lora, embedding.name + ".weight");
  take(spec::kHeadModule, decoder.head().linear.lora, spec::kHeadTensor);
  for (Layer& layer : decoder.layers()) {
    for (layers::ExpertMatrix* matrix : layer.experts())
      take(matrix->name, matrix->lora, matrix->name);
  }
  SFTRUN_CHECK_EQ(used, tensors.lora.size());  // all modules of the adapter were found
  for (layers::Parameter& parameter : decoder.parameters().parameters()) {
    const std::string tensor = weights::saved_tensor(parameter.name);
    if (!spec::is_saved(own.modules_to_save, tensor)) continue;
    const auto found = tensors.saved.find(tensor);
    // An adapter of texts may be followed by a run that trains the projector, too: it starts as the base has it.
    const bool starts_anew = found == tensors.saved.end() &&
                             parameter.part != ModelPart::kLanguage &&
                             !config.lora.parts.has(parameter.part);
    const bool is_new_head = found == tensors.saved.end() && tensor == spec::kScoreTensor;
    if (starts_anew || is_new_head) continue;
    if (found == tensors.saved.end()) fail_saved(tensor, "lacks", own, config, directory);
    copy(parameter, found->second);
    tensors.saved.erase(found);
  }
  if (!tensors.saved.empty())
    fail_saved(tensors.saved.begin()->first, "also has", own, config, directory);
  if (!rescaled.empty()) {
    log::warn("the adapter's {} (tuning.lora.alpha, r, rslora, alpha_pattern): {}", rescaled,
              directory.string());
  }
}

MasterValues own_masters() {
  return [](const layers::Parameter& parameter) { return parameter.master.detach(); };
}

std::vector<weights::TensorToWrite> trained_tensors(Decoder& decoder, const MasterValues& masters) {
  std::vector<weights::TensorToWrite> tensors;
  for (const layers::Parameter& parameter : decoder.parameters().parameters()) {
    tensors.push_back({parameter.name, DType::kF32, parameter.shape_in_files(),
                       [&parameter, masters](void* destination) {
                         const at::Tensor values = parameter.in_file_order(masters(parameter));
                         at::from_blob(destination, values.sizes(), at::kFloat).copy_(values);
                       }});
  }
  return tensors;
}

std::vector<weights::TensorToWrite> adapter_tensors(Decoder& decoder, const MasterValues& masters) {
  std::vector<weights::TensorToWrite> tensors = trained_tensors(decoder, masters);
  for (weights::TensorToWrite& tensor : tensors) {
    const auto part = decoder.principal_parts().find(tensor.name);
    if (part == decoder.principal_parts().end()) continue;
    const layers::Parameter& parameter = *decoder.parameters().find(tensor.name);
    const bool is_a = parameter.role == TensorRole::kLoraA;
    const at::Tensor added = is_a ? part->second : -part->second;
    const int64_t dim = is_a ? 0 : 1;
    tensor.shape = parameter.shape;
    tensor.shape[static_cast<size_t>(dim)] += added.size(dim);
    tensor.produce = [&parameter, masters, added, dim](void* to) {
      const at::Tensor both = at::cat({masters(parameter).cpu(), added}, dim);
      at::from_blob(to, both.sizes(), at::kFloat).copy_(both);
    };
  }
  return tensors;
}

std::vector<weights::TensorToWrite> principal_part_tensors(const Decoder& decoder) {
  std::vector<weights::TensorToWrite> tensors;
  for (const auto& [name, values] : decoder.principal_parts()) {
    tensors.push_back({name, DType::kF32, values.sizes().vec(), [values](void* to) {
                         at::from_blob(to, values.sizes(), at::kFloat).copy_(values);
                       }});
  }
  return tensors;
}

at::ScalarType torch_dtype(DType dtype) {
  return dtype == DType::kF32 ? at::kFloat : dtype == DType::kF16 ? at::kHalf : at::kBFloat16;
}

namespace {

/// A tensor that the files store in another order, converted to that order.
weights::TensorToWrite in_file_order(const weights::Checkpoint& base,
                                     const weights::TensorInfo& info, DType dtype,
                                     const std::function<at::Tensor()>& values) {
  const auto read = [&base, &info, dtype] {
    at::Tensor tensor = at::empty(info.shape, torch_dtype(dtype));
    base.read(info.name, dtype, tensor.data_ptr());
    return tensor;
  };
  return {info.file_name(), dtype, info.shape_in_files(), [&info, dtype, values, read](void* to) {
            const at::Tensor tensor = (values ? values() : read()).contiguous();
            const at::Tensor ordered = tensor.view(info.layout.view).permute(info.layout.order);
            at::from_blob(to, ordered.sizes(), torch_dtype(dtype)).copy_(ordered);
          }};
}

}  // namespace

void add_stored(const weights::Checkpoint& base, const weights::TensorInfo& info, DType dtype,
                const std::function<at::Tensor()>& values,
                std::vector<weights::TensorToWrite>& tensors) {
  const auto add = [&](const std::string& name, const std::vector<int64_t>& shape, int64_t offset,
                       std::function<void(void*)> read) {
    if (!values) {
      tensors.push_back({name, dtype, shape, std::move(read)});
      return;
    }
    tensors.push_back({name, dtype, shape, [shape, offset, values, dtype](void* destination) {
                         const at::Tensor to =
                             at::from_blob(destination, shape, torch_dtype(dtype));
                         to.copy_(values().flatten().narrow(0, offset, to.numel()).view(shape));
                       }});
  };
  if (info.layout.reorders()) {
    tensors.push_back(in_file_order(base, info, dtype, values));
  } else if (info.parts.empty()) {
    add(info.file_name(), info.shape_in_files(), 0,
        [&base, name = info.name, dtype](void* to) { base.read(name, dtype, to); });
  }
  for (size_t part = 0; part < info.parts.size(); ++part) {
    const spec::TensorPart& piece = info.parts[part];
    add(piece.name, piece.shape, piece.offset, [&base, name = info.name, part, dtype](void* to) {
      base.read_part(name, part, dtype, to);
    });
  }
}

std::vector<weights::TensorToWrite> model_tensors(Decoder& decoder, const weights::Checkpoint& base,
                                                  DType dtype, const MasterValues& masters) {
  std::vector<weights::TensorToWrite> tensors;
  for (const weights::TensorInfo& info : base.tensors()) {
    const layers::Parameter* parameter = decoder.parameters().find(info.name);
    std::function<at::Tensor()> values;
    if (parameter) values = [parameter, masters] { return masters(*parameter); };
    add_stored(base, info, dtype, values, tensors);
  }
  return tensors;
}

void write_config(const weights::Checkpoint& base, const fs::path& base_path,
                  const fs::path& directory, DType dtype, bool unties_head,
                  const nlohmann::ordered_json& quantization) {
  using nlohmann::ordered_json;
  const bool is_directory = is_folder(base_path);
  ordered_json config =
      is_directory ? parse_python_json<ordered_json>(read_text_file(base_path / "config.json"))
                   : ordered_json(base.arch().to_hf_config());
  const std::string where = (base_path / "config.json").string();
  const auto was = spec::ArchSpec::from_hf_config(config, where);
  config.erase("quantization_config");  // of the base
  // transformers 5 writes `dtype`, 4 `torch_dtype`; both read either.
  const char* key = config.contains("dtype") ? "dtype" : "torch_dtype";
  config[key] = torch_name_of(dtype);
  const auto set = [&](const char* name, const auto& value) {
    const bool is_in_part = config.contains("text_config");
    if (is_in_part) config["text_config"][name] = value;
    if (!is_in_part || config.contains(name) || name == std::string("tie_word_embeddings"))
      config[name] = value;
  };
  const bool has_tied_head = was.tie_word_embeddings && !base.arch().score;
  if (unties_head || (has_tied_head && !base.arch().tie_word_embeddings))
    set("tie_word_embeddings", false);
  if (!was.tie_word_embeddings && base.arch().tie_word_embeddings)  // weights::without_head
    set("tie_word_embeddings", true);
  if (was.vocab_size != base.arch().vocab_size) set("vocab_size", base.arch().vocab_size);
  if (!quantization.is_null()) config["quantization_config"] = quantization;
  if (base.arch().score) {
    config["architectures"] = {spec::score_class(base.arch())};
    const ordered_json labels = weights::labels_json(base.arch(), weights::padding_to_write(base));
    for (const auto& [name, value] : labels.items()) config[name] = value;
  }
  write_file_atomically(directory / "config.json", dump_python_json(config, 2) + "\n");
}

namespace {

void copy_text_files(const weights::Checkpoint& base, const fs::path& base_path,
                     const fs::path& directory) {
  if (is_folder(base_path)) {
    weights::copy_text_files(base_path, directory);
    if (!has_optional_file(base_path / "tokenizer.json") &&
        tokenizer::has_tokenizer_files(base_path))
      write_file_atomically(directory / "tokenizer.json", base.tokenizer().to_json());
    return;
  }
  write_file_atomically(directory / "tokenizer.json", base.tokenizer().to_json());
  const templates::RenderOptions texts = base.render_defaults();
  nlohmann::ordered_json config;
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  if (!texts.bos_token.empty()) config["bos_token"] = texts.bos_token;
  if (!texts.eos_token.empty()) config["eos_token"] = texts.eos_token;
  if (!texts.unk_token.empty()) config["unk_token"] = texts.unk_token;
  if (!texts.pad_token.empty()) config["pad_token"] = texts.pad_token;
  config["model_max_length"] = base.arch().max_position_embeddings;
  write_file_atomically(directory / "tokenizer_config.json", config.dump(2) + "\n");
  if (const auto chat_template = base.chat_template()) {
    write_file_atomically(directory / "chat_template.jinja", *chat_template);
  }
}

}  // namespace

void write_text_files(const weights::Checkpoint& base, const fs::path& base_path,
                      const fs::path& directory, const std::optional<std::string>& trained_with) {
  copy_text_files(base, base_path, directory);
  if (trained_with) write_file_atomically(directory / "chat_template.jinja", *trained_with);
}

}  // namespace sftrun::model
