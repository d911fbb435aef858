#include "sftrun/data/dataset.h"

#include <algorithm>

#include "endings.h"
#include "fit.h"
#include "record_file.h"
#include "sftrun/core/error.h"
#include "sftrun/core/hash.h"
#include "sftrun/core/log.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"
#include "sftrun/data/parallel_for.h"

namespace sftrun::data {
namespace {

/// One sequence of a record, decided.
struct Outcome {
  Fate fate = Fate::kKept;
  int64_t length = 0;  ///< before truncation
  Example example;     ///< when kept
  Ending ending = Ending::kStop;
  int64_t num_empty_thinking = 0, num_control_tokens = 0;
  LeftOut left_out;
};

SequenceOptions sequence_options(const config::DataConfig& data, bool with_parts) {
  return {.loss_on = data.loss_on,
          .thinking = data.thinking,
          .empty_thinking = data.empty_thinking,
          .chat_template_kwargs = data.chat_template_kwargs,
          .with_parts = with_parts};
}

std::vector<std::vector<Outcome>> process(const RecordFile& file, const SequenceBuilder& builder,
                                          const TextModel& model, const LengthRule& rule,
                                          int num_threads) {
  std::vector<std::vector<Outcome>> outcomes(file.size());
  parallel_for(static_cast<int64_t>(file.size()), num_threads, [&](int64_t index) {
    const auto record = static_cast<size_t>(index);
    for (const Sequence& sequence : builder.build(file.parse(record), file.where(record))) {
      Outcome outcome{.fate = fate_of(sequence, rule, file.where(record)),
                      .length = static_cast<int64_t>(sequence.ids.size())};
      if (outcome.fate == Fate::kKept || outcome.fate == Fate::kTruncated) {
        outcome.example = to_example(sequence, rule.max_seq_len, index);
        outcome.example.line = file.line_number(record);
        outcome.ending = ending_of(outcome.example, model);
        outcome.num_empty_thinking = sequence.num_empty_thinking;
        outcome.num_control_tokens = sequence.num_control_tokens;
        outcome.left_out = sequence.left_out;
      }
      outcomes[record].push_back(std::move(outcome));
    }
  });
  return outcomes;
}

void count(const Example& example, DatasetStats& stats) {
  const auto length = static_cast<int64_t>(example.tokens.size());
  ++stats.num_examples;
  stats.num_tokens += length;
  stats.num_label_tokens += example.label_tokens;
  stats.longest = std::max(stats.longest, length);
}

void count(Fate fate, DatasetStats& stats) {
  if (fate == Fate::kTruncated || fate == Fate::kLabelsCutOff) ++stats.num_truncated;
  if (fate == Fate::kTooLong) ++stats.num_dropped_too_long;
  if (fate == Fate::kLabelsCutOff) ++stats.num_labels_cut_off;
  if (fate == Fate::kWithoutLabels) ++stats.num_without_labels;
}

/// Of what is read. How it is read (data.*, model.max_seq_len) is compared setting by setting.
std::string fingerprint_of(const RecordFile& file, RecordFormat format, const TextModel& model) {
  return Fingerprint()
      .add(file.content())
      .add(model.tokenizer->to_json())
      .add(model.chat_template ? model.chat_template->source() : std::string())
      .add(static_cast<uint64_t>(format))
      .hex();
}

std::string shorten(const std::string& text) {
  constexpr size_t kLongest = 400;
  if (text.size() <= kLongest) return text;
  size_t end = kLongest;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) --end;
  return text.substr(0, end) + " …";
}

[[noreturn]] void refuse_without_labels(const RecordFile& file, const SequenceBuilder& builder,
                                        size_t record) {
  const Sequence sequence = builder.build(file.parse(record), file.where(record)).at(0);
  throw DataError(fmt::format("no token of any record carries a label, so there is nothing to "
                              "learn; this one reads\n{}",
                              shorten(sequence.text)),
                  file.where(record),
                  "look at it with sftrun preview; check that conversations hold assistant turns "
                  "(not all \"train\": "
                  "false), data.loss_on and model.max_seq_len");
}

[[noreturn]] void refuse_too_long(const RecordFile& file, const LengthRule& rule, size_t shortest,
                                  int64_t length) {
  throw DataError(
      fmt::format("every record is longer than model.max_seq_len = {}; the shortest has {} tokens",
                  rule.max_seq_len, length),
      file.where(shortest), "raise model.max_seq_len, or set data.too_long: truncate");
}

/// The error for a data set of which nothing is left.
[[noreturn]] void refuse_empty(const RecordFile& file, const SequenceBuilder& builder,
                               const LengthRule& rule,
                               const std::vector<std::vector<Outcome>>& outcomes) {
  size_t shortest = 0;
  int64_t length = INT64_MAX;
  for (size_t record = 0; record < outcomes.size(); ++record) {
    for (const Outcome& outcome : outcomes[record]) {
      if (outcome.fate != Fate::kTooLong) refuse_without_labels(file, builder, record);
      if (outcome.length < length) shortest = record, length = outcome.length;
    }
  }
  refuse_too_long(file, rule, shortest, length);
}

/// Where the first few records are of which an example is such.
template <typename Predicate>
std::string name_records(const RecordFile& file, const std::vector<std::vector<Outcome>>& outcomes,
                         Predicate is_such) {
  constexpr size_t kShown = 3;
  std::vector<std::string> places;
  for (size_t record = 0; record < outcomes.size(); ++record) {
    if (std::none_of(outcomes[record].begin(), outcomes[record].end(), is_such)) continue;
    if (places.size() == kShown) return join(places, ", ") + ", …";
    places.push_back(file.where(record));
  }
  return join(places, ", ");
}

void log_outcome(const RecordFile& file, const std::vector<std::vector<Outcome>>& outcomes,
                 const DatasetStats& stats, const LengthRule& rule) {
  log::info(
      "data: {} records, {} examples, {} tokens of which {} carry a label ({:.1f}%), longest {}",
      stats.num_records, stats.num_examples, format_count(static_cast<uint64_t>(stats.num_tokens)),
      format_count(static_cast<uint64_t>(stats.num_label_tokens)),
      100.0 * static_cast<double>(stats.num_label_tokens) / static_cast<double>(stats.num_tokens),
      stats.longest);
  const auto warn = [&](int64_t number, Fate fate, const std::string& what) {
    if (number == 0) return;
    log::warn(
        "data: {} {}: {}", number, what,
        name_records(file, outcomes, [&](const Outcome& outcome) { return outcome.fate == fate; }));
  };
  warn(stats.num_dropped_too_long, Fate::kTooLong,
       fmt::format("examples left out, longer than model.max_seq_len = {}", rule.max_seq_len));
  warn(stats.num_truncated - stats.num_labels_cut_off, Fate::kTruncated,
       fmt::format("examples truncated to {} tokens", rule.max_seq_len));
  warn(stats.num_labels_cut_off, Fate::kLabelsCutOff,
       fmt::format("examples left out, no label within their first {} tokens", rule.max_seq_len));
  warn(stats.num_without_labels, Fate::kWithoutLabels,
       "examples left out, no token carries a label");
}

/// Counts of how the kept examples end.
struct Endings {
  int64_t kept = 0, stop = 0, special = 0;
  const Example* first = nullptr;
};

Endings endings_of(const std::vector<std::vector<Outcome>>& outcomes) {
  Endings endings;
  for (const auto& record : outcomes) {
    for (const Outcome& outcome : record) {
      if (outcome.example.tokens.empty()) continue;
      if (endings.first == nullptr) endings.first = &outcome.example;
      ++endings.kept;
      endings.stop += outcome.ending == Ending::kStop ? 1 : 0;
      endings.special += outcome.ending == Ending::kSpecial ? 1 : 0;
    }
  }
  return endings;
}

/// A model that never learns its end-of-turn token answers without end.
void require_learnt_ends(const RecordFile& file, const std::vector<std::vector<Outcome>>& outcomes,
                         const TextModel& model, bool ends_are_meant) {
  const Endings endings = endings_of(outcomes);
  if (endings.kept == 0) return;
  const auto none = [](const Outcome& outcome) {
    return !outcome.example.tokens.empty() && outcome.ending == Ending::kNone;
  };
  const int64_t without = endings.kept - endings.stop - endings.special;
  const std::string stops = stop_tokens_of(model);
  if (without == endings.kept && ends_are_meant) {
    throw DataError(
        fmt::format("no example learns an end-of-turn token, so the trained model would not know "
                    "where to stop; the last answer of this one, as it would be learnt, is\n{}",
                    shorten(last_answer(*endings.first, *model.tokenizer))),
        file.where(static_cast<size_t>(endings.first->record)),
        fmt::format("let the chat template write a stop token of the model ({}) after each answer, "
                    "inside its generation marks if it has any (sftrun preview shows the labels); "
                    "where examples are cut off, raise model.max_seq_len",
                    stops));
  }
  if (without > 0) {
    log::warn("data: {} of {} examples do not learn an end-of-turn token: {}", without,
              endings.kept, name_records(file, outcomes, none));
  }
  if (endings.stop == 0 && endings.special > 0) {
    log::warn(
        "data: answers end in `{}`, which is no token that generation with this model stops at "
        "({}): add its id to eos_token_id in the model's generation_config.json",
        last_token(*endings.first, *model.tokenizer), stops);
  }
}

/// Logs "data: <number> <what>: <the first records>; <advice>" where number_of an outcome is not 0.
template <typename NumberOf>
void warn_where(const RecordFile& file, const std::vector<std::vector<Outcome>>& outcomes,
                NumberOf number_of, const std::string& what, const std::string& advice) {
  int64_t count = 0;
  for (const auto& record : outcomes) {
    for (const Outcome& outcome : record) count += number_of(outcome);
  }
  if (count == 0) return;
  const auto has = [&](const Outcome& outcome) { return number_of(outcome) > 0; };
  log::warn("data: {} {}: {}; {}", count, what, name_records(file, outcomes, has), advice);
}

void warn_of_empty_thinking(const RecordFile& file,
                            const std::vector<std::vector<Outcome>>& outcomes,
                            config::EmptyThinking choice) {
  const auto number = [](const Outcome& outcome) { return outcome.num_empty_thinking; };
  if (choice == config::EmptyThinking::kWarn) {
    warn_where(file, outcomes, number,
               "answers begin with empty reasoning, which teaches the model not to reason",
               "data.empty_thinking: drop leaves it unlearnt, keep says that it is meant");
  } else if (choice == config::EmptyThinking::kDrop) {
    int64_t count = 0;
    for (const auto& record : outcomes) {
      for (const Outcome& outcome : record) count += number(outcome);
    }
    if (count > 0) log::info("data: the empty reasoning of {} answers carries no label", count);
  }
}

void warn_of_what_templates_do(const RecordFile& file,
                               const std::vector<std::vector<Outcome>>& outcomes) {
  const std::string other_template =
      "they are not learnt; set model.chat_template to a template that writes them";
  warn_where(
      file, outcomes, [](const Outcome& outcome) { return outcome.left_out.tool_calls; },
      "answers call tools, and the chat template leaves the calls out", other_template);
  warn_where(
      file, outcomes, [](const Outcome& outcome) { return outcome.left_out.reasoning; },
      "answers come with reasoning, and the chat template leaves it out", other_template);
  warn_where(
      file, outcomes, [](const Outcome& outcome) { return outcome.left_out.tools; },
      "conversations name tools, and the chat template leaves them out",
      "the model is not told of them; set model.chat_template to a template that writes them");
  warn_where(
      file, outcomes, [](const Outcome& outcome) { return outcome.num_control_tokens; },
      "messages hold control tokens of the model in their text",
      "they are read as if the chat template had written them; take them out where that is not "
      "meant");
}

/// A tokenizer that begins texts with BOS belongs to a model that has always seen one.
void warn_of_missing_bos(const RecordFile& file, const std::vector<std::vector<Outcome>>& outcomes,
                         const text::Tokenizer& tokenizer) {
  const auto bos = tokenizer.bos_id();
  const std::vector<text::TokenId> plain = tokenizer.encode("a", /*add_special_tokens=*/true);
  if (!bos || plain.empty() || plain.front() != *bos) return;
  warn_where(
      file, outcomes,
      [&](const Outcome& outcome) {
        return outcome.example.tokens.empty() || outcome.example.tokens.front() == *bos ? 0 : 1;
      },
      fmt::format("conversations begin without {}, which the tokenizer puts before texts",
                  tokenizer.id_to_token(*bos)),
      "let the chat template begin with {{ bos_token }}");
}

}  // namespace

