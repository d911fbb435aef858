#include "dataset_tallies.h"

#include <algorithm>

namespace sftrun::data {
namespace {

/// If the tokenizer adds BOS, the model was always trained with one.
bool adds_bos(const tokenizer::Tokenizer& tokenizer) {
  const auto bos = tokenizer.bos_id();
  const std::vector<tokenizer::TokenId> plain = tokenizer.encode("a", /*add_special_tokens=*/true);
  return bos && !plain.empty() && plain.front() == *bos;
}

}  // namespace

CheckContext::CheckContext(const TextModel& text_model, const config::RunConfig& run,
                           RecordFormat format, const LengthRule& length_rule)
    : model(text_model),
      data(run.data),
      is_text(config::format_info(format).is_text),
      is_preference(config::format_info(format).is_pair),
      form(run.train.example_form()),
      head(run.train.objective_info().head),
      answers_some(run.train.has_own_answers()),
      answers_all(run.train.has_own_answers() && *run.train.rollouts.share == 1),
      rule(length_rule),
      expects_bos(!is_text && form != config::ExampleForm::kRetrieval && model.chat_template &&
                  adds_bos(*model.tokenizer)) {}

bool CheckContext::trains_ends() const {
  return head == config::HeadKind::kLanguage && !is_text &&
         data.loss_on != config::LossOnChoice::kAll;
}

void DatasetTallies::add(const std::vector<Outcome>& record, const std::string& place,
                         const CheckContext& context) {
  ++stats.num_records;
  for (const Outcome& outcome : record) add(outcome, place, context);
  if (context.is_preference && record.size() == 2 && !record[0].example.tokens.empty() &&
      record[0].example.tokens == record[1].example.tokens)
    equal_pairs.add(1, place);
}

void DatasetTallies::add(const Outcome& outcome, const std::string& place,
                         const CheckContext& context) {
  add_fate(outcome, place);
  add_media(outcome, place);
  add_contents(outcome, place);
  if (!outcome.example.tokens.empty()) add_ending(outcome, place, context);
}

void DatasetTallies::add_contents(const Outcome& outcome, const std::string& place) {
  for (const std::string& role : outcome.unknown_roles) unknown_roles[role].add(1, place);
  for (const std::string& column : outcome.unread_columns) unread_columns[column].add(1, place);
  for (const std::string& key : outcome.unread_turn_keys) unread_turn_keys[key].add(1, place);
  for (const std::string& field : outcome.unread_media) unread_media[field].add(1, place);
  for (const std::string& field : outcome.absent_fields) absent_fields[field].add(1, place);
  two_systems.add(outcome.has_two_systems ? 1 : 0, place);
  idle_markers.add(outcome.has_idle_marker ? 1 : 0, place);
  outside_template.add(outcome.is_outside_template ? 1 : 0, place);
  messages_as_text.add(outcome.has_messages_as_text ? 1 : 0, place);
  differs_in_class.add(outcome.differs_in_class ? 1 : 0, place);
  null_arguments.add(outcome.has_null_arguments ? 1 : 0, place);
  begins_with_answer.add(outcome.begins_with_answer ? 1 : 0, place);
  empty_answers.add(outcome.num_empty_answers, place);
  empty_thinking.add(outcome.num_empty_thinking, place);
  tool_calls.add(outcome.left_out.tool_calls, place);
  reasoning.add(outcome.left_out.reasoning, place);
  earlier_reasoning.add(outcome.left_out.earlier_reasoning, place);
  tools.add(outcome.left_out.tools, place);
  answer_texts.add(outcome.left_out.answer_texts, place);
  messages.add(outcome.left_out.messages, place);
  control_tokens.add(outcome.num_control_tokens, place);
}

void DatasetTallies::add_ending(const Outcome& outcome, const std::string& place,
                                const CheckContext& context) {
  if (!first_kept) {
    first_kept = outcome.example;
    first_kept_place = place;
  }
  num_stop += outcome.ending == Ending::kStop ? 1 : 0;
  if (outcome.ending == Ending::kSpecial && !(end_token && end_token->ends_last_answer)) {
    const auto end = end_token_of(outcome.example, *context.model.tokenizer);
    if (!end_token || (end && end->ends_last_answer)) end_token = end;
  }
  without_end.add(outcome.ending == Ending::kNone ? 1 : 0, place);
  if (context.expects_bos && outcome.example.tokens.front() != *context.model.tokenizer->bos_id())
    missing_bos.add(1, place);
}

void DatasetTallies::add_media(const Outcome& outcome, const std::string& place) {
  if (outcome.num_media_tokens == 0) return;
  if (!outcome.example.tokens.empty()) ++num_kept_with_media;
  if (outcome.fate != Fate::kTooLong && outcome.fate != Fate::kLabelsCutOff) return;
  long_media.records.add(1, place);
  stats.num_media_left_out = long_media.records.count();
  if (outcome.length <= long_media.longest) return;
  long_media.are_images = outcome.has_images;
  long_media.longest = outcome.length;
  long_media.of_media = outcome.num_media_tokens;
  long_media.place = place;
}

void DatasetTallies::add_fate(const Outcome& outcome, const std::string& place) {
  const Fate fate = outcome.fate;
  too_long.add(fate == Fate::kTooLong ? 1 : 0, place);
  truncated.add(fate == Fate::kTruncated ? 1 : 0, place);
  labels_cut_off.add(fate == Fate::kLabelsCutOff ? 1 : 0, place);
  without_labels.add(fate == Fate::kWithoutLabels ? 1 : 0, place);
  others_left_out.add(fate == Fate::kOtherLeftOut ? 1 : 0, place);
  stats.num_dropped_too_long = too_long.count();
  stats.num_truncated = truncated.count() + labels_cut_off.count();
  stats.num_labels_cut_off = labels_cut_off.count();
  stats.num_without_labels = without_labels.count();
  if (fate == Fate::kTooLong && (!shortest_too_long || outcome.length < shortest_too_long->first)) {
    shortest_too_long.emplace(outcome.length, place);
  }
  if ((fate == Fate::kWithoutLabels || fate == Fate::kLabelsCutOff) && !first_without_labels)
    first_without_labels.emplace(outcome.text, place);
  if (outcome.example.tokens.empty()) return;
  const auto length = static_cast<int64_t>(outcome.example.tokens.size());
  ++stats.num_examples;
  stats.num_tokens += length;
  stats.num_label_tokens += outcome.example.label_tokens;
  stats.num_desirable += outcome.example.judgement == Judgement::kDesirable ? 1 : 0;
  stats.num_undesirable += outcome.example.judgement == Judgement::kUndesirable ? 1 : 0;
  stats.longest = std::max(stats.longest, length);
}

}  // namespace sftrun::data
