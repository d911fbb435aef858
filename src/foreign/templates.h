#pragma once

#include <string_view>

#include "conversion.h"

namespace sftrun::foreign {

/// Sets model.chat_template from the name of a template, or notes that the model's own is used.
void set_template(Conversion& conversion, const SourceKey& key);
/// "600" seconds as a time: "600s".
void set_seconds(Conversion& conversion, const SourceKey& key);
/// Sets both seeds, as other tools have one.
void set_seeds(Conversion& conversion, const SourceKey& key);
/// A schedule of transformers. Those of cosine that end above zero become cosine, with a note.
void set_scheduler(Conversion& conversion, const SourceKey& key);
/// -1: the epochs say how long the run is.
void set_max_steps(Conversion& conversion, const SourceKey& key);
/// Layers are recomputed; other words than true and false name a kind of it.
void set_checkpointing(Conversion& conversion, const SourceKey& key);
/// bf16: auto|true|false
void set_bf16(Conversion& conversion, const SourceKey& key);
/// Steps, or below 1 a share of all steps, as in transformers 5. Steps win over `warmup_ratio`.
void set_warmup_steps(Conversion& conversion, const SourceKey& key);
/// `warmup_ratio`, unless the file gives a number of steps.
void set_warmup_ratio(Conversion& conversion, const SourceKey& key);
/// `eval_strategy`, or its name before transformers 4.41; "": neither.
std::string eval_strategy_of(const Conversion& conversion);
/// transformers evaluates as often as it logs where `eval_strategy: steps` has no `eval_steps`.
/// @param logging_steps its default in the tool
void complete_eval_steps(Conversion& conversion, int64_t logging_steps);
/// Steps between evaluations, checkpoints or lines of the log, or below 1 a share of all steps.
void set_steps(Conversion& conversion, const SourceKey& key);
/// Without effect beside a strategy that is not steps.
void set_save_steps(Conversion& conversion, const SourceKey& key);
/// no, steps, epoch or best.
void set_save_strategy(Conversion& conversion, const SourceKey& key);
/// tuning.mode; an error for kinds of adapters that there are not here.
void set_mode(Conversion& conversion, const SourceKey& key, std::span<const WordPair> modes);
/// Gives a data set, {path, …}, the split that a tool names: of "train[:100]" the first 100 records.
/// A file has no splits: "train" means the whole of it.
/// @return what it cannot have; "": nothing
std::string set_split(Conversion& conversion, nlohmann::ordered_json& source,
                      const std::string& split);
/// Without validation data the tool does not evaluate, whatever its keys of evaluation say.
void take_back_evaluations(Conversion& conversion, const std::string& why);
/// The item of a list of one; else the value itself.
const Value& single_value(const Value& value);
/// Maps each of `names` that is not mapped to no column, as the tool does not read a column of that
/// name. A column that is another field is none of them.
void leave_out(nlohmann::ordered_json& fields, std::initializer_list<const char*> names);
/// Of a tool's limit of tokens that is off.
inline constexpr const char* kUnlimited =
    "there is always a limit: set `model.max_seq_len` to the longest example. Longer texts are cut "
    "off or left out, as `data.too_long` says; longer examples with images are left out";

}  // namespace sftrun::foreign