Dataset load_dataset(const config::RunConfig& config, const std::filesystem::path& path,
                     const TextModel& model, int num_threads) {
  const RecordFile file(path);
  const DetectedFormat detected = file.format(config.data.format);
  log::info("data: {} holds {} records: {}", path.string(), name_of(detected.format),
            detected.reason);
  const SequenceBuilder builder(detected.format, model,
                                sequence_options(config.data, /*with_parts=*/false));
  const LengthRule rule = length_rule(config, detected.format);

  auto outcomes = process(file, builder, model, rule, num_threads);
  const bool ends_are_meant =
      detected.format != RecordFormat::kText && config.data.loss_on != config::LossOnChoice::kAll;
  require_learnt_ends(file, outcomes, model, ends_are_meant);
  warn_of_empty_thinking(file, outcomes, config.data.empty_thinking);
  warn_of_what_templates_do(file, outcomes);
  if (detected.format != RecordFormat::kText && model.chat_template)
    warn_of_missing_bos(file, outcomes, *model.tokenizer);
  DatasetStats stats{.num_records = static_cast<int64_t>(file.size())};
  std::vector<Example> examples;
  for (auto& record : outcomes) {
    for (Outcome& outcome : record) {
      count(outcome.fate, stats);
      if (outcome.example.tokens.empty()) continue;
      count(outcome.example, stats);
      examples.push_back(std::move(outcome.example));
    }
  }
  if (examples.empty()) refuse_empty(file, builder, rule, outcomes);
  log_outcome(file, outcomes, stats, rule);
  return {std::move(examples), stats, fingerprint_of(file, detected.format, model),
          detected.format};
}

