#include "known_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "sftrun/core/strings.h"

namespace sftrun::config {
namespace {

constexpr auto kLaterKeys = std::to_array<LaterKey>({
    {"train.predict_with_generate", true, "", ""},
    {"train.generation_*", true, "", ""},
    {"train.eval_accumulation_steps", true, "", ""},
    {"train.eval_do_concat_batches", true, "", ""},
    {"train.early_stopping", false, "",
     "remove it; set train.max_steps, or stop the run by Ctrl-C: it keeps a checkpoint"},
    {"tuning.train_parts", false, "",
     "name the parameters by regular expressions in tuning.trainable"},
    {"parallel.tp", false, "1", "remove it; parallel.strategy ddp is what exists"},
    {"parallel.pp", false, "1", "remove it; parallel.strategy ddp is what exists"},
    {"parallel.device_map", false, "", "remove it; parallel.strategy ddp is what exists"},
    {"parallel.offload", false, "none",
     "remove it; set train.gradient_checkpointing: true to save memory"},
    {"parallel.deepspeed", false, "", "remove it; parallel.strategy ddp is what exists"},
    {"parallel.accelerate", false, "", "remove it; `sftrun train --gpus N` chooses the devices"},
});

/// What other trainers call our fields, where no spelling distance would find them.
constexpr auto kSynonyms = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"lr", "train.learning_rate"},
    {"lr_scheduler", "train.scheduler"},
    {"lr_scheduler_type", "train.scheduler"},
    {"optim", "train.optimizer"},
    {"num_epochs", "train.epochs"},
    {"num_train_epochs", "train.epochs"},
    {"per_device_train_batch_size", "train.batch_size"},
    {"per_device_eval_batch_size", "train.eval_batch_size"},
    {"micro_batch_size", "train.batch_size"},
    {"gradient_accumulation_steps", "train.grad_accum"},
    {"accumulation_steps", "train.grad_accum"},
    {"train_batch_size", "train.global_batch_size"},
    {"evaluation_strategy", "train.eval_strategy"},
    {"warmup", "train.warmup_ratio"},
    {"adam_eps", "train.adam_epsilon"},
    {"clip_grad_norm", "train.max_grad_norm"},
    {"gradient_clipping", "train.max_grad_norm"},
    {"model_name_or_path", "model.name"},
    {"base_model", "model.name"},
    {"path", "model.name"},
    {"sequence_len", "model.max_seq_len"},
    {"seq_len", "model.max_seq_len"},
    {"max_length", "model.max_seq_len"},
    {"max_seq_length", "model.max_seq_len"},
    {"cutoff_len", "model.max_seq_len"},
    {"torch_dtype", "model.dtype"},
    {"attn_implementation", "model.attention"},
    {"lora_r", "tuning.lora.r"},
    {"lora_rank", "tuning.lora.r"},
    {"rank", "tuning.lora.r"},
    {"lora_alpha", "tuning.lora.alpha"},
    {"lora_dropout", "tuning.lora.dropout"},
    {"lora_target_modules", "tuning.lora.target_modules"},
    {"use_rslora", "tuning.lora.rslora"},
    {"use_dora", "tuning.lora.dora"},
    {"peft_use_dora", "tuning.lora.dora"},
    {"lora_modules_to_save", "tuning.lora.modules_to_save"},
    {"additional_target", "tuning.lora.modules_to_save"},
    {"init_lora_weights", "tuning.lora.init"},
    {"noise_alpha", "train.neftune_noise_alpha"},
    {"adapter", "tuning.mode"},
    {"finetuning_type", "tuning.mode"},
    {"load_in_4bit", "tuning.quant"},
    {"bnb_4bit_quant_type", "tuning.quant"},
    {"quantization_bit", "tuning.quant"},
    {"bnb_4bit_use_double_quant", "tuning.double_quant"},
    {"double_quantization", "tuning.double_quant"},
    {"load_in_8bit", "tuning.quant"},
    {"unfrozen_parameters", "tuning.trainable"},
    {"dataset", "data.train"},
    {"datasets", "data.train"},
    {"train_file", "data.train"},
    {"validation_file", "data.val"},
    {"val_set_size", "data.val_split"},
    {"val_size", "data.val_split"},
    {"sample_packing", "data.packing"},
    {"dataset_prepared_path", "data.cache_dir"},
    {"buffer_size", "data.shuffle_buffer"},
    {"columns", "data.fields"},
    {"train_on_inputs", "data.loss_on"},
    {"completion_only_loss", "data.loss_on"},
    {"assistant_only_loss", "data.loss_on"},
    {"output_dir", "output.dir"},
    {"report_to", "output.tensorboard"},
    {"dataloader_workers", "train.dataloader_num_workers"},
    {"num_workers", "train.dataloader_num_workers"},
});

