#include "dataset_checks.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "roles.h"
#include "sftrun/core/error.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"
#include "unread_columns.h"

namespace sftrun::data {
namespace {

void warn(std::vector<Remark>& remarks, const Tally& tally, const std::string& what,
          const std::string& advice) {
  if (tally.count() == 0) return;
  remarks.push_back(
      {true, fmt::format("data: {} ({}): {}; {}", what, tally.count(), tally.places(), advice)});
}

}  // namespace

void say(const std::vector<Remark>& remarks) {
  for (const Remark& remark : remarks) {
    if (remark.is_warning)
      log::warn("{}", remark.text);
    else
      log::info("{}", remark.text);
  }
}

void Tally::add(int64_t number, const std::string& place) {
  if (number == 0) return;
  count_ += number;
  if (!places_.empty() && places_.back() == place) return;
  if (places_.size() < kShown)
    places_.push_back(place);
  else
    more_ = true;
}

std::string Tally::places() const {
  return join(places_, ", ") + (more_ ? ", …" : "");
}

DatasetChecks::DatasetChecks(const TextModel& model, const config::DataConfig& data,
                             RecordFormat format, const LengthRule& rule)
    : model_(model),
      data_(data),
      is_text_(config::format_info(format).is_text),
      is_preference_(config::format_info(format).is_pair),
      rule_(rule) {
  // If the tokenizer adds BOS, the model was always trained with one.
  const auto bos = model.tokenizer->bos_id();
  const std::vector<tokenizer::TokenId> plain =
      model.tokenizer->encode("a", /*add_special_tokens=*/true);
  expects_bos_ = !is_text_ && model.chat_template && bos && !plain.empty() && plain.front() == *bos;
}

void DatasetChecks::add(const std::vector<Outcome>& record, const std::string& place) {
  ++stats_.num_records;
  for (const Outcome& outcome : record) add(outcome, place);
  if (is_preference_ && record.size() == 2 && !record[0].example.tokens.empty() &&
      record[0].example.tokens == record[1].example.tokens)
    equal_pairs_.add(1, place);
}

void DatasetChecks::add(const TokenizedSource::Block& block, bool gives_up) {
  for (size_t i = 0; i < block.records.size(); ++i) {
    if (const auto& bad = block.bad[i]) bad_.add(*bad, stats_.num_records);
    add(block.records[i], block.places[i]);
  }
  stats_.num_bad = bad_.count();
  if (gives_up && bad_.is_hopeless(stats_.num_records)) bad_.refuse(stats_.num_records);
}

void DatasetChecks::require_usable_records(const std::string& scope) const {
  bad_.require_usable(data_.bad_records, stats_.num_records, scope);
}

void DatasetChecks::add(const Outcome& outcome, const std::string& place) {
  count(outcome, place);
  for (const std::string& role : outcome.unknown_roles) unknown_roles_[role].add(1, place);
  for (const std::string& column : outcome.unread_columns) unread_columns_[column].add(1, place);
  for (const std::string& key : outcome.unread_turn_keys) unread_turn_keys_[key].add(1, place);
  for (const std::string& field : outcome.absent_fields) absent_fields_[field].add(1, place);
  two_systems_.add(outcome.has_two_systems ? 1 : 0, place);
  differs_in_class_.add(outcome.differs_in_class ? 1 : 0, place);
  null_arguments_.add(outcome.has_null_arguments ? 1 : 0, place);
  begins_with_answer_.add(outcome.begins_with_answer ? 1 : 0, place);
  empty_answers_.add(outcome.num_empty_answers, place);
  empty_thinking_.add(outcome.num_empty_thinking, place);
  tool_calls_.add(outcome.left_out.tool_calls, place);
  reasoning_.add(outcome.left_out.reasoning, place);
  earlier_reasoning_.add(outcome.left_out.earlier_reasoning, place);
  tools_.add(outcome.left_out.tools, place);
  answer_texts_.add(outcome.left_out.answer_texts, place);
  messages_.add(outcome.left_out.messages, place);
  control_tokens_.add(outcome.num_control_tokens, place);
  if (outcome.example.tokens.empty()) return;
  if (!first_kept_) {
    first_kept_ = outcome.example;
    first_kept_place_ = place;
  }
  num_stop_ += outcome.ending == Ending::kStop ? 1 : 0;
  if (outcome.ending == Ending::kSpecial && !(end_token_ && end_token_->ends_last_answer)) {
    const auto end = end_token_of(outcome.example, *model_.tokenizer);
    if (!end_token_ || (end && end->ends_last_answer)) end_token_ = end;
  }
  without_end_.add(outcome.ending == Ending::kNone ? 1 : 0, place);
  if (expects_bos_ && outcome.example.tokens.front() != *model_.tokenizer->bos_id())
    missing_bos_.add(1, place);
}

void DatasetChecks::count(const Outcome& outcome, const std::string& place) {
  const Fate fate = outcome.fate;
  too_long_.add(fate == Fate::kTooLong ? 1 : 0, place);
  truncated_.add(fate == Fate::kTruncated ? 1 : 0, place);
  labels_cut_off_.add(fate == Fate::kLabelsCutOff ? 1 : 0, place);
  without_labels_.add(fate == Fate::kWithoutLabels ? 1 : 0, place);
  others_left_out_.add(fate == Fate::kOtherLeftOut ? 1 : 0, place);
  stats_.num_dropped_too_long = too_long_.count();
  stats_.num_truncated = truncated_.count() + labels_cut_off_.count();
  stats_.num_labels_cut_off = labels_cut_off_.count();
  stats_.num_without_labels = without_labels_.count();
  if (fate == Fate::kTooLong &&
      (!shortest_too_long_ || outcome.length < shortest_too_long_->first)) {
    shortest_too_long_.emplace(outcome.length, place);
  }
  if ((fate == Fate::kWithoutLabels || fate == Fate::kLabelsCutOff) && !first_without_labels_)
    first_without_labels_.emplace(outcome.text, place);
  if (outcome.example.tokens.empty()) return;
  const auto length = static_cast<int64_t>(outcome.example.tokens.size());
  ++stats_.num_examples;
  stats_.num_tokens += length;
  stats_.num_label_tokens += outcome.example.label_tokens;
  stats_.longest = std::max(stats_.longest, length);
}

std::vector<Remark> DatasetChecks::conclude() const {
  std::vector<Remark> remarks;
  remark_on_records(remarks);
  remark_on_roles(remarks);
  if (first_kept_) require_trained_ends(remarks);
  remark_on_thinking(remarks);
  remark_on_templates(remarks);
  remark_on_class(remarks);
  if (!first_kept_) refuse_empty();
  remark_on_lengths(remarks);
  return remarks;
}

/// Whether examples without their ends are refused.
bool DatasetChecks::trains_ends() const {
  return !is_text_ && data_.loss_on != config::LossOnChoice::kAll;
}

/// A model that is not trained on its end-of-turn token does not stop.
void DatasetChecks::require_trained_ends(std::vector<Remark>& remarks) const {
  const std::string stops = stop_tokens_of(model_);
  if (without_end_.count() == stats_.num_examples && trains_ends()) {
    throw DataError(
        fmt::format("no example trains on an end-of-turn token, so the trained model would not "
                    "stop; the last answer of this one, as it would be trained on, is\n{}",
                    excerpt(last_answer(*first_kept_, *model_.tokenizer))),
        first_kept_place_,
        fmt::format(
            "use a chat template that writes a stop token of the model ({}) after each answer, "
            "inside its generation marks if it has any: remove model.chat_template if the model "
            "has its own, or change it (sftrun preview shows the labels); if examples are "
            "truncated, raise model.max_seq_len",
            stops));
  }
  if (without_end_.count() > 0) {
    remarks.push_back(
        {true, fmt::format("data: no end-of-turn token is trained on in {} of {}: {}",
                           without_end_.count(), counted(stats_.num_examples, "example"),
                           without_end_.places())});
  }
  if (num_stop_ == 0 && end_token_) remarks.push_back({true, remark_on_end_token(*end_token_)});
}

/// Answers end in a special token at which generation does not stop.
std::string DatasetChecks::remark_on_end_token(const EndToken& end) const {
  const std::string token = model_.tokenizer->id_to_token(end.id);
  const std::string stops = stop_tokens_of(model_);
  if (end.ends_last_answer) {
    return fmt::format(
        "data: answers end in `{}`, but generation with this model stops only at {}: add the "
        "token's id to eos_token_id in the model's generation_config.json",
        token, stops);
  }
  return fmt::format(
      "data: the last answer of a conversation has no end token, the answers before it end in "
      "`{0}`, and generation with this model stops only at {1}: add the id of `{0}` to "
      "eos_token_id in the model's generation_config.json, and set model.chat_template to a "
      "template that writes `{0}` after the last answer, too",
      token, stops);
}

void DatasetChecks::remark_on_thinking(std::vector<Remark>& remarks) const {
  if (data_.empty_thinking == config::EmptyThinking::kWarn) {
    warn(remarks, empty_thinking_,
         "answers begin with empty reasoning, which trains the model not to reason",
         "data.empty_thinking: drop does not train on it; keep trains on it without this warning");
  } else if (data_.empty_thinking == config::EmptyThinking::kDrop && empty_thinking_.count() > 0) {
    remarks.push_back({false, fmt::format("data: the empty reasoning of {} is not trained on",
                                          counted(empty_thinking_.count(), "answer"))});
  }
}

namespace {

std::string advice_on_role(const std::string& role) {
  const std::string likely = likely_role(role);
  return (likely.empty() ? "" : fmt::format("did you mean `{}`? ", likely)) +
         "only turns of `assistant` are trained on; rename it by " + fix_of_role(role);
}

}  // namespace

void DatasetChecks::remark_on_roles(std::vector<Remark>& remarks) const {
  for (const auto& [role, records] : unknown_roles_) {
    warn(
        remarks, records,
        fmt::format("records have the role `{}`, which is not in the chat template", excerpt(role)),
        advice_on_role(role));
  }
}

void DatasetChecks::remark_on_records(std::vector<Remark>& remarks) const {
  if (bad_.count() > 0) remarks.push_back({true, "data: " + bad_.left_out()});
  for (const auto& [field, records] : absent_fields_) {
    if (records.count() == stats_.num_records - stats_.num_bad)
      remarks.push_back({true, "data: " + absent_field_warning(field)});
  }
  for (const auto& [column, records] : unread_columns_) {
    warn(remarks, records, fmt::format("records have \"{}\", which is not read", column),
         advice_on_column(column));
  }
  remark_on_turn_keys(remarks);
  warn(remarks, two_systems_, "records have a \"system\" and a turn of that role",
       kTwoSystemsAdvice);
  if (null_arguments_.count() > 0) {
    remarks.push_back(
        {false, fmt::format("data: in {}, nulls inside of arguments or tools "
                            "are left out, as missing values: {}",
                            counted(null_arguments_.count(), "record"), null_arguments_.places())});
  }
  warn(remarks, begins_with_answer_, "conversations begin with an assistant turn",
       "the model is trained to speak first; if that is not intended, add a user turn before it");
  warn(remarks, empty_answers_, "answers are empty",
       is_preference_
           ? "the model is trained to answer nothing; remove such pairs"
           : "the model is trained to answer nothing; remove such records, or give the messages of "
             "such turns \"train\": false");
  warn(remarks, equal_pairs_, "pairs have the same chosen and rejected answer",
       "they train nothing; leave them out");
}

/// A warning for each flag, and one for all other keys.
void DatasetChecks::remark_on_turn_keys(std::vector<Remark>& remarks) const {
  std::vector<std::string> others;
  const Tally* most = nullptr;
  for (const auto& [key, records] : unread_turn_keys_) {
    const std::string shown = '"' + excerpt(key) + '"';
    if (is_loss_flag(key)) {
      warn(remarks, records, fmt::format("records have turns with {}, which is not read", shown),
           advice_on_loss_flag(is_preference_));
      continue;
    }
    others.push_back(shown);
    if (most == nullptr || records.count() > most->count()) most = &records;
  }
  if (most == nullptr) return;
  constexpr size_t kMaxNamed = 8;
  const bool is_one = others.size() == 1;
  if (others.size() > kMaxNamed) {
    others.resize(kMaxNamed);
    others.emplace_back("…");
  }
  warn(remarks, *most,
       fmt::format("records have turns with {}, which {} not read", join(others, ", "),
                   is_one ? "is" : "are"),
       "the text of the conversation is without them; what shall be trained on belongs in the "
       "content");
}

void DatasetChecks::remark_on_templates(std::vector<Remark>& remarks) const {
  // No built-in template writes calls, reasoning and tools.
  const std::string other_template =
      "set model.chat_template to the Jinja file of a model whose template writes them (its "
      "chat_template.jinja; the built-in templates do not)";
  warn(remarks, tool_calls_, "answers call tools, but the chat template omits the calls",
       "they are not trained on; " + other_template);
  warn(remarks, reasoning_, "answers have reasoning, but the chat template omits it",
       "it is not trained on; " + other_template +
           ", or write the reasoning into the content, between the marks that the model knows");
  warn(remarks, answer_texts_,
       "answers have text outside their reasoning that the chat template omits",
       "it is not trained on; templates keep what is between the first <think> and </think> and "
       "what follows the last </think>: leave one pair in each answer");
  warn(remarks, messages_, "messages have text that the chat template omits",
       "the model does not see it; give them a role that the template writes, for example by "
       "data.fields: {roles: {developer: system}}, or another template");
  warn(remarks, earlier_reasoning_,
       "answers before the last one of a conversation have reasoning, but the chat template omits "
       "it",
       advice_on_earlier_reasoning());
  warn(remarks, tools_, "conversations have tools, but the chat template omits them",
       "the model does not see them; " + other_template);
  warn(remarks, control_tokens_, "messages have control tokens of the model in their text",
       "they are read as if the chat template had written them; take them out where that is not "
       "meant");
  if (!expects_bos_) return;
  warn(remarks, missing_bos_,
       fmt::format("conversations begin without {}, which the tokenizer puts before texts",
                   model_.tokenizer->id_to_token(*model_.tokenizer->bos_id())),
       "change the chat template to begin with {{ bos_token }}");
}

void DatasetChecks::remark_on_class(std::vector<Remark>& remarks) const {
  const tokenizer::ClassDifference* difference = model_.tokenizer->class_difference();
  if (difference == nullptr) return;
  warn(remarks, differs_in_class_,
       fmt::format("examples have other tokens in transformers 5, which uses the class {} instead "
                   "of the {} of tokenizer.json",
                   difference->class_name, difference->parts),
       "sftrun uses the file, as transformers 4 does; to make transformers 5 use it, " +
           difference->remedy);
}

void DatasetChecks::remark_on_lengths(std::vector<Remark>& remarks) const {
  remarks.push_back(
      {false,
       fmt::format("data: {}, {}, {} tokens, {} trained on ({:.1f}%), longest {}",
                   counted(stats_.num_records, "record"), counted(stats_.num_examples, "example"),
                   format_count(static_cast<uint64_t>(stats_.num_tokens)),
                   format_count(static_cast<uint64_t>(stats_.num_label_tokens)),
                   100.0 * static_cast<double>(stats_.num_label_tokens) /
                       static_cast<double>(stats_.num_tokens),
                   stats_.longest)});
  const auto remark = [&](const Tally& tally, const std::string& what) {
    if (tally.count() == 0) return;
    remarks.push_back({true, fmt::format("data: {} {}: {}", counted(tally.count(), "example"), what,
                                         tally.places())});
  };
  remark(too_long_,
         fmt::format("left out, because longer than model.max_seq_len = {}", rule_.max_seq_len));
  remark(truncated_, fmt::format("truncated to {}", counted(rule_.max_seq_len, "token")));
  remark(labels_cut_off_,
         fmt::format("left out, because no label is in the first {} tokens", rule_.max_seq_len));
  remark(without_labels_, "left out, because no token has a label");
  remark(others_left_out_, "left out, because the other answer of the pair is left out");
}

std::string DatasetChecks::advice_on_earlier_reasoning() const {
  const bool keeps = data_.thinking == config::Thinking::kKeep;
  std::string advice = keeps ? "it ignores thinking: keep"
                       : is_preference_
                           ? "the model sees them without it; data.thinking: keep asks "
                             "the template to keep it"
                           : "they are trained on without it; data.thinking: keep "
                             "asks the template to keep it";
  // Elsewhere `split` is refused, or changes nothing.
  const bool can_split = !is_preference_ && data_.loss_on == config::LossOnChoice::kAssistant;
  return can_split ? advice + "; data.thinking: split trains on each answer with its reasoning"
                   : advice;
}

/// If no example is left, the warnings are not printed.
std::string DatasetChecks::unknown_roles_fix() const {
  return unknown_roles_.empty() ? "" : advice_on_role(unknown_roles_.begin()->first) + "; ";
}

void DatasetChecks::refuse_empty() const {
  if (first_without_labels_) {
    throw DataError(fmt::format("no token of any record has a label, so there is nothing to "
                                "train on; one record is\n{}",
                                first_without_labels_->first),
                    first_without_labels_->second,
                    unknown_roles_fix() +
                        "see sftrun preview; check that conversations have assistant turns "
                        "(not all \"train\": "
                        "false), data.loss_on and model.max_seq_len");
  }
  SFTRUN_CHECK(shortest_too_long_.has_value());
  throw DataError(
      fmt::format("every record is longer than model.max_seq_len = {}; the shortest has {} tokens",
                  rule_.max_seq_len, shortest_too_long_->first),
      shortest_too_long_->second,
      trains_ends() ? "raise model.max_seq_len"
                    : "raise model.max_seq_len, or set data.too_long: truncate");
}

}  // namespace sftrun::data