Preview preview_dataset(const config::RunConfig& config, const std::filesystem::path& path,
                        const TextModel& model, int64_t num_records) {
  const RecordFile file(path);
  const DetectedFormat detected = file.format(config.data.format);
  const SequenceBuilder builder(detected.format, model,
                                sequence_options(config.data, /*with_parts=*/true));
  const LengthRule rule = length_rule(config, detected.format);
  Preview preview{.format = detected.format, .format_reason = detected.reason};
  const size_t count =
      std::min(file.size(), static_cast<size_t>(std::max<int64_t>(num_records, 0)));
  for (size_t record = 0; record < count; ++record) {
    for (Sequence& sequence : builder.build(file.parse(record), file.where(record))) {
      const auto length = static_cast<int64_t>(sequence.ids.size());
      PreviewedSequence shown{.line = file.line_number(record),
                              .num_kept = std::min(length, rule.max_seq_len)};
      switch (fate_of(sequence, rule, file.where(record))) {
        case Fate::kKept:
        case Fate::kTruncated:
          break;
        case Fate::kTooLong:
          shown.left_out =
              fmt::format("{} tokens, more than model.max_seq_len = {}", length, rule.max_seq_len);
          break;
        case Fate::kLabelsCutOff:
          shown.left_out = fmt::format("no label within its first {} tokens", rule.max_seq_len);
          break;
        case Fate::kWithoutLabels:
          shown.left_out = "no token carries a label";
          break;
      }
      shown.sequence = std::move(sequence);
      preview.sequences.push_back(std::move(shown));
    }
  }
  return preview;
}

}  // namespace sftrun::data
