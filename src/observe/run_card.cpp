#include "sftrun/observe/run_card.h"
#include "sftrun/config/idle_settings.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "sftrun/core/presence.h"

namespace sftrun::observe {
namespace fs = std::filesystem;
namespace {

using Settings = std::vector<std::pair<std::string, std::string>>;

/// "10 (0.83 epochs)", "18 of 20 (0.90 epochs)"
std::string words_of_steps(const ResultFacts& facts) {
  std::string words = std::to_string(facts.trained_steps);
  if (facts.trained_steps != facts.total_steps) words += fmt::format(" of {}", facts.total_steps);
  if (facts.epochs) words += fmt::format(" ({:.2f} epochs)", *facts.epochs);
  return words;
}

Settings settings_of(const config::RunConfig& config, const ResultFacts& facts) {
  const nlohmann::ordered_json all = config::to_json(config);
  Settings settings;
  const auto add = [&](std::string_view key) {
    const auto& value = all.at(config::pointer_to(std::string(key)));
    if (value.is_null()) return;
    settings.emplace_back(key, value.is_string() ? value.get<std::string>() : value.dump());
  };
  const auto add_if = [&](bool is_set, std::string_view key) {
    if (is_set) add(key);
  };
  const config::DataConfig& data = config.data;
  const config::PartRates& rates = config.train.part_learning_rates;
  add("tuning.mode");
  add_if(config.tuning.train_parts != config::TrainParts{}, "tuning.train_parts");
  add_if(!config.tuning.lora.init_from.empty(), "tuning.lora.init_from");
  if (facts.base_record != nullptr) {
    add("tuning.lora.r");
    add("tuning.lora.alpha");
    add("tuning.lora.dropout");
    add("tuning.lora.target_modules");
    settings.emplace_back("base precision", facts.base_record->words());
  }
  settings.emplace_back("optimizer steps", words_of_steps(facts));
  if (config.train.max_steps)
    add("train.max_steps");
  else
    add("train.epochs");
  add("train.global_batch_size");
  add("model.max_seq_len");
  add_if(!config.model.projectors.empty(), "model.projectors");
  add_if(data.max_image_pixels > 0, "data.max_image_pixels");
  add_if(data.image_longest_edge > 0, "data.image_longest_edge");
  add("data.packing");
  add("data.bin_tokens");
  const config::ObjectiveInfo& objective = config.train.objective_info();
  if (objective.objective != config::TrainConfig{}.objective) add("train.objective");
  const config::LossMixture losses = config.train.losses();
  if (!losses.shares.empty()) settings.emplace_back("train.loss_type", words_of(losses));
  for (const std::string_view setting : objective.settings)
    add_if(setting != "train.loss_type" && config::has_effect(setting, config), setting);
  add("train.learning_rate");
  add_if(rates != config::PartRates{}, "train.part_learning_rates");
  add("train.scheduler");
  add("train.optimizer");
  add("train.weight_decay");
  add("train.seed");
  settings.emplace_back("dtype", facts.dtype);
  settings.emplace_back("processes", std::to_string(facts.world_size));
  return settings;
}

}  // namespace

ModelCard card_of_run(const config::RunConfig& config, const ResultFacts& facts,
                      const RunSummary& summary) {
  ModelCard card;
  card.base_model = facts.base_model;
  card.is_on_hub = !fs::path(card.base_model).is_absolute() && !leads_to_file(card.base_model);
  card.is_adapter = facts.base_record != nullptr;
  card.is_quantised = card.is_adapter && !facts.base_record->form.empty();
  card.reads_images = facts.reads_images;
  card.leaves_template_unused = facts.leaves_template_unused;
  card.quantize_command = facts.quantize_command;
  card.quantised_base = facts.quantised_base;
  card.objective = config.train.objective_info().name;
  card.has_scores = config.train.objective_info().has_scores();
  card.embeds = config.train.objective_info().embeds();
  card.version = facts.version;
  for (const config::DataSource& source : config.data.train) {
    const fs::path path(source.path);
    card.data.push_back(leads_to_file(path) ? path.filename().string() : source.path);
  }
  card.settings = settings_of(config, facts);
  card.summary = summary;
  return card;
}

}  // namespace sftrun::observe
