#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/config/objectives.h"
#include "sftrun/core/name_list.h"
#include "sftrun/core/rows.h"

/// The formats of training records: one row each, with what configuration, hints and checks ask.
/// src/data/formats/ has a file for each that recognises records and reads them.
namespace sftrun::config {

/// The numbers are parts of the fingerprints of data sets.
enum class RecordFormat : int8_t {
  kAuto = -1,  ///< found by the keys of the records
  kMessages,
  kShareGpt,
  kPromptCompletion,
  kAlpaca,
  kText,
  kPreference,
  kSampled,
  kRetrieval
};

/// Where a format has its conversation. `data.fields` maps columns and keys to these.
struct TurnKeys {
  std::string_view list = "messages", role = "role", content = "content";
};

struct RecordFormatInfo {
  RecordFormat format;
  std::string_view name;        ///< `data.format`
  NameList aliases = {};        ///< accepted, too
  NameList columns;             ///< that a record must have, a prompt before its answer
  NameList optional = {};       ///< columns that it may have
  NameList turns = {};          ///< columns that may hold turns, or one turn
  bool reads_one_list = false;  ///< of `turns`: the first that a record has
  TurnKeys turn_keys = {};
  bool is_pair = false;  ///< two answers to compare
  bool is_text =
      false;  ///< text without answers: it is never rendered, and cut where it is too long
  bool is_sampled = false;    ///< token ids of an answer that a model sampled
  bool is_retrieval = false;  ///< a query, and texts that fit it and that do not

  /// Whether objectives on such examples read the format. Of a pair, judged answers are both, each
  /// by itself. Sampled answers may also be texts.
  constexpr bool gives(ExampleForm form) const {
    if (is_retrieval || form == ExampleForm::kRetrieval)
      return is_retrieval == (form == ExampleForm::kRetrieval);
    if (form == ExampleForm::kSampled) return !is_text && !is_pair;
    if (form == ExampleForm::kJudged) return !is_text && !is_sampled;
    if (form == ExampleForm::kClassed || form == ExampleForm::kPrompt)
      return !is_pair && !is_sampled;
    return !is_sampled && is_pair == (form == ExampleForm::kPair);
  }
};

/// In the order of the numbers. The first format that recognises a record reads it.
inline constexpr auto kRecordFormats = std::to_array<RecordFormatInfo>({
    {.format = RecordFormat::kMessages,
     .name = "messages",
     .columns = {"messages"},
     .optional = {"tools"},
     .turns = {"messages"}},
    {.format = RecordFormat::kShareGpt,
     .name = "sharegpt",
     .columns = {"conversations"},
     .optional = {"system", "tools"},
     .turns = {"conversations", "messages"},
     .reads_one_list = true,
     .turn_keys = {.list = "conversations", .role = "from", .content = "value"}},
    {.format = RecordFormat::kPromptCompletion,
     .name = "prompt_completion",
     .columns = {"prompt", "completion"},
     .optional = {"tools"},
     .turns = {"prompt", "completion"}},
    {.format = RecordFormat::kAlpaca,
     .name = "alpaca",
     .columns = {"instruction", "output"},
     .optional = {"input", "system", "tools"}},
    {.format = RecordFormat::kText, .name = "text", .columns = {"text"}, .is_text = true},
    {.format = RecordFormat::kPreference,
     .name = "preference",
     .columns = {"chosen", "rejected"},
     .optional = {"tools"},
     .turns = {"prompt", "chosen", "rejected"},
     .is_pair = true},
    {.format = RecordFormat::kSampled,
     .name = "sampled",
     .columns = {"prompt_ids", "completion_ids"},
     .optional = {"reward", "advantage", "group", "logprobs", "sampling_logprobs",
                  "completion_mask", "finish_reason"},
     .is_sampled = true},
    {.format = RecordFormat::kRetrieval,
     .name = "retrieval",
     .columns = {"anchor", "positive"},
     .optional = {"negative"},
     .is_retrieval = true},
});

/// @param format not kAuto
constexpr const RecordFormatInfo& format_info(RecordFormat format) {
  return kRecordFormats[static_cast<size_t>(format)];
}
static_assert(are_in_order(kRecordFormats, &RecordFormatInfo::format));

/// Whether the format is set, and its row says so.
/// @param holds a property of a row, such as &RecordFormatInfo::is_text
template <class Property>
constexpr bool is_format(RecordFormat format, Property holds) {
  return format != RecordFormat::kAuto && std::invoke(holds, format_info(format));
}

/// Columns of every format for images, lists of frames, and features of other encoders.
inline constexpr NameList kMediaColumns = {"images", "videos", "features"};

/// The column with the judgement of an answer, and LLaMA-Factory's word, which is read where there
/// is no such column.
inline constexpr const char *kLabelColumn = "label", *kLabelAlias = "kto_tag";
/// The column with the classes of a text, where it may have several.
inline constexpr const char* kLabelsColumn = "labels";
/// The column of a pair with what the chosen answer's score should exceed the other by.
inline constexpr const char* kMarginColumn = "margin";

/// All columns that `data.fields` can name.
std::vector<std::string> record_columns();
/// Those of them that records may lack, in alphabetical order; without what sampled answers have.
std::vector<std::string> optional_columns();
/// Columns that may hold turns.
std::vector<std::string> columns_of_turns();
/// Keys of a turn that `data.fields` can name.
inline constexpr NameList kTurnFields = {"role", "content", "train", "weight"};

}  // namespace sftrun::config
