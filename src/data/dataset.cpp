#include "sftrun/data/dataset.h"

#include <algorithm>

#include "dataset_checks.h"
#include "sftrun/core/error.h"
#include "sftrun/core/hash.h"
#include "sftrun/core/log.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"
#include "sftrun/data/parallel_for.h"

namespace sftrun::data {
namespace {

SequenceOptions sequence_options(const config::DataConfig& data, bool with_parts) {
  return {.loss_on = data.loss_on,
          .thinking = data.thinking,
          .empty_thinking = data.empty_thinking,
          .chat_template_kwargs = data.chat_template_kwargs,
          .with_parts = with_parts};
}

Outcomes process(const RecordFile& file, const SequenceBuilder& builder, const TextModel& model,
                 const LengthRule& rule, int num_threads) {
  Outcomes outcomes(file.size());
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
  check_examples(file, outcomes, detected.format, model, config.data);
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
