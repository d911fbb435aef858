#include "sftrun/config/idle_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "idle_rules/rules.h"
#include "sftrun/core/strings.h"

namespace sftrun::config {
namespace {

const IdleRules& idle_rules() {
  static const IdleRules rules = [] {
    IdleRules all;
    for (const IdleRules& part :
         {rules_of_adapters(), rules_of_data(), rules_of_objectives(), rules_of_rollouts(),
          rules_of_training(), rules_of_optimizers(), rules_of_evaluation(), rules_of_devices(),
          rules_of_processes(), rules_of_communication(), rules_of_trackers(),
          rules_of_callbacks()})
      all.insert(all.end(), part.begin(), part.end());
    return all;
  }();
  return rules;
}

/// A contradiction is an error (validate/), and so no reason to be here.
const std::set<std::string>& always_effective() {
  static const std::set<std::string> keys = {
      "model.name",
      "model.max_seq_len",
      "model.dtype",
      "model.chat_template",  // it is saved with the result
      "model.projectors",     // data without features are an error
      "tuning.mode",
      "tuning.backend",
      "tuning.quant",
      "tuning.trainable",
      "tuning.train_parts",  // a model without images is an error
      "data.train",
      "data.val_split",  // records that are held out do not train
      "data.fields",
      "data.shuffle",
      "data.group_by_length",
      "data.streaming",
      "data.chat_template_kwargs",
      "data.too_long",
      "data.bad_records",
      "data.image_root",        // the records decide
      "data.max_image_pixels",  // the model's image processor decides
      "data.image_longest_edge",
      "train.objective",
      "train.max_steps",
      "train.batch_size",
      "train.grad_accum",
      "train.global_batch_size",
      "train.learning_rate",
      "train.part_learning_rates",
      "train.scheduler",
      "train.optimizer",
      "train.weight_decay",
      "train.loraplus_lr_ratio",
      "train.neftune_noise_alpha",
      "train.max_grad_norm",
      "train.bf16",
      "train.fp16",
      "train.gradient_checkpointing",
      "train.eval_strategy",
      "train.load_best_model_at_end",
      "train.metric_for_best_model",
      "train.early_stopping_patience",
      "train.save_strategy",
      "train.save_every",
      "train.save_total_limit",
      "train.longest_batch_first",
      "train.checkpoint_format",  // whole is what all others write, too
      "train.logging_steps",
      "train.dataloader_num_workers",
      "train.dataloader_pin_memory",  // false is what a CPU does, too
      "parallel.accelerate",
      "parallel.deepspeed",
      "output.dir",
      "output.report_to",
      "output.tensorboard",
  };
  return keys;
}

/// Their readers warn or refuse: plan::idle_quant_keys, the search for the model, spec::aux_loss_coef.
const std::set<std::string>& decided_by_model() {
  static const std::set<std::string> keys = {
      "model.revision",          "tuning.double_quant", "tuning.quant_block_size",
      "tuning.quant_embeddings", "tuning.skip_modules", "train.router_aux_loss_coef"};
  return keys;
}

std::string with_place(const std::string& text, const std::string& place) {
  return place.empty() ? text : fmt::format("{} ({})", text, place);
}

/// Finds the idle settings of one run.
class IdleSearch {
 public:
  IdleSearch(const LoadedConfig& loaded, const RunConfig& run, const RunFacts& facts)
      : loaded_(loaded), run_(run), facts_(facts), asked_(to_json(loaded.config)) {}

  std::vector<IdleSetting> find() {
    for (const IdleRule& rule : idle_rules()) {
      std::vector<std::string> keys;
      for (const std::string& key : rule.keys)
        if (is_asked(key, rule.also_default) && !found_keys_.contains(key)) keys.push_back(key);
      if (keys.empty() || (rule.is_implied && rule.is_implied(loaded_.config, run_))) continue;
      const std::string reason = rule.reason(run_, facts_);
      if (!reason.empty()) add(rule, keys, reason);
    }
    return std::move(found_);
  }

 private:
  /// Files of resolved values set every key, most of them to defaults.
  bool is_asked(const std::string& key, bool also_default) const {
    static const nlohmann::ordered_json defaults = to_json(RunConfig{});
    const bool is_set =
        std::any_of(loaded_.places.begin(), loaded_.places.end(), [&](const auto& place) {
          return place.first == key || place.first.starts_with(key + ".");
        });
    if (is_set && also_default) return true;
    return is_set && asked_.at(pointer_to(key)) != defaults.at(pointer_to(key));
  }

  void add(const IdleRule& rule, const std::vector<std::string>& keys, const std::string& reason) {
    found_keys_.insert(keys.begin(), keys.end());
    if (!rule.common_name.empty()) {
      std::vector<std::string> leaves;
      for (const std::string& key : keys) leaves.push_back(key.substr(key.rfind('.') + 1));
      const std::string text =
          fmt::format("{} ({}) has no effect{}", rule.common_name, join(leaves, ", "), reason);
      found_.push_back({keys.front(), with_place(text, loaded_.place_of(keys.front()))});
      return;
    }
    for (const std::string& key : keys) {
      const std::string& name = rule.part.empty() ? key : rule.part;
      found_.push_back({key, with_place(fmt::format("{} has no effect{}", name, reason),
                                        loaded_.place_of(key))});
    }
  }

  const LoadedConfig& loaded_;
  const RunConfig& run_;
  const RunFacts& facts_;
  nlohmann::ordered_json asked_;
  std::vector<IdleSetting> found_;
  std::set<std::string> found_keys_;
};

}  // namespace

bool has_effect(std::string_view key, const RunConfig& run) {
  return std::none_of(idle_rules().begin(), idle_rules().end(), [&](const IdleRule& rule) {
    const bool is_about = std::find(rule.keys.begin(), rule.keys.end(), key) != rule.keys.end();
    return is_about && !rule.reason(run, {}).empty();
  });
}

std::optional<Effect> effect_of(const std::string& key) {
  if (always_effective().contains(key)) return Effect::kAlways;
  if (decided_by_model().contains(key)) return Effect::kByModel;
  const bool has_rule =
      std::any_of(idle_rules().begin(), idle_rules().end(), [&](const IdleRule& rule) {
        return std::find(rule.keys.begin(), rule.keys.end(), key) != rule.keys.end();
      });
  return has_rule ? std::optional(Effect::kByRules) : std::nullopt;
}

std::vector<IdleSetting> idle_settings(const LoadedConfig& loaded) {
  return IdleSearch(loaded, loaded.config, {}).find();
}

std::vector<IdleSetting> idle_settings(const LoadedConfig& loaded, const RunConfig& run,
                                       const RunFacts& facts) {
  const std::vector<IdleSetting> known = idle_settings(loaded);
  std::vector<IdleSetting> found = IdleSearch(loaded, run, facts).find();
  std::erase_if(found, [&](const IdleSetting& setting) {
    return std::any_of(known.begin(), known.end(),
                       [&](const IdleSetting& other) { return other.key == setting.key; });
  });
  return found;
}

}  // namespace sftrun::config
