#pragma once

#include "sftrun/app/requests/parts.h"

namespace sftrun::app {

/// One rank of `sftrun train`.
struct WorkerRequest {
  config::RunConfig config;
  config::Places places;   ///< where keys of the configuration were set, for errors
  std::string model_path;  ///< of model.name
  /// A model of train.teacher, and the directory of its adapter; empty: there is none.
  std::string teacher_model, teacher_adapter;
  std::string device = "auto";
  std::optional<int64_t> batch_size;  ///< as configured; null: automatic
  bool steps_are_auto = false, eval_batch_size_is_auto = false;
  int64_t max_micro_batch = 1;  ///< the largest automatic micro-batch that fits
  std::string resume = "auto";  ///< auto, never, or a checkpoint
  bool overwrite = false, allow_changed_data = false, allow_changed_length = false,
       allow_backend_change = false;
  std::string settings;  ///< "run.yaml data.packing=false": how commands name the configuration
  std::string profile;   ///< steps, as core/step_range.h has them; empty: none

  SFTRUN_FIELDS(config, places, model_path, teacher_model, teacher_adapter, device, batch_size,
                steps_are_auto, eval_batch_size_is_auto, max_micro_batch, resume, overwrite,
                allow_changed_data, allow_changed_length, allow_backend_change, settings, profile)
};

}  // namespace sftrun::app
