#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "record.h"
#include "sftrun/config/objectives.h"

namespace sftrun::data {

/// Columns with values that other trainers read but this format does not: `history` of Alpaca,
/// images, …   @param form of the run's objective
std::vector<std::string> unread_columns(const Json& record, RecordFormat format,
                                        const RecordShape& shape,
                                        config::ExampleForm form = config::ExampleForm::kAnswer);
/// Those that a model with images reads as such: columns of images and videos.
bool is_visual_column(const std::string& column);
/// The advice for one of them.
std::string advice_on_column(const std::string& column);

/// What a record might have beside text, and what of it is not found where it is read.
struct MediaWanted {
  bool images = false, videos = false, features = false;
};
/// Columns that are not read and seem to hold such media, as entries of `data.fields` that would read them: "images: picture". A column
/// does if its values are encoded images, {"bytes", "path"} of one, names with the ending of such a file, or lists of these.
std::vector<std::string> unread_media(const Json& record, const MediaWanted& wanted);
/// Of such an entry: what its column holds and that it is not read, and what to do.
std::string remark_on_media(const std::string& field);
std::string advice_on_media(const std::string& field);

/// The warning of an entry of `data.fields` that no record has a value for.
/// @param field as "system: sys_text" (field_map.h)
std::string absent_field_warning(const std::string& field);

/// Keys of a conversation's turns, with values, that neither sftrun nor the chat template reads.
/// @param template_source empty: unknown, and only flags count   @param form of the run's objective
std::vector<std::string> unread_turn_keys(const Json& record, RecordFormat format,
                                          std::string_view template_source,
                                          config::ExampleForm form);
/// Whether other trainers may read the key of a turn as to what it is trained on: `loss`,
/// `train_detail`, `loss_weight`, …
bool is_loss_flag(const std::string& key);
/// @param form pairs and judged answers have the labels of the answers, whatever the turns say
std::string advice_on_loss_flag(config::ExampleForm form);

/// Whether `arguments` or `tools` have null members, which are left out (nulls.h).
bool has_null_arguments(const Json& record, RecordFormat format);

/// Whether a record has a "system" that is read, beside a turn of that role. Both are rendered.
bool has_two_systems(const Json& record, RecordFormat format);
inline constexpr const char* kTwoSystemsAdvice =
    "both are in the text, also if they are equal; leave one of them out";

}  // namespace sftrun::data