std::string leaf_of(const std::string& key) {
  return key.substr(key.rfind('.') + 1);
}
std::string section_of(const std::string& key) {
  const size_t dot = key.rfind('.');
  return dot == std::string::npos ? "" : key.substr(0, dot);
}

/// The sections of the file's top level.
std::vector<std::string> top_sections(const Binding& binding) {
  std::vector<std::string> names;
  for (const Section& section : binding.sections) {
    if (section.name.find('.') == std::string::npos) names.push_back(section.name);
  }
  return names;
}

/// Full names of fields and sections, those of `section` alone unless it is empty.
std::vector<std::string> names_in(const Binding& binding, const std::string& section) {
  std::vector<std::string> names;
  for (const Field& field : binding.fields) {
    if (section.empty() || field.section() == section) names.push_back(field.key);
  }
  for (const Section& candidate : binding.sections) {
    if (section.empty() || section_of(candidate.name) == section) names.push_back(candidate.name);
  }
  return names;
}

std::string same_leaf(const std::string& leaf, const std::vector<std::string>& names) {
  const auto found = std::find_if(names.begin(), names.end(),
                                  [&](const std::string& name) { return leaf_of(name) == leaf; });
  return found == names.end() ? "" : *found;
}

/// What `leaf` names exactly, here or in another trainer.
std::string named(const std::string& leaf, const std::vector<std::string>& names) {
  const auto synonym = std::find_if(kSynonyms.begin(), kSynonyms.end(),
                                    [&](const auto& pair) { return pair.first == leaf; });
  if (synonym != kSynonyms.end()) return std::string(synonym->second);
  return same_leaf(leaf, names);
}

/// The one of `names` whose last part is nearest to `leaf`.
std::string nearest_by_leaf(const std::string& leaf, const std::vector<std::string>& names) {
  constexpr size_t kShort = 3;  // below it any other short word is "near"
  std::vector<std::string> leaves;
  for (const std::string& name : names) {
    if (leaf.size() >= kShort || leaf_of(name).starts_with(leaf.substr(0, 1)))
      leaves.push_back(leaf_of(name));
  }
  const std::string near = nearest(leaf, leaves);
  if (near.empty()) return {};
  return same_leaf(near, names);
}

}  // namespace

const LaterKey* find_later_key(const std::string& key) {
  const auto matches = [&](const LaterKey& later) {
    if (later.key.ends_with('*')) return key.starts_with(later.key.substr(0, later.key.size() - 1));
    return key == later.key || key.starts_with(std::string(later.key) + ".");
  };
  const auto found = std::find_if(kLaterKeys.begin(), kLaterKeys.end(), matches);
  return found == kLaterKeys.end() ? nullptr : &*found;
}

bool is_harmless(const LaterKey& later, const Value& value) {
  if (value.kind == Value::Kind::kNull) return true;
  if (value.kind != Value::Kind::kScalar) return value.items.empty();
  return value.text.empty() || value.text == later.harmless || parse_bool(value.text) == false;
}

std::string setting_named(const std::string& name) {
  RunConfig defaults;
  return named(name, names_in(bind(defaults), ""));
}

std::string nearest_key(const std::string& key, const Binding& binding) {
  const std::string leaf = leaf_of(key), section = section_of(key);
  const std::vector<std::string> all = names_in(binding, "");
  if (std::string same = named(leaf, all); !same.empty()) return same;
  if (section.empty()) {
    if (std::string near = nearest(leaf, top_sections(binding)); !near.empty()) return near;
  }
  if (binding.has_section(section)) {
    if (std::string near = nearest_by_leaf(leaf, names_in(binding, section)); !near.empty())
      return near;
  }
  if (std::string near = nearest_by_leaf(leaf, all); !near.empty()) return near;
  return nearest(key, all);
}

std::string suggest_key(const std::string& key, const Binding& binding) {
  const std::string near = nearest_key(key, binding);
  if (near.empty()) return "`sftrun config reference` lists every key";
  if (near == key) {  // written with dots where YAML wants nesting
    return fmt::format("write `{}:` inside `{}:`", leaf_of(near), section_of(near));
  }
  return fmt::format("did you mean `{}`?", near);
}

}  // namespace sftrun::config
