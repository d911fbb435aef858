#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "sftrun/config/run_config.h"
#include "sftrun/data/text_model.h"
#include "sftrun/parallel/communicator.h"
#include "sftrun/weights/checkpoint.h"

/// Identity of a run: base model, tokenizer and template, data, backend, and every setting that
/// affects the results. A checkpoint can only be resumed by a run with the same identity.
namespace sftrun::train {

/// Identity of the base model, its tokenizer and its chat template.
struct ModelIdentity {
  nlohmann::ordered_json configuration;  ///< see weights::Checkpoint::configuration
  std::string layout;                    ///< see weights::layout_fingerprint
  std::string tokenizer;                 ///< fingerprint
  std::string chat_template;             ///< fingerprint, with the texts of its special tokens
  std::string chat_template_source;      ///< to say where another one differs
};

ModelIdentity model_identity(const weights::Checkpoint& checkpoint, const data::TextModel& text);

/// Data sets or files, and the fingerprint of each.
using NamedFingerprints = std::vector<std::pair<std::string, std::string>>;

/// @param config resolved   @param *_fingerprint of examples ("" without validation data)
/// @param train_parts what `train_fingerprint` is made of, to say which part differs
nlohmann::ordered_json identity_of(const config::RunConfig& config, const ModelIdentity& model,
                                   const std::string& train_fingerprint,
                                   const std::string& val_fingerprint,
                                   const NamedFingerprints& train_parts = {});

/// The weights' bytes, which are known later than the rest.   @param files name and hash of each
void add_weights(nlohmann::ordered_json& identity, const NamedFingerprints& files);

/// Notes the adapter that a run started from, where the start is its reference model.
/// @param hash of its weights
void add_start(nlohmann::ordered_json& identity, const std::string& hash);

/// Notes another model or adapter that is the run's reference model (`train.reference: PATH`).
/// @param fingerprint of its weights and configuration
void add_reference(nlohmann::ordered_json& identity, const std::string& fingerprint);

/// Notes the teacher of distillation.   @param hash data::TeacherDescription::hash
void add_teacher(nlohmann::ordered_json& identity, const std::string& hash);

/// Notes that steps are dealt by the costs of their images (data::deal_by_cost, plan::SequenceCost).
void add_deal_by_cost(nlohmann::ordered_json& identity);
/// Whether a run does so, that began with this identity. Those of earlier versions deal in order.
bool deals_by_cost(const nlohmann::ordered_json& identity);

/// @param is_one_machine whether all ranks read the same files: then they may have changed in between
/// @throws ConfigError naming a rank that has another identity or configuration than rank 0
void require_same_on_all_ranks(const nlohmann::ordered_json& identity,
                               const config::RunConfig& config, parallel::Communicator& comm,
                               bool is_one_machine);

struct ResumePermissions {
  bool changed_data = false, backend_change = false;
  bool changed_length = false;  ///< train.epochs and train.max_steps; see run_length.h
};
/// Weights are compared only if both identities contain them.
/// @throws ConfigError listing the differences, with old and new values, unless they are permitted
void require_same_identity(const nlohmann::ordered_json& saved, const nlohmann::ordered_json& now,
                           const std::string& checkpoint, const ResumePermissions& permissions);

}  // namespace sftrun::train
