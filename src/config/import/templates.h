#pragma once

#include "import/reading.h"

namespace sftrun::config::importing {

/// Sets model.chat_template from the name of a template, or notes that the model's own is used.
void set_template(Reading& reading, const SourceKey& key);
/// "600" seconds as a time: "600s".
void set_seconds(Reading& reading, const SourceKey& key);
/// tensorboard, none, wandb or a list of them.
void set_report_to(Reading& reading, const SourceKey& key);
/// Sets both seeds, as other tools have one.
void set_seeds(Reading& reading, const SourceKey& key);
/// Layers are recomputed; other words than true and false name a kind of it.
void set_checkpointing(Reading& reading, const SourceKey& key);
/// bf16: auto|true|false
void set_bf16(Reading& reading, const SourceKey& key);
/// A map of texts as a value.
Value map_value(const nlohmann::ordered_json& json);

}  // namespace sftrun::config::importing
