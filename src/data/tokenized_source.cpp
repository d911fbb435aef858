#include "tokenized_source.h"

#include <algorithm>
#include <span>

#include "media_text.h"
#include "sftrun/core/strings.h"
#include "sftrun/data/classes.h"
#include "sftrun/data/parallel_for.h"
#include "sftrun/data/retrieval.h"

namespace sftrun::data {
namespace {

Outcome outcome_of(const Sequence& sequence, const LengthRule& rule, const TextModel& model,
                   const std::string& where) {
  Outcome outcome{.fate = fate_of(sequence, rule, where),
                  .length = static_cast<int64_t>(sequence.ids.size()),
                  .left_out = sequence.left_out,
                  .unknown_roles = sequence.unknown_roles,
                  .unread_columns = sequence.unread_columns,
                  .unread_turn_keys = sequence.unread_turn_keys,
                  .unread_media = sequence.unread_media,
                  .begins_with_answer = sequence.begins_with_answer,
                  .differs_in_class = sequence.differs_in_class,
                  .has_two_systems = sequence.has_two_systems,
                  .has_null_arguments = sequence.has_null_arguments,
                  .has_idle_marker = sequence.has_idle_marker,
                  .is_outside_template = sequence.is_outside_template,
                  .has_messages_as_text = sequence.has_messages_as_text};
  for (const SequenceMedia& one : sequence.media) {
    outcome.num_media_tokens += one.num_tokens;
    outcome.has_images = outcome.has_images || one.is_image();
  }
  if (outcome.fate == Fate::kKept || outcome.fate == Fate::kTruncated) {
    outcome.example = to_example(sequence, rule.max_seq_len, 0);
    require_no_image_labels(outcome.example, model, where);
    outcome.ending = ending_of(outcome.example, model);
    outcome.num_empty_answers = sequence.num_empty_answers;
    outcome.num_empty_thinking = sequence.num_empty_thinking;
    outcome.num_control_tokens = sequence.num_control_tokens;
  } else if (outcome.fate != Fate::kTooLong) {
    outcome.text = excerpt(sequence.text);
  }
  return outcome;
}

/// An example of which one sequence is left out is left out as a whole.
void leave_out_incomplete(std::span<Outcome> pair) {
  const auto is_left_out = [](const Outcome& one) { return one.example.tokens.empty(); };
  if (std::none_of(pair.begin(), pair.end(), is_left_out)) return;
  for (Outcome& one : pair) {
    if (is_left_out(one)) continue;
    one.fate = Fate::kOtherLeftOut;
    one.example.tokens.clear();
    one.example.labels.clear();
    one.example.media.clear();
    one.num_empty_answers = one.num_control_tokens = 0;
  }
}

}  // namespace

namespace {

/// Sequences that are kept or left out together.
size_t objective_sequences(const config::RunConfig& config) {
  return static_cast<size_t>(config.train.sequences());
}

}  // namespace

std::string json_as_text_warning(const config::DataSource& source) {
  return fmt::format(
      "data: the lines of {} look like JSON and are trained on as text (data.format: text); to "
      "read "
      "them as records, name the file .jsonl",
      shown_name(source.path));
}

SequenceOptions sequence_options(const config::RunConfig& run, bool with_parts) {
  const config::DataConfig& data = run.data;
  const config::ObjectiveInfo& objective = run.train.objective_info();
  // A run whose classes are not known yet is looked at before it is resolved.
  const FoundClasses classes = objective.reads_classes() ? find_classes(run) : FoundClasses{};
  return {.form = run.train.example_form(),
          .head = objective.head,
          .classes = classes.names,
          .problem_type = classes.problem,
          .negatives = objective.embeds() ? find_negatives(run) : 0,
          .query_prompt = data.query_prompt,
          .document_prompt = data.document_prompt,
          .loss_on = objective.reads_classes() ? config::LossOnChoice::kAll : data.loss_on,
          .thinking = data.thinking,
          .empty_thinking = data.empty_thinking,
          .chat_template_kwargs = data.chat_template_kwargs,
          .label_weights = LabelWeights(data.label_weights),
          .with_parts = with_parts,
          .keeps_records = run.train.keeps_asked_records(),
          .chat = run.train.rollouts.chat};
}

TokenizedSource::TokenizedSource(const config::RunConfig& config, const config::DataSource& source,
                                 SplitRole role, const TextModel& model, int num_threads)
    : records_(config, source, role),
      builder_(records_.format().format, model, sequence_options(config, /*with_parts=*/false)),
      rule_(length_rule(config, records_.format().format)),
      model_(model),
      skips_bad_records_(config.data.bad_records == config::BadRecords::kSkip),
      together_(objective_sequences(config)),
      num_threads_(num_threads) {}

void TokenizedSource::skip(int64_t num_records) {
  records_.skip(num_records);
  num_records_ += num_records;
}

void TokenizedSource::add_outcomes(Block& block, const SourceRecords::Block& read,
                                   size_t index) const {
  const std::string& where = block.places[index] = records_.where(read, index);
  bool is_built = false;
  try {
    MappedRecord mapped = records_.parse(read, index);
    const std::vector<Sequence> sequences =
        builder_.build(mapped.record, where, records_.folder(read));
    is_built = true;
    for (const Sequence& sequence : sequences) {
      Outcome outcome = outcome_of(sequence, rule_, model_, where);
      outcome.example.record = num_records_ + static_cast<int64_t>(index);
      outcome.example.file = read.file;
      outcome.example.line = read.records->number(index);
      block.records[index].push_back(std::move(outcome));
    }
    block.records[index].front().absent_fields = std::move(mapped.absent);
    std::span<Outcome> rest = block.records[index];
    for (; together_ > 1 && !rest.empty(); rest = rest.subspan(together_))
      leave_out_incomplete(rest.first(together_));
  } catch (const DataError& error) {
    const bool is_too_long = is_built;  // the record is valid, but data.too_long: error refuses it
    if (is_too_long && skips_bad_records_) throw;
    block.records[index].clear();
    block.bad[index] = bad_record_of(error, where, /*may_be_left_out=*/!is_too_long);
  }
}

std::optional<TokenizedSource::Block> TokenizedSource::next() {
  const auto read = records_.next();
  if (!read) return std::nullopt;
  Block block;
  block.records.resize(read->count);
  block.places.resize(read->count);
  block.bad.resize(read->count);
  parallel_for(static_cast<int64_t>(read->count), num_threads_,
               [&](int64_t i) { add_outcomes(block, *read, static_cast<size_t>(i)); });
  num_records_ += static_cast<int64_t>(read->count);
  return block;
}

}  // namespace sftrun::data
