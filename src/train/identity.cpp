#include "sftrun/train/identity.h"

#include <algorithm>
#include <set>
#include <vector>

#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"

namespace sftrun::train {
namespace {

using Json = nlohmann::ordered_json;

/// Settings that do not affect the results. Names and paths are covered by fingerprints; of a
/// global batch only the size matters, not its division.
const std::set<std::string>& settings_without_effect() {
  static const std::set<std::string> keys = {"model.name",
                                             "model.revision",
                                             "model.attention",
                                             "model.chat_template",
                                             "tuning.backend",
                                             "tuning.lora.init_from",
                                             "data.train",
                                             "data.val",
                                             "data.cache_dir",
                                             "train.batch_size",
                                             "train.grad_accum",
                                             "train.gradient_checkpointing",
                                             "train.eval_strategy",
                                             "train.eval_steps",
                                             "train.eval_on_start",
                                             "train.eval_batch_size",
                                             "train.save_steps",
                                             "train.save_every",
                                             "train.save_total_limit",
                                             "train.logging_steps",
                                             "train.ddp_find_unused_parameters",
                                             "train.ddp_broadcast_buffers",
                                             "train.ddp_bucket_cap_mb",
                                             "train.dataloader_num_workers",
                                             "train.dataloader_pin_memory",
                                             "train.cuda_graphs"};
  return keys;
}

void flatten(const Json& json, const std::string& prefix, Json& out) {
  for (const auto& [key, value] : json.items()) {
    const std::string name = prefix.empty() ? key : prefix + "." + key;
    if (value.is_object() && !value.empty())
      flatten(value, name, out);
    else if (!settings_without_effect().contains(name))
      out[name] = value;
  }
}

std::string shown(const Json& json, const std::string& key) {
  return json.contains(key) ? json[key].dump() : "nothing";
}

Json object_at(const Json& json, const char* key) {
  const Json found = json.is_object() ? json.value(key, Json()) : Json();
  return found.is_object() ? found : Json::object();
}

/// "key 2 instead of 1" of each that differs.
std::vector<std::string> key_differences(const Json& was, const Json& is) {
  std::set<std::string> keys;
  for (const auto& [key, value] : was.items()) keys.insert(key);
  for (const auto& [key, value] : is.items()) keys.insert(key);
  std::vector<std::string> differences;
  for (const std::string& key : keys) {
    if (was.value(key, Json()) == is.value(key, Json())) continue;
    differences.push_back(fmt::format("{} {} instead of {}", key, shown(is, key), shown(was, key)));
  }
  return differences;
}

/// The files with different contents, regardless of their names; empty: no difference.
std::vector<std::string> other_weights(const Json& was, const Json& is) {
  std::vector<std::string> names;
  for (size_t i = 0; i < is.size(); ++i) {
    if (i >= was.size() || was[i].at(1) != is[i].at(1))
      names.push_back(is[i].at(0).get<std::string>());
  }
  if (names.empty() && was.size() > is.size()) names.push_back("fewer files");
  return names;
}

/// The first `most` entries and the number of further ones.
std::string shortened_list(std::vector<std::string> all, size_t most) {
  const size_t more = all.size() - std::min(most, all.size());
  all.resize(all.size() - more);
  return join(all, ", ") + (more > 0 ? fmt::format(" and {} more", more) : "");
}

void add_model_differences(const Json& saved, const Json& now,
                           std::vector<std::string>& differences) {
  constexpr size_t kMostKeys = 5, kMostFiles = 3;
  const Json was = object_at(saved, "model"), is = object_at(now, "model");
  const auto keys =
      key_differences(object_at(was, "configuration"), object_at(is, "configuration"));
  if (!keys.empty())
    differences.push_back("the model's configuration: " + shortened_list(keys, kMostKeys));
  if (was.value("layout", Json()) != is.value("layout", Json()))
    differences.push_back("another base model: its tensors have other names, shapes or types");
  if (was.contains("weights") && is.contains("weights")) {
    if (const auto files = other_weights(was["weights"], is["weights"]); !files.empty())
      differences.push_back("the base model's weights hold other bytes: " +
                            shortened_list(files, kMostFiles));
  }
  if (saved.value("tokenizer", Json()) != now.value("tokenizer", Json()))
    differences.push_back("another tokenizer");
}

}  // namespace

Json identity_of(const config::RunConfig& config, const ModelIdentity& model,
                 const std::string& train_fingerprint, const std::string& val_fingerprint) {
  Json full = config::to_json(config);
  full.erase("output");
  full.erase("parallel");
  Json settings = Json::object();
  flatten(full, "", settings);
  Json identity;
  identity["model"] = {{"configuration", model.configuration}, {"layout", model.layout}};
  identity["tokenizer"] = model.tokenizer;
  identity["chat_template"] = model.chat_template;
  identity["data"] = train_fingerprint;
  identity["validation"] = val_fingerprint;
  identity["backend"] = config.tuning.backend == config::TuningBackend::kFused ? "fused" : "bnb";
  identity["config"] = settings;
  return identity;
}

void add_weights(Json& identity, const std::vector<std::pair<std::string, std::string>>& files) {
  Json& weights = identity["model"]["weights"] = Json::array();
  for (const auto& [name, hash] : files) weights.push_back({name, hash});
}

void require_same_identity(const Json& saved, const Json& now, const std::string& checkpoint,
                           const ResumePermissions& permissions) {
  std::vector<std::string> differences, fixes;
  const auto differs = [&](const char* key) {
    return saved.value(key, Json()) != now.value(key, Json());
  };
  add_model_differences(saved, now, differences);
  if (!differences.empty())
    fixes.push_back("give the run the model's files that it began with, to go on");
  if (differs("chat_template") && !permissions.changed_data) {
    differences.push_back("another chat template");
    fixes.push_back(
        "take the template that the run began with (model.chat_template, or the model's own), or "
        "--allow-changed-data goes on with the other one");
  }
  if (differs("data") && !permissions.changed_data) {
    differences.push_back("another training set");
    fixes.push_back("--allow-changed-data goes on with the new data");
  }
  if (differs("backend") && !permissions.backend_change) {
    differences.push_back(fmt::format("tuning.backend {} instead of {}", shown(now, "backend"),
                                      shown(saved, "backend")));
    fixes.push_back("--allow-backend-change goes on with the other backend");
  }
  Json was = object_at(saved, "config"), is = object_at(now, "config");
  if (permissions.changed_length) {
    for (Json* config : {&was, &is})
      config->erase("train.epochs"), config->erase("train.max_steps");
  }
  for (std::string& one : key_differences(was, is)) differences.push_back(std::move(one));
  if (differences.empty()) return;
  const Json mode = was.value("tuning.mode", Json());
  const bool is_adapter = mode == "lora" || mode == "qlora";
  fixes.push_back(
      std::string(
          "to start afresh choose another output.dir, or --overwrite moves this run aside; to "
          "build on these weights ") +
      (is_adapter ? "set tuning.lora.init_from"
                  : "set model.name to the folder `model` of the finished run"));
  throw ConfigError(
      "this is not the run that the checkpoint belongs to: " + join(differences, "; "), checkpoint,
      join(fixes, "; "));
}

}  // namespace sftrun::train
