#pragma once

#include "sftrun/app/requests/parts.h"

namespace sftrun::app {

/// Scores the examples of a run for the distillation of a student (`--topk`).
struct TeacherRequest {
  int64_t topk = 64;
  double temperature = 1;
  config::RunConfig config;  ///< says which examples, and how they are read
  std::string student;       ///< path of the model whose tokenizer and template make them
  bool overwrite = false;

  SFTRUN_FIELDS(topk, temperature, config, student, overwrite)
};

/// Log-probabilities of the records of a file.
struct ScoreRequest {
  ModelRequest model;
  RanksRequest ranks;
  InputRequest records;
  std::string output;
  bool json = false;
  std::optional<TeacherRequest> teacher;  ///< in place of the records; `output` is a folder

  SFTRUN_FIELDS(model, ranks, records, output, json, teacher)
};

}  // namespace sftrun::app
