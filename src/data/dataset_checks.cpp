#include "dataset_checks.h"

#include <algorithm>
#include <string>

#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"

namespace sftrun::data {
namespace {

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

/// Where the first few records are of which an example is such.
template <typename Predicate>
std::string name_records(const RecordFile& file, const Outcomes& outcomes, Predicate is_such) {
  constexpr size_t kShown = 3;
  std::vector<std::string> places;
  for (size_t record = 0; record < outcomes.size(); ++record) {
    if (std::none_of(outcomes[record].begin(), outcomes[record].end(), is_such)) continue;
    if (places.size() == kShown) return join(places, ", ") + ", …";
    places.push_back(file.where(record));
  }
  return join(places, ", ");
}

/// Counts of how the kept examples end.
struct Endings {
  int64_t kept = 0, stop = 0, special = 0;
  const Example* first = nullptr;
};

Endings endings_of(const Outcomes& outcomes) {
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
void require_learnt_ends(const RecordFile& file, const Outcomes& outcomes, const TextModel& model,
                         bool ends_are_meant) {
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

/// The sum of number_of over all outcomes.
template <typename NumberOf>
int64_t total_of(const Outcomes& outcomes, NumberOf number_of) {
  int64_t total = 0;
  for (const auto& record : outcomes) {
    for (const Outcome& outcome : record) total += number_of(outcome);
  }
  return total;
}

/// Logs "data: <number> <what>: <the first records>; <advice>" where number_of an outcome is not 0.
template <typename NumberOf>
void warn_where(const RecordFile& file, const Outcomes& outcomes, NumberOf number_of,
                const std::string& what, const std::string& advice) {
  const int64_t count = total_of(outcomes, number_of);
  if (count == 0) return;
  const auto has = [&](const Outcome& outcome) { return number_of(outcome) > 0; };
  log::warn("data: {} {}: {}; {}", count, what, name_records(file, outcomes, has), advice);
}

void warn_of_empty_thinking(const RecordFile& file, const Outcomes& outcomes,
                            config::EmptyThinking choice) {
  const auto number = [](const Outcome& outcome) { return outcome.num_empty_thinking; };
  if (choice == config::EmptyThinking::kWarn) {
    warn_where(file, outcomes, number,
               "answers begin with empty reasoning, which teaches the model not to reason",
               "data.empty_thinking: drop leaves it unlearnt, keep says that it is meant");
  } else if (choice == config::EmptyThinking::kDrop) {
    const int64_t count = total_of(outcomes, number);
    if (count > 0) log::info("data: the empty reasoning of {} answers carries no label", count);
  }
}

void warn_of_what_templates_do(const RecordFile& file, const Outcomes& outcomes) {
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
void warn_of_missing_bos(const RecordFile& file, const Outcomes& outcomes,
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

void check_examples(const RecordFile& file, const Outcomes& outcomes, RecordFormat format,
                    const TextModel& model, const config::DataConfig& data) {
  const bool is_text = format == RecordFormat::kText;
  require_learnt_ends(file, outcomes, model,
                      /*ends_are_meant=*/!is_text && data.loss_on != config::LossOnChoice::kAll);
  warn_of_empty_thinking(file, outcomes, data.empty_thinking);
  warn_of_what_templates_do(file, outcomes);
  if (!is_text && model.chat_template) warn_of_missing_bos(file, outcomes, *model.tokenizer);
}

void log_outcome(const RecordFile& file, const Outcomes& outcomes, const DatasetStats& stats,
                 const LengthRule& rule) {
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

[[noreturn]] void refuse_empty(const RecordFile& file, const SequenceBuilder& builder,
                               const LengthRule& rule, const Outcomes& outcomes) {
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

}  // namespace sftrun::data
