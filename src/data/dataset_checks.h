#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bad_records.h"
#include "endings.h"
#include "sftrun/config/run_config.h"
#include "sftrun/core/log.h"
#include "sftrun/data/dataset.h"
#include "tokenized_source.h"

/// Checks of a data set before training, for mistakes that training itself would not notice.
namespace sftrun::data {

/// A remark about a data set. It is cached with the data, and logged again when they are used
/// again.
struct Remark {
  bool is_warning = false;
  std::string text;
};
void say(const std::vector<Remark>& remarks);

/// How often a problem was found, and the first places.
class Tally {
 public:
  void add(int64_t number, const std::string& place);
  int64_t count() const { return count_; }
  std::string places() const;  ///< "a.jsonl:2, a.jsonl:7, …"

 private:
  static constexpr size_t kShown = 3;
  int64_t count_ = 0;
  std::vector<std::string> places_;
  bool more_ = false;
};

/// Counts while a data set is read, and checks the counts at the end.
class DatasetChecks {
 public:
  DatasetChecks(const TextModel& model, const config::DataConfig& data, RecordFormat format,
                const LengthRule& rule);

  void add(const std::vector<Outcome>& record, const std::string& place);
  /// @param gives_up refuse if the first thousand records are all bad   @throws DataError
  void add(const TokenizedSource::Block& block, bool gives_up = true);
  const BadRecords& bad_records() const { return bad_; }

  /// @param scope see BadRecords   @throws DataError for bad records, unless they are left out
  void require_usable_records(const std::string& scope = {}) const;
  /// Remarks about doubtful data. @throws DataError with an example if training would harm the
  /// model, or if nothing is left to train on
  std::vector<Remark> conclude() const;
  const DatasetStats& stats() const { return stats_; }

 private:
  void add(const Outcome& outcome, const std::string& place);
  void count(const Outcome& outcome, const std::string& place);
  void require_trained_ends(std::vector<Remark>& remarks) const;
  std::string remark_on_end_token(const EndToken& end) const;
  void remark_on_thinking(std::vector<Remark>& remarks) const;
  void remark_on_templates(std::vector<Remark>& remarks) const;
  void remark_on_class(std::vector<Remark>& remarks) const;
  void remark_on_roles(std::vector<Remark>& remarks) const;
  void remark_on_records(std::vector<Remark>& remarks) const;
  void remark_on_turn_keys(std::vector<Remark>& remarks) const;
  void remark_on_lengths(std::vector<Remark>& remarks) const;
  bool trains_ends() const;
  std::string advice_on_earlier_reasoning() const;
  std::string unknown_roles_fix() const;
  [[noreturn]] void refuse_empty() const;

  const TextModel model_;
  const config::DataConfig data_;
  const bool is_text_, is_preference_;
  const LengthRule rule_;
  bool expects_bos_ = false;

  DatasetStats stats_;
  int64_t num_stop_ = 0;
  std::optional<EndToken> end_token_;  ///< other than a stop token; of a last answer if any has one
  std::optional<Example> first_kept_;
  std::string first_kept_place_;
  std::optional<std::pair<std::string, std::string>> first_without_labels_;  // text, place
  std::optional<std::pair<int64_t, std::string>> shortest_too_long_;         // length, place
  Tally without_end_, empty_thinking_, tool_calls_, reasoning_, earlier_reasoning_, tools_,
      answer_texts_, messages_, differs_in_class_, control_tokens_, empty_answers_,
      begins_with_answer_, missing_bos_, too_long_, truncated_, labels_cut_off_, without_labels_,
      others_left_out_, equal_pairs_, two_systems_, null_arguments_;
  std::map<std::string, Tally> unknown_roles_, unread_columns_, unread_turn_keys_, absent_fields_;
  BadRecords bad_;
};

}  // namespace sftrun::data
