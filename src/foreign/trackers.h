#pragma once

#include <string_view>

#include "conversion.h"

/// Experiment trackers in files of other tools, as `output.report_to` and `output.tracking`.
namespace sftrun::foreign {

/// tensorboard, none, all, wandb or a list of them.
void set_report_to(Conversion& conversion, const SourceKey& key);
/// A key that turns one tracker on: use_wandb, wandb_project, use_mlflow and so on.
void set_used_trackers(Conversion& conversion, const SourceKey& key);
/// The project or experiment, the name of the run, the address of the MLflow server.
void set_tracked_project(Conversion& conversion, const SourceKey& key);
void set_tracked_name(Conversion& conversion, const SourceKey& key);
void set_tracking_uri(Conversion& conversion, const SourceKey& key);

}  // namespace sftrun::foreign
