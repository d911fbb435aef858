#pragma once

#include "sftrun/app/requests/parts.h"

namespace sftrun::app {

/// A conversation in the terminal.
struct ChatRequest {
  NamedModelsRequest models;
  RanksRequest ranks;
  SamplingRequest sampling{.max_new_tokens = 2048};
  std::optional<std::string> system;

  SFTRUN_FIELDS(models, ranks, sampling, system)
};

}  // namespace sftrun::app
