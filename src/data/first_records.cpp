#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <span>

#include "bad_records.h"
#include "dataset_checks.h"
#include "formats/pair_layouts.h"
#include "judgement.h"
#include "judgement_balance.h"
#include "record_media.h"
#include "roles.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/strings.h"
#include "sftrun/data/dataset.h"
#include "tokenized_source.h"
#include "unread_columns.h"

/// Reads the first records of a data set before a run: without a model, as training uses them, and
/// for preview.
namespace sftrun::data {
namespace {

/// For messages about the first records of a data set.
std::string scope_of(int64_t num_records, bool is_whole) {
  return is_whole ? "" : fmt::format("of {}: ", the_first(num_records, "record"));
}

/// "3 of the first 100 records have"
std::string share_of(int64_t count, int64_t num_records) {
  const std::string first = the_first(num_records, "record");
  if (num_records == 1) return first + " has";
  return fmt::format("{} of {} {}", count, first, count == 1 ? "has" : "have");
}

/// Parts of records that a run would not read or not train on.
struct Doubts {
  std::map<std::string, int64_t> roles, columns, loss_flags, absent_fields;
  int64_t num_with_two_systems = 0;
  BadRecords bad;
  config::ExampleForm form = config::ExampleForm::kAnswer;

  std::vector<NamedShape> shapes_in(const Json& record, RecordFormat format,
                                    const std::string& where) const {
    const TemplateTraits traits{.reads_images = true};
    if (form != config::ExampleForm::kJudged) return shapes_of(record, format, traits, where);
    std::vector<NamedShape> answers;
    for (JudgedShape& judged : judged_shapes(record, format, traits, where))
      answers.push_back(std::move(judged.answer));
    return answers;
  }

  void add(const MappedRecord& mapped, RecordFormat format, const std::string& where) {
    if (form == config::ExampleForm::kPrompt) {  // rewards may read any column
      detect_prompt_format(mapped.record, where);
      for (const std::string& field : mapped.absent) ++absent_fields[field];
      return;
    }
    Json room;
    const Json& record = config::format_info(format).is_pair
                             ? with_pair_columns(mapped.record, {.reads_images = true}, where, room)
                             : mapped.record;
    const std::vector<NamedShape> shapes = shapes_in(record, format, where);
    for (const std::string& column : unread_columns(record, format, shapes.front().shape, form))
      if (!is_visual_column(column) && column != "features") ++columns[column];
    for (const std::string& key : unread_turn_keys(record, format, "", form)) ++loss_flags[key];
    for (const std::string& field : mapped.absent) ++absent_fields[field];
    num_with_two_systems += has_two_systems(record, format) ? 1 : 0;
    std::set<std::string> unknown;
    for (const NamedShape& one : shapes) {
      const auto* conversation = std::get_if<Conversation>(&one.shape);
      if (conversation == nullptr) continue;
      for (std::string& role : unknown_roles(conversation->messages, ""))
        unknown.insert(std::move(role));
    }
    for (const std::string& role : unknown) ++roles[role];
  }

