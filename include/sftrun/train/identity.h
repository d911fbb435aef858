#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "sftrun/config/run_config.h"

/// What makes two runs the same: base model, data, backend and every setting that changes the
/// numbers. A checkpoint is resumed only under the identity it was made with.
namespace sftrun::train {

/// @param config resolved   @param *_fingerprint of weights and examples ("" without validation
/// data)
nlohmann::ordered_json identity_of(const config::RunConfig& config,
                                   const std::string& model_fingerprint,
                                   const std::string& train_fingerprint,
                                   const std::string& val_fingerprint);

struct ResumePermissions {
  bool changed_data = false, backend_change = false;
};
/// @throws ConfigError saying which parts differ, from what to what, unless permitted.
void require_same_identity(const nlohmann::ordered_json& saved, const nlohmann::ordered_json& now,
                           const std::string& checkpoint, const ResumePermissions& permissions);

}  // namespace sftrun::train
