#pragma once

#include "sftrun/app/requests/parts.h"

namespace sftrun::app {

/// Log-probabilities of the records of a file.
struct ScoreRequest {
  ModelRequest model;
  RanksRequest ranks;
  InputRequest records;
  std::string output;
  bool json = false;

  SFTRUN_FIELDS(model, ranks, records, output, json)
};

}  // namespace sftrun::app
