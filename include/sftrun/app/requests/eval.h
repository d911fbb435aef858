#pragma once

#include "sftrun/app/requests/parts.h"

namespace sftrun::app {

struct EvaluatedModel {
  std::string name;   ///< base, adapter, model
  std::string model;  ///< path
  std::optional<std::string> adapter;

  SFTRUN_FIELDS(name, model, adapter)
};

/// Measures models on the validation data of a run.
struct EvalRequest {
  config::RunConfig config;
  std::vector<EvaluatedModel> models;
  RanksRequest ranks;
  /// Of `train.teacher`, if that names a model: what the divergence of distillation is measured to.
  std::optional<EvaluatedModel> teacher;
  /// What pairs are compared with; null: the models without their adapters.
  std::optional<EvaluatedModel> reference;
  std::string settings;                    ///< "run.yaml data.val=more.jsonl", for messages
  bool as_stored = false;                  ///< as of ModelRequest
  bool generate = true;                    ///< answers
  std::optional<int64_t> max_records;      ///< that are answered; null: all
  std::optional<std::string> predictions;  ///< file for the answers
  SamplingRequest sampling;
  std::optional<int64_t> batch_size;
  bool json = false;

  SFTRUN_FIELDS(config, models, ranks, teacher, reference, settings, as_stored, generate,
                max_records, predictions, sampling, batch_size, json)
};

}  // namespace sftrun::app
