#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "sftrun/config/run_config.h"

/// What makes two runs the same: base model, tokenizer and template, data, backend and every
/// setting that changes the numbers. A checkpoint is resumed only under the identity it was made
/// with.
namespace sftrun::train {

/// The base model and what text is to it.
struct ModelIdentity {
  nlohmann::ordered_json configuration;  ///< see weights::Checkpoint::configuration
  std::string layout;                    ///< see weights::layout_fingerprint
  std::string tokenizer;                 ///< fingerprint
  std::string chat_template;             ///< fingerprint, with the texts of its special tokens
};

/// @param config resolved   @param *_fingerprint of examples ("" without validation data)
nlohmann::ordered_json identity_of(const config::RunConfig& config, const ModelIdentity& model,
                                   const std::string& train_fingerprint,
                                   const std::string& val_fingerprint);

/// The weights' bytes, which are known later than the rest.   @param files name and hash of each
void add_weights(nlohmann::ordered_json& identity,
                 const std::vector<std::pair<std::string, std::string>>& files);

struct ResumePermissions {
  bool changed_data = false, backend_change = false;
  bool changed_length = false;  ///< train.epochs and train.max_steps; see run_length.h
};
/// Weights are compared where both have them.
/// @throws ConfigError saying which parts differ, from what to what, unless permitted.
void require_same_identity(const nlohmann::ordered_json& saved, const nlohmann::ordered_json& now,
                           const std::string& checkpoint, const ResumePermissions& permissions);

}  // namespace sftrun::train
