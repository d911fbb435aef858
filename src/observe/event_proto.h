#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

/// The protocol buffer messages of event files, encoded without a library
/// (https://protobuf.dev/programming-guides/encoding/). Field numbers:
/// tensorflow/core/util/event.proto, framework/{summary,tensor,tensor_shape}.proto.
namespace sftrun::observe {

/// Event { wall_time = 1; step = 2; file_version = 3 } with version "brain.Event:2", the first
/// record of every file.
std::string encode_file_version(double wall_time);
/// Event { …; summary = 5 { value = 1 { tag = 1; simple_value = 2 } } }
std::string encode_scalar(double wall_time, int64_t step, std::string_view tag, float value);
/// Event { …; summary = 5 { value = 1 { tag = 1; metadata = 9 (plugin "text"); tensor = 8 (one
/// string) } } }
std::string encode_text(double wall_time, int64_t step, std::string_view tag,
                        std::string_view text);
/// The value of a hyperparameter: `google.protobuf.Value`.
using HparamValue = std::variant<bool, double, std::string>;
/// Event { …; summary = 5 { value = 1 { tag = 1 "_hparams_/session_start_info"; metadata = 9 (plugin
/// "hparams"; content: HParamsPluginData); tensor = 8 (no values) } } }. Field numbers:
/// tensorboard/plugins/hparams/plugin_data.proto.
std::string encode_hparams(double wall_time, int64_t step,
                           const std::vector<std::pair<std::string, HparamValue>>& hparams);
/// Event { …; session_log = 7 { status = 1 START } }: readers drop events of this step and later
/// ones that they have read.
std::string encode_session_start(double wall_time, int64_t step);

/// Event.step of an encoded event (0 if absent, as in protocol buffers); nullopt if the bytes are
/// not a message.
std::optional<int64_t> event_step(std::string_view event);

}  // namespace sftrun::observe
