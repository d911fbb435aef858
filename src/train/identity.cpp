#include "sftrun/train/identity.h"

#include <set>
#include <vector>

#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"

namespace sftrun::train {
namespace {

using Json = nlohmann::ordered_json;

/// Settings that change how a run is carried out or shown, not what it computes; names and paths
/// are covered by fingerprints, and how a global batch is divided does not matter, only its size.
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

}  // namespace

Json identity_of(const config::RunConfig& config, const std::string& model_fingerprint,
                 const std::string& train_fingerprint, const std::string& val_fingerprint) {
  Json full = config::to_json(config);
  full.erase("output");
  full.erase("parallel");
  Json settings = Json::object();
  flatten(full, "", settings);
  Json identity;
  identity["model"] = model_fingerprint;
  identity["data"] = train_fingerprint;
  identity["validation"] = val_fingerprint;
  identity["backend"] = config.tuning.backend == config::TuningBackend::kFused ? "fused" : "bnb";
  identity["config"] = settings;
  return identity;
}

void require_same_identity(const Json& saved, const Json& now, const std::string& checkpoint,
                           const ResumePermissions& permissions) {
  std::vector<std::string> differences, fixes;
  const auto differs = [&](const char* key) {
    return saved.value(key, Json()) != now.value(key, Json());
  };
  if (differs("model")) differences.push_back("another base model");
  if (differs("data") && !permissions.changed_data) {
    differences.push_back("another training set");
    fixes.push_back("--allow-changed-data goes on with the new data");
  }
  if (differs("backend") && !permissions.backend_change) {
    differences.push_back(fmt::format("tuning.backend {} instead of {}", shown(now, "backend"),
                                      shown(saved, "backend")));
    fixes.push_back("--allow-backend-change goes on with the other backend");
  }
  const Json empty = Json::object();
  const Json& was = saved.contains("config") ? saved["config"] : empty;
  const Json& is = now.contains("config") ? now["config"] : empty;
  std::set<std::string> keys;
  for (const auto& [key, value] : was.items()) keys.insert(key);
  for (const auto& [key, value] : is.items()) keys.insert(key);
  for (const std::string& key : keys) {
    if (was.value(key, Json()) == is.value(key, Json())) continue;
    differences.push_back(fmt::format("{} {} instead of {}", key, shown(is, key), shown(was, key)));
  }
  if (differences.empty()) return;
  const Json mode = was.value("tuning.mode", Json());
  const bool is_adapter = mode == "lora" || mode == "qlora";
  fixes.push_back(
      std::string("to start afresh choose another output.dir; to build on these weights ") +
      (is_adapter ? "set tuning.lora.init_from"
                  : "set model.name to the folder `model` of the finished run"));
  throw ConfigError(
      "this is not the run that the checkpoint belongs to: " + join(differences, "; "), checkpoint,
      join(fixes, "; "));
}

}  // namespace sftrun::train
