#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "record.h"
#include "sftrun/config/record_formats.h"

/// How the formats of config::kRecordFormats are recognised and read: a file for each.
namespace sftrun::data {

struct FormatReader {
  /// The record as one conversation or text; of a pair as two.
  /// @throws DataError for keys that are missing or of the wrong type
  std::vector<NamedShape> (*shapes)(const Json& record, const TemplateTraits& chat_template,
                                    const std::string& where);
  /// Whether the chat template renders a record of the format. Null: always.
  bool (*is_rendered)(const Json& record, bool has_chat_template) = nullptr;
  /// Why a record is of the format: "it has \"messages\""; empty: it is not. Null: it must have the
  /// columns of the format's row.
  std::string (*recognise)(const Json& record) = nullptr;
  /// A record that has a prompt, completed as one to train on: its answer is not looked at.
  /// nullopt: it has none. Null: a complete record is one.
  /// @throws DataError for a prompt of the wrong type
  std::optional<Json> (*asked)(const Json& record, const std::string& where) = nullptr;
};

extern const FormatReader kMessagesReader, kShareGptReader, kPromptCompletionReader, kAlpacaReader,
    kTextReader, kPreferenceReader, kSampledReader, kRetrievalReader;

/// The reader of each row.
inline constexpr auto kFormatReaders = std::to_array<const FormatReader*>({
    &kMessagesReader,
    &kShareGptReader,
    &kPromptCompletionReader,
    &kAlpacaReader,
    &kTextReader,
    &kPreferenceReader,
    &kSampledReader,
    &kRetrievalReader,
});
static_assert(kFormatReaders.size() == config::kRecordFormats.size());

inline const FormatReader& reader_of(RecordFormat format) {
  return *kFormatReaders[static_cast<size_t>(format)];
}

/// ShareGPT's turns as messages. Messages among them stay as they are.
/// @param turns a list   @param key of the list, for errors
/// @throws DataError for turns without text, and for unknown roles
Json messages_of_turns(const Json& turns, const std::string& key,
                       const TemplateTraits& chat_template, const std::string& where);

/// As FormatReader::recognise.
std::string reason_for(RecordFormat format, const Json& record);

}  // namespace sftrun::data