  std::vector<std::string> warnings(const SourceLook& look) const {
    std::vector<std::string> warnings;
    if (bad.count() > 0) {
      warnings.push_back(fmt::format("{}: of {} {}", look.name,
                                     the_first(look.num_records, "record"),
                                     bad.left_out(look.num_records)));
    }
    for (const auto& [field, count] : absent_fields) {
      if (count == look.num_records - bad.count())
        warnings.push_back(fmt::format("{}: {}", look.name, absent_field_warning(field)));
    }
    for (const auto& [column, count] : columns) {
      warnings.push_back(fmt::format("{}: {} \"{}\", which is not read; {}", look.name,
                                     share_of(count, look.num_records), column,
                                     advice_on_column(column)));
    }
    for (const auto& [key, count] : loss_flags) {
      warnings.push_back(fmt::format("{}: {} turns with \"{}\", which is not read; {}", look.name,
                                     share_of(count, look.num_records), excerpt(key),
                                     advice_on_loss_flag(form)));
    }
    if (num_with_two_systems > 0) {
      warnings.push_back(fmt::format("{}: {} a \"system\" and a turn of that role; {}", look.name,
                                     share_of(num_with_two_systems, look.num_records),
                                     kTwoSystemsAdvice));
    }
    for (const auto& [role, count] : roles) {
      const std::string likely = likely_role(role);
      warnings.push_back(
          fmt::format("{}: {} the role `{}`{}; only turns of `assistant` are trained on", look.name,
                      share_of(count, look.num_records), role,
                      likely.empty() ? "" : fmt::format(" (`{}`?)", likely)));
    }
    return warnings;
  }
};

/// How training would use a sequence.
PreviewedSequence previewed(Sequence sequence, const LengthRule& rule, const std::string& place,
                            const std::string& where) {
  const auto length = static_cast<int64_t>(sequence.ids.size());
  PreviewedSequence shown{.place = place, .num_kept = std::min(length, rule.max_seq_len)};
  switch (fate_of(sequence, rule, where)) {
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
      shown.left_out = "no token has a label";
      break;
    case Fate::kOtherLeftOut:
      break;  // of a pair: see leave_out_together
  }
  shown.sequence = std::move(sequence);
  return shown;
}

/// Gives a sequence the names of its classes.
void name_classes(PreviewedSequence& shown, const SequenceOptions& options) {
  if (options.head != config::HeadKind::kClasses) return;
  for (const float number : shown.sequence.targets)
    shown.classes.push_back(options.classes.at(static_cast<size_t>(number)));
}

/// A pair of which one sequence is left out is left out as a whole.
void leave_out_together(std::span<PreviewedSequence> pair) {
  const bool is_whole = std::all_of(
      pair.begin(), pair.end(), [](const PreviewedSequence& one) { return one.left_out.empty(); });
  if (is_whole) return;
  for (PreviewedSequence& one : pair)
    if (one.left_out.empty()) one.left_out = "the other answer of its pair is left out";
}

/// The sequences of one record, as training takes them.
std::vector<PreviewedSequence> previewed_record(std::vector<Sequence> sequences,
                                                RecordFormat format, config::ExampleForm form,
                                                const LengthRule& rule, const std::string& place,
                                                const std::string& where) {
  const bool is_pair = config::format_info(format).is_pair;
  std::vector<PreviewedSequence> shown;
  for (Sequence& sequence : sequences) {
    const char* name = !is_pair ? "" : shown.empty() ? ", chosen" : ", rejected";
    shown.push_back(previewed(std::move(sequence), rule, place + name, where));
  }
  if (form == config::ExampleForm::kPair) leave_out_together(shown);
  return shown;
}

}  // namespace

SourceLook look_at_source(const config::RunConfig& config, const config::DataSource& source,
                          bool is_validation, int64_t num_records) {
  SourceRecords records(config, source, is_validation ? SplitRole::kValidation : SplitRole::kTrain);
  SourceLook look{.name = source.path,
                  .subset = subset_of(source),
                  .num_files = records.files().size(),
                  .format = records.format().format,
                  .format_reason = records.format().reason};
  records.require_one_format();
  Doubts doubts{.form = config.train.example_form()};
  while (look.num_records < num_records) {
    const auto block = records.next();
    if (!block) break;
    for (size_t i = 0; i < block->count && look.num_records < num_records; ++i) {
      try {
        doubts.add(records.parse(*block, i), look.format, records.where(*block, i));
      } catch (const DataError& error) {
        doubts.bad.add(bad_record_of(error, records.where(*block, i)), look.num_records);
      }
      ++look.num_records;
    }
  }
  const bool is_whole = look.num_records < num_records || source.max_samples == look.num_records;
  doubts.bad.require_usable(config.data.bad_records, look.num_records,
                            scope_of(look.num_records, is_whole));
  look.warnings = doubts.warnings(look);
  return look;
}

namespace {

bool begins_with_images(const config::RunConfig& config, const config::DataSource& source,
                        bool is_validation, int64_t num_records) {
  SourceRecords records(config, source, is_validation ? SplitRole::kValidation : SplitRole::kTrain);
  while (const auto block = records.next()) {
    for (size_t i = 0; i < block->count; ++i) {
      if (num_records-- <= 0) return false;
      try {
        const Json record = records.parse(*block, i).record;
        if (has_image_columns(record) || has_image_parts(record, records.format().format))
          return true;
      } catch (const DataError&) {  // a bad record
      }
    }
  }
  return false;
}

}  // namespace

bool begins_with_images(const config::RunConfig& config,
                        const std::vector<config::DataSource>& sources, bool is_validation,
                        int64_t num_records) {
  return std::any_of(sources.begin(), sources.end(), [&](const config::DataSource& source) {
    return begins_with_images(config, source, is_validation, num_records);
  });
}

bool leaves_template_unused(const config::RunConfig& config, const TextModel& model) {
  if (model.chat_template == nullptr) return false;
  const auto uses_it = [&](const config::DataSource& source) {
    SourceRecords records(config, source, SplitRole::kTrain);
    const auto block = records.next();
    if (config::is_format(records.format().format, &config::RecordFormatInfo::is_sampled))
      return true;  // its ids may be of a rendered prompt
    for (size_t i = 0; block && i < block->count; ++i) {
      try {
        if (config.train.has_rollouts())
          return config.train.rollouts.chat.value_or(true) &&
                 !config::format_info(records.format().format).is_text;
        return is_rendered(records.parse(*block, i).record, records.format().format,
                           /*has_chat_template=*/true);
      } catch (const DataError&) {  // a bad record, which data.bad_records leaves out
      }
    }
    return true;
  };
  return std::none_of(config.data.train.begin(), config.data.train.end(), uses_it);
}

namespace {

std::vector<std::pair<int64_t, int64_t>> image_sizes_of(const Example& example) {
  std::vector<std::pair<int64_t, int64_t>> sizes;
  for (const SequenceMedia& one : example.media)
    if (one.is_image()) sizes.emplace_back(one.width, one.height);
  return sizes;
}

}  // namespace

DatasetTrial try_dataset(const config::RunConfig& config, const config::DataSource& source,
                         bool is_validation, const TextModel& model, int64_t num_records) {
  config::DataSource first = source;
  first.max_samples = std::min(source.max_samples.value_or(num_records), num_records);
  const SplitRole role = is_validation ? SplitRole::kValidation : SplitRole::kTrain;
  TokenizedSource records(config, first, role, model, /*num_threads=*/1);
  records.require_one_format();
  DatasetChecks checks(model, config, records.format().format, records.rule());
  std::vector<int64_t> lengths, numbers;
  std::vector<std::vector<std::pair<int64_t, int64_t>>> images;
  int64_t number = 0;
  // With bad records left out, the rest of the file decides.
  const bool gives_up = config.data.bad_records == config::BadRecords::kError;
  while (const auto block = records.next()) {
    checks.add(*block, gives_up);
    for (size_t i = 0; i < block->records.size(); ++i) {
      for (const Outcome& outcome : block->records[i]) {
        if (outcome.example.tokens.empty()) continue;
        lengths.push_back(std::ssize(outcome.example.tokens));
        numbers.push_back(number);
        images.push_back(image_sizes_of(outcome.example));
      }
      if (!numbers.empty() && numbers.back() == number) ++number;
    }
  }
  DatasetTrial trial{.name = shown_name(source.path) + subset_of(source),
                     .num_files = records.files().size(),
                     .format = records.format().format,
                     .stats = checks.stats(),
                     .lengths = std::move(lengths),
                     .records = std::move(numbers),
                     .images = std::move(images)};
  const int64_t seen = trial.stats.num_records;
  trial.is_whole = seen < num_records || source.max_samples == seen;
  trial.num_records_estimated =
      trial.is_whole ? seen : std::llround(SourceRecords(config, source, role).estimated_records());
  checks.require_usable_records(scope_of(seen, trial.is_whole));
  if (checks.bad_records().count() == seen) {  // they are left out, and others may follow
    constexpr int64_t kMax = 1000;
    if (num_records < kMax) return try_dataset(config, source, is_validation, model, kMax);
    trial.warnings.push_back("data: " + checks.bad_records().left_out(seen));
    return trial;
  }
  if (records.reads_json_as_text()) trial.warnings.push_back(json_as_text_warning(source));
  try {
    for (const Remark& remark : checks.conclude())
      if (remark.is_warning) trial.warnings.push_back(remark.text);
    const bool is_all = trial.is_whole && !is_validation && config.data.train.size() == 1;
    if (const auto warning = one_sided_warning(trial.stats); is_all && warning)
      trial.warnings.push_back(*warning);
  } catch (const DataError& error) {
    if (trial.is_whole) throw;
    throw DataError(scope_of(seen, trial.is_whole) + error.message(), error.where(), error.fix());
  }
  return trial;
}

namespace {
constexpr int64_t kTried = 1000;  // records whose warnings a preview has
}

std::vector<std::string> warnings_of_dataset(const config::RunConfig& config,
                                             const config::DataSource& source, bool is_validation,
                                             const TextModel& model) {
  return try_dataset(config, source, is_validation, model, kTried).warnings;
}

Preview preview_dataset(const config::RunConfig& config, const config::DataSource& source,
                        bool is_validation, const TextModel& model, int64_t num_records) {
  SourceRecords records(config, source, is_validation ? SplitRole::kValidation : SplitRole::kTrain);
  const DetectedFormat& detected = records.format();
  const SequenceOptions options = sequence_options(config, /*with_parts=*/true);
  const SequenceBuilder builder(detected.format, model, options);
  const LengthRule rule = length_rule(config, detected.format);
  std::map<uint64_t, int64_t> groups;
  Preview preview{.name = source.path + subset_of(source),
                  .format = detected.format,
                  .format_reason = detected.reason,
                  .head = options.head};
  records.require_one_format();
  BadRecords bad;
  int64_t seen = 0;
  while (seen < num_records) {
    const auto block = records.next();
    if (!block) break;
    for (size_t i = 0; i < block->count && seen < num_records; ++i, ++seen) {
      const std::string where = records.where(*block, i);
      const bool is_table = records.files()[static_cast<size_t>(block->file)].is_table;
      const std::string place =
          fmt::format("{} {}", is_table ? "row" : "line", block->records->number(i));
      bool is_built = false;
      try {
        std::vector<Sequence> built =
            builder.build(records.parse(*block, i).record, where, records.folder(*block));
        is_built = true;  // the length of its sequences may be refused
        for (PreviewedSequence& shown :
             previewed_record(std::move(built), detected.format, config.train.example_form(), rule,
                              place, where)) {
          name_classes(shown, options);
          shown.head = options.head;
          if (shown.sequence.score_kind != ScoreKind::kNone)
            shown.group =
                groups.emplace(shown.sequence.group, std::ssize(groups) + 1).first->second;
          preview.sequences.push_back(std::move(shown));
        }
      } catch (const DataError& error) {
        bad.add(bad_record_of(error, where, /*may_be_left_out=*/!is_built), seen);
        preview.sequences.push_back({.place = place, .left_out = error.message()});
      }
    }
  }
  const bool is_whole = seen < num_records || source.max_samples == seen;
  if (is_whole || config.data.bad_records == config::BadRecords::kError)
    bad.require_usable(config.data.bad_records, seen);
  try {
    preview.warnings =
        try_dataset(config, source, is_validation, model, std::max(kTried, num_records)).warnings;
  } catch (const DataError& error) {
    preview.refusal = error;
  }
  return preview;
}

}  // namespace sftrun::data
