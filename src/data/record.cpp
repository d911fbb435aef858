#include "record.h"

#include <optional>
#include <utility>
#include <vector>

#include "class_labels.h"
#include "formats/readers.h"
#include "judgement.h"
#include "likely_columns.h"
#include "nulls.h"
#include "record_media.h"
#include "record_values.h"
#include "retrieval_record.h"
#include "sampled_answer.h"
#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"
#include "sftrun/data/record_error.h"

namespace sftrun::data {
std::string keys_of(const Json& record) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : record.items())
    if (!value.is_null()) keys.push_back('"' + key + '"');
  return keys.empty() ? "none" : excerpt(join(keys, ", "));
}

void refuse_token_ids(const Json& record, const std::string& where) {
  if (!is_tokenised(record)) return;
  throw DataError(
      fmt::format(
          "the record is already tokenized, and sftrun tokenizes records itself (its keys: {})",
          keys_of(record)),
      where,
      "give the text from which they were made, for example as \"messages\", \"instruction\" and "
      "\"output\", or \"text\": sftrun tokenizes it");
}

std::string reason_for(RecordFormat format, const Json& record) {
  if (const auto recognise = reader_of(format).recognise) return recognise(record);
  std::vector<std::string> columns;
  for (const std::string_view column : config::format_info(format).columns) {
    if (value_of(record, column.data()) == nullptr) return {};
    columns.push_back(fmt::format("\"{}\"", column));
  }
  return "it has " + join(columns, " and ");
}

namespace {

/// The first format of the objective that recognises the record.
std::optional<DetectedFormat> format_of_keys(const Json& record, config::ExampleForm form) {
  for (const config::RecordFormatInfo& info : config::kRecordFormats) {
    if (!info.gives(form)) continue;
    std::string reason = reason_for(info.format, record);
    if (!reason.empty()) return {{info.format, std::move(reason)}};
  }
  return std::nullopt;
}

/// A command reads one answer of a record.
[[noreturn]] void refuse_two_answers(const Json& record, const std::string& where) {
  const bool is_list = record["chosen"].is_array();
  const Json* prompt = value_of(record, "prompt");
  const bool has_prompt = prompt != nullptr && prompt->is_array() == is_list;
  const bool has_other = format_of_keys(record, config::ExampleForm::kAnswer).has_value();
  throw DataError(
      "this is preference data (\"chosen\" and \"rejected\"): two answers in a record", where,
      fmt::format("write a record for each answer: {}{}",
                  has_prompt ? "{\"prompt\": …, \"completion\": …}"
                  : is_list  ? "{\"messages\": […]}"
                             : "{\"text\": …}",
                  has_other ? "; or, to have the rest of the record read, remove the two" : ""));
}

/// Pairs are read as such, whatever else the record has.
DetectedFormat detect_judged(const Json& record, const config::ObjectiveInfo& reader,
                             const std::string& where) {
  if (auto pair = format_of_keys(record, config::ExampleForm::kPair)) return *pair;
  if (label_column(record) != nullptr) {
    if (auto format = format_of_keys(record, reader.form)) {
      format->reason += " and a label";
      return *format;
    }
  }
  refuse_unjudged(record, reader, where);
}

/// Token ids, else texts with a reward.
DetectedFormat detect_sampled(const Json& record, const config::ObjectiveInfo& reader,
                              const std::string& where) {
  if (!reason_for(RecordFormat::kSampled, record).empty())
    return {RecordFormat::kSampled, reason_for(RecordFormat::kSampled, record)};
  if (has_reward(record))
    if (auto format = format_of_keys(record, reader.form)) return *format;
  const char* write =
      "write \"prompt_ids\" and \"completion_ids\" (as `sftrun generate -n 8 --logprobs` does), or "
      "\"prompt\" and \"completion\", with a \"reward\"";
  throw RecordError(
      fmt::format("the record is no sampled answer with a reward, which train.objective {} needs "
                  "(its keys: {})",
                  reader.name, keys_of(record)),
      where,
      fmt::format(
          "{}; or name the columns: data.fields: {{reward: COLUMN}}; or, to let the run "
          "write the answers to these prompts, name what judges them: train.rollouts.reward "
          "(docs/grpo.md)",
          write),
      write);
}

/// Texts, prompts and conversations with a class.
DetectedFormat detect_classed(const Json& given, const config::ObjectiveInfo& reader,
                              const std::string& where) {
  Json room;
  const Json& record = with_text_of_prompt(given, room);
  if (!has_class(record)) refuse_unclassed(record, reader, where);
  auto format = format_of_keys(record, reader.form);
  if (!format) refuse_unclassed(record, reader, where);
  if (&record == &room) format->reason = "it has \"prompt\"";
  format->reason += " and a label";
  return *format;
}

[[noreturn]] void refuse_without_pair(const Json& record, const config::ObjectiveInfo& reader,
                                      const std::string& where) {
  refuse_token_ids(record, where);
  const bool has_chosen = value_of(record, "chosen") != nullptr;
  if (has_chosen || value_of(record, "rejected") != nullptr) {
    const char *one = has_chosen ? "chosen" : "rejected",
               *other = has_chosen ? "rejected" : "chosen";
    throw DataError(
        fmt::format("the record has \"{}\" but no value for \"{}\", and train.objective "
                    "{} compares the two (its keys: {})",
                    one, other, reader.name, keys_of(record)),
        where,
        fmt::format("name the column: data.fields: {{{}: COLUMN}}; or leave the record "
                    "out where there is no other answer",
                    other));
  }
  const auto form =
      has_judgement(record) ? config::ExampleForm::kJudged : config::ExampleForm::kAnswer;
  throw DataError(
      fmt::format("the record has no \"chosen\" and \"rejected\", which "
                  "train.objective {} needs (its keys: {})",
                  reader.name, keys_of(record)),
      where,
      fmt::format("name the columns: data.fields: {{prompt: COLUMN, chosen: COLUMN, rejected: "
                  "COLUMN}}; or set train.objective: {}{}",
                  config::first_objective_for(form),
                  has_judgement(record) ? ", which reads one answer and its label" : ""));
}

}  // namespace

