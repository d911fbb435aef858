#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bad_records.h"
#include "endings.h"
#include "sftrun/config/run_config.h"
#include "sftrun/data/dataset.h"
#include "tally.h"
#include "tokenized_source.h"

namespace sftrun::data {

/// What the checks of a data set depend on besides its records.
struct CheckContext {
  CheckContext(const TextModel& model, const config::RunConfig& run, RecordFormat format,
               const LengthRule& rule);

  /// Whether examples without their ends are refused.
  bool trains_ends() const;
  /// Their rewards say how answers should end.
  bool model_writes_answers() const {
    return form == config::ExampleForm::kSampled || form == config::ExampleForm::kPrompt;
  }

  const TextModel model;
  const config::DataConfig data;
  const bool is_text, is_preference;  ///< of the format
  const config::ExampleForm form;     ///< of the objective
  const config::HeadKind head;        ///< the language-model head alone predicts tokens
  const bool answers_some;            ///< the run itself answers a part of the examples, or all
  const bool answers_all;             ///< no example is trained on with its own last answer
  const LengthRule rule;
  const bool expects_bos;  ///< conversations should begin with the BOS of the tokenizer
};

/// Counts of the records of a data set while it is read.
struct DatasetTallies {
  void add(const std::vector<Outcome>& record, const std::string& place,
           const CheckContext& context);

  DatasetStats stats;
  int64_t num_stop = 0;
  std::optional<EndToken> end_token;  ///< other than a stop token; of a last answer if any has one
  std::optional<Example> first_kept;
  std::string first_kept_place;
  std::optional<std::pair<std::string, std::string>> first_without_labels;  ///< text, place
  std::optional<std::pair<int64_t, std::string>> shortest_too_long;         ///< length, place
  /// Sequences with images, frames or features that are left out as too long, and the longest of them.
  struct LongMedia {
    Tally records;
    bool are_images = false;
    int64_t longest = 0, of_media = 0;  ///< its tokens, and those of images or features among them
    std::string place;
  } long_media;
  int64_t num_kept_with_media = 0;
  Tally without_end, empty_thinking, tool_calls, reasoning, earlier_reasoning, tools, answer_texts,
      messages, differs_in_class, control_tokens, empty_answers, begins_with_answer, missing_bos,
      too_long, truncated, labels_cut_off, without_labels, others_left_out, equal_pairs,
      two_systems, null_arguments, idle_markers, outside_template, messages_as_text;
  std::map<std::string, Tally> unknown_roles, unread_columns, unread_turn_keys, absent_fields,
      unread_media;
  BadRecords bad;

 private:
  void add(const Outcome& outcome, const std::string& place, const CheckContext& context);
  void add_contents(const Outcome& outcome, const std::string& place);
  void add_fate(const Outcome& outcome, const std::string& place);
  void add_media(const Outcome& outcome, const std::string& place);
  void add_ending(const Outcome& outcome, const std::string& place, const CheckContext& context);
};

}  // namespace sftrun::data