std::string name_of(RecordFormat format) {
  return std::string(config::format_info(format).name);
}

DetectedFormat detect_format(const Json& record, const std::string& where,
                             config::Objective objective) {
  const config::ObjectiveInfo& reader = config::objective_info(objective);
  if (reader.reads_judgements()) return detect_judged(record, reader, where);
  if (reader.reads_samples()) return detect_sampled(record, reader, where);
  if (reader.reads_classes()) return detect_classed(record, reader, where);
  if (reader.reads_retrieval()) {
    if (auto format = format_of_keys(record, reader.form)) return *format;
    refuse_unpaired_query(record, reader, where);
  }
  if (auto format = format_of_keys(record, reader.form)) return *format;
  if (reader.reads_pairs()) refuse_without_pair(record, reader, where);
  if (is_preference(record)) refuse_preference(record, where);
  if (has_sampled_ids(record))
    throw RecordError(
        "the record is a sampled answer (\"prompt_ids\" and \"completion_ids\")", where,
        fmt::format(
            "set train.objective: {}, and give it a \"reward\" (docs/grpo.md); or leave only "
            "its texts",
            config::first_objective_for(config::ExampleForm::kSampled)),
        "leave only its texts");
  refuse_token_ids(record, where);
  throw DataError(fmt::format("the record has no known format; its keys: {}", keys_of(record)),
                  where, advise_fields(record));
}

DetectedFormat detect_input_format(const Json& record, const std::string& where) {
  if (is_preference(record)) refuse_two_answers(record, where);
  if (auto format = format_of_keys(record, config::ExampleForm::kAnswer)) return *format;
  refuse_token_ids(record, where);
  throw DataError(fmt::format("the record has no known format; its keys: {}", keys_of(record)),
                  where, advise_keys(record));
}

DetectedFormat detect_scored_format(const Json& record, const std::string& where) {
  Json room;
  return detect_input_format(with_text_of_prompt(record, room), where);
}

bool is_rendered(const Json& record, RecordFormat format, bool has_chat_template) {
  const auto is_rendered = reader_of(format).is_rendered;
  return is_rendered == nullptr || is_rendered(record, has_chat_template);
}

std::vector<NamedShape> shapes_of(const Json& record, RecordFormat format,
                                  const TemplateTraits& chat_template, const std::string& where) {
  if (!chat_template.reads_images) refuse_image_parts(record, format, where);
  return reader_of(format).shapes(record, chat_template, where);
}

RecordShape shape_of(const Json& record, RecordFormat format, const TemplateTraits& chat_template,
                     const std::string& where) {
  SFTRUN_CHECK(!config::format_info(format).is_pair);
  return std::move(shapes_of(record, format, chat_template, where).front().shape);
}

}  // namespace sftrun::data
