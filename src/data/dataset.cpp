#include "sftrun/data/dataset.h"

#include <algorithm>
#include <memory>

#include "dataset_checks.h"
#include "judgement_balance.h"
#include "media_stamps.h"
#include "sftrun/core/build_id.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file_hash.h"
#include "sftrun/core/hash.h"
#include "sftrun/core/log.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"
#include "sftrun/data/data_extensions.h"
#include "sftrun/data/data_problems.h"
#include "sftrun/data/features.h"
#include "sftrun/data/image_input.h"
#include "token_cache.h"
#include "tokenized_source.h"
#include "tokenizing_progress.h"

namespace sftrun::data {
namespace fs = std::filesystem;
namespace {

/// One tokenized data set.
struct LoadedSource {
  ExampleStore examples;
  DatasetPart part;
  DatasetStats stats;
  std::string fingerprint;
};

/// The time for templates that print the date. If they print no time of day, it is rounded to the
/// day.
int64_t rendering_moment(const TextModel& model) {
  if (!model.chat_template) return 0;
  const std::string& source = model.chat_template->source();
  if (source.find("strftime_now") == std::string::npos) return 0;
  constexpr int64_t kDay = 86400;
  for (const char* time_of_day :
       {"%H", "%I", "%M", "%S", "%X", "%T", "%R", "%c", "%s", "%p", "%r"}) {
    if (source.find(time_of_day) != std::string::npos) return model.render_defaults.now_unix_s;
  }
  return model.render_defaults.now_unix_s / kDay;
}

/// Of what is read. How it is read (data.*, model.max_seq_len) is compared setting by setting, and
/// tokenizer and template are parts of a run's identity of their own.
std::string fingerprint_of(const std::vector<std::string>& contents, RecordFormat format,
                           const config::DataSource& source) {
  Fingerprint fingerprint;
  for (const std::string& hash : contents) fingerprint.add(hash);
  return fingerprint.add(static_cast<uint64_t>(format))
      .add(source.fields.dump())
      .add(static_cast<uint64_t>(source.max_samples.value_or(-1)))
      .hex();
}

/// The same for every spelling of a path and for links, except that the ending says how to read.
std::string identity_of(const fs::path& path) {
  std::error_code code;
  const fs::path canonical = fs::canonical(path, code);
  return (code ? path : canonical).string() + '\n' + inner_extension(path);
}

/// A remark names places by the paths of the run that tokenized the data.
std::string with_path(std::string text, const std::string& old, const std::string& now) {
  if (old == now) return text;
  for (const char* next : {":", ", row "}) {  // SourceFile::where
    const std::string from = " " + old + next, to = " " + now + next;
    for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
      text.replace(at, from.size(), to);
  }
  return text;
}

/// Of everything that the examples depend on, and of the program that makes them.
std::string cache_key(const std::string& fingerprint, const TokenizedSource& source,
                      const config::RunConfig& config, const TextModel& model) {
  const LengthRule& rule = source.rule();
  const config::DataConfig& data = config.data;
  Fingerprint key;
  key.add(fingerprint).add(build_id());
  key.add(model.tokenizer->to_json())
      .add(model.chat_template ? model.chat_template->source() : std::string());
  for (const std::string& special :
       {model.render_defaults.bos_token, model.render_defaults.eos_token,
        model.render_defaults.unk_token, model.render_defaults.pad_token})
    key.add(special);
  if (const auto* difference = model.tokenizer->class_difference())  // a remark has it
    key.add(difference->class_name);
  if (has_tokens_beyond_embeddings(model))  // what one model has rows for another may not
    key.add(static_cast<uint64_t>(*model.num_embeddings));
  if (model.images != nullptr) key.add(model.images->fingerprint);
  if (model.features != nullptr)
    for (const FeatureProjector& projector : model.features->projectors)
      key.add(projector.name)
          .add(static_cast<uint64_t>(projector.input_width))
          .add(static_cast<uint64_t>(projector.tokens));
  for (const SourceFile& file : source.files()) key.add(identity_of(file.path));
  key.add(source.image_root().string());
  for (const auto value :
       {static_cast<int64_t>(config.train.example_form()), static_cast<int64_t>(data.loss_on),
        static_cast<int64_t>(data.thinking), static_cast<int64_t>(data.empty_thinking),
        static_cast<int64_t>(data.bad_records), static_cast<int64_t>(rule.too_long),
        rule.max_seq_len, rendering_moment(model)}) {
    key.add(static_cast<uint64_t>(value));
  }
  if (config.train.has_rollouts())
    key.add(config.train.rollouts.chat ? *config.train.rollouts.chat ? "chat" : "text" : "auto");
  if (config.train.keeps_asked_records()) key.add("records");
  key.add(static_cast<uint64_t>(config.train.objective_info().head));
  for (const std::string& name : config.data.classes) key.add(name);
  key.add(static_cast<uint64_t>(config.train.problem_type));
  key.add(static_cast<uint64_t>(config.train.sequences()));
  key.add(data.query_prompt).add(data.document_prompt);
  for (const tokenizer::TokenId id : model.stop_ids) key.add(static_cast<uint64_t>(id));
  for (const nlohmann::ordered_json* setting :
       {&data.chat_template_kwargs, &data.fields, &data.label_weights})
    key.add(setting->dump());
  return key.hex();
}

Json to_json(const DatasetStats& stats) {
  return {stats.num_records,    stats.num_examples,       stats.num_dropped_too_long,
          stats.num_truncated,  stats.num_labels_cut_off, stats.num_without_labels,
          stats.num_tokens,     stats.num_label_tokens,   stats.longest,
          stats.num_bad,        stats.num_media_left_out, stats.num_desirable,
          stats.num_undesirable};
}

DatasetStats stats_from_json(const Json& json) {
  const auto at = [&](size_t index) { return json.at(index).get<int64_t>(); };
  return {.num_records = at(0),
          .num_bad = at(9),
          .num_examples = at(1),
          .num_dropped_too_long = at(2),
          .num_truncated = at(3),
          .num_labels_cut_off = at(4),
          .num_without_labels = at(5),
          .num_tokens = at(6),
          .num_label_tokens = at(7),
          .longest = at(8),
          .num_media_left_out = at(10),
          .num_desirable = at(11),
          .num_undesirable = at(12)};
}

void write_examples(const fs::path& target, const std::string& key, TokenizedSource& source,
                    const std::string& name, const config::RunConfig& config,
                    const TextModel& model) {
  ExampleWriter writer(target);
  MediaStamps media;
  source.note_media_in(media);
  DatasetChecks checks(model, config, source.format().format, source.rule());
  TokenizingProgress progress(name);
  const bool skips = config.data.bad_records == config::BadRecords::kSkip;
  while (const auto block = source.next()) {
    checks.add(*block);
    for (const std::vector<Outcome>& record : block->records) {
      for (const Outcome& outcome : record) {
        if (!outcome.example.tokens.empty()) writer.add(outcome.example);
      }
    }
    progress.update(source.fraction_read(), checks.stats().num_records);
    if (!skips && checks.bad_records().took_long())
      checks.require_usable_records(
          fmt::format("of {}: ", the_first(checks.stats().num_records, "record")));
  }
  checks.require_usable_records();
  Json remarks = Json::array();
  for (const Remark& remark : checks.conclude())
    remarks.push_back({remark.is_warning, remark.text});
  Json files = Json::array();
  for (const SourceFile& file : source.files()) files.push_back({file.path, file.is_table});
  writer.finish({{"key", key},
                 {"stats", to_json(checks.stats())},
                 {"bad_records", checks.bad_records().fingerprint()},
                 {"media", media.fingerprint()},
                 {"remarks", remarks},
                 {"files", files}},
                media.packed());
}

LoadedSource load_source(const config::RunConfig& config, const config::DataSource& source,
                         TokenizedSource& records, const TextModel& model, int num_threads) {
  const RecordFormat format = records.format().format;
  const size_t num_files = records.files().size();
  const std::string subset = subset_of(source);
  log::info("data: {}{}{}: format of records: {} ({})",
            shown_name(num_files == 1 ? records.files()[0].path : source.path), subset,
            num_files == 1 ? "" : fmt::format(" ({} files)", num_files), name_of(format),
            records.format().reason);
  const TokenCache cache(config.data.cache_dir, num_threads);
  const FileHashes hashes(cache.hashes());
  std::vector<std::string> contents;
  for (const SourceFile& file : records.files()) contents.push_back(hashes.of(file.path));
  LoadedSource loaded;
  loaded.fingerprint = fingerprint_of(contents, format, source);
  const std::string key = cache_key(loaded.fingerprint, records, config, model);
  loaded.examples = cache.get(key, source.path, [&](const fs::path& target) {
    write_examples(target, key, records, source.path, config, model);
  });
  const Json& header = loaded.examples.header();
  loaded.stats = stats_from_json(header.at("stats"));
  const Json& files = header.at("files");
  for (size_t i = 0; i < num_files; ++i)
    loaded.part.files.push_back({records.files()[i].path, files.at(i).at(1).get<bool>()});
  std::vector<Remark> remarks;
  for (const Json& remark : header.at("remarks")) {
    auto text = remark.at(1).get<std::string>();
    for (size_t i = 0; i < num_files; ++i)
      text = with_path(std::move(text), files.at(i).at(0), records.files()[i].path);
    remarks.push_back({remark.at(0).get<bool>(), std::move(text)});
  }
  if (records.reads_json_as_text()) log::warn("{}", json_as_text_warning(source));
  say(remarks);
  if (loaded.stats.num_bad > 0) {  // this program reports which ones
    loaded.fingerprint = Fingerprint()
                             .add(loaded.fingerprint)
                             .add(header.at("bad_records").get<std::string>())
                             .hex();
  }
  loaded.part.name = source.path + subset;
  loaded.part.format = format;
  loaded.part.weight = source.weight;
  loaded.part.fingerprint = loaded.fingerprint;
  loaded.part.media_fingerprint = header.at("media").get<std::string>();
  if (!loaded.part.media_fingerprint.empty())
    loaded.fingerprint =
        Fingerprint().add(loaded.fingerprint).add(loaded.part.media_fingerprint).hex();
  return loaded;
}

/// What each data set is of an epoch. Validation reads each once, whatever its weight.
void log_mix(const std::vector<DatasetPart>& parts, const std::vector<DatasetStats>& stats,
             SplitRole role) {
  if (parts.size() < 2) return;
  const bool is_training = role == SplitRole::kTrain;
  const auto tokens_of = [&](size_t i) {
    return (is_training ? parts[i].weight : 1) * static_cast<double>(stats[i].num_tokens);
  };
  double total = 0;
  for (size_t i = 0; i < parts.size(); ++i) total += tokens_of(i);
  std::vector<std::string> shares;
  for (size_t i = 0; i < parts.size(); ++i) {
    shares.push_back(fmt::format("{} {:.1f}%", parts[i].name, 100 * tokens_of(i) / total));
    if (is_training) shares.back() += fmt::format(" (weight {:g})", parts[i].weight);
  }
  log::info("data: tokens of {}: {}", is_training ? "an epoch" : "an evaluation",
            join(shares, ", "));
}

/// All data sets. Errors that are visible at once are reported before anything is tokenized.
std::vector<std::unique_ptr<TokenizedSource>> open_all(
    const config::RunConfig& config, const std::vector<config::DataSource>& sources, SplitRole role,
    const TextModel& model, int num_threads) {
  std::vector<std::unique_ptr<TokenizedSource>> opened;
  ProblemCollector problems;
  for (const config::DataSource& source : sources) {
    problems.run([&] {
      opened.push_back(std::make_unique<TokenizedSource>(config, source, role, model, num_threads));
      opened.back()->require_one_format();
    });
  }
  problems.throw_if_any();
  return opened;
}

}  // namespace

DatasetStats& DatasetStats::operator+=(const DatasetStats& other) {
  num_records += other.num_records;
  num_bad += other.num_bad;
  num_examples += other.num_examples;
  num_dropped_too_long += other.num_dropped_too_long;
  num_truncated += other.num_truncated;
  num_labels_cut_off += other.num_labels_cut_off;
  num_without_labels += other.num_without_labels;
  num_tokens += other.num_tokens;
  num_label_tokens += other.num_label_tokens;
  longest = std::max(longest, other.longest);
  num_media_left_out += other.num_media_left_out;
  num_desirable += other.num_desirable;
  num_undesirable += other.num_undesirable;
  return *this;
}

const SourceFile& Dataset::file_of(int64_t example) const {
  const auto part = std::find_if(parts_.begin(), parts_.end(),
                                 [&](const DatasetPart& p) { return example < p.end; });
  SFTRUN_CHECK(part != parts_.end());
  return part->files.at(static_cast<size_t>(examples_.stored(example).file));
}

std::string Dataset::place_of(int64_t example) const {
  return file_of(example).where(examples_.stored(example).number);
}

int64_t documents_together(const config::RunConfig& config) {
  return config.train.sequences();
}

Dataset load_dataset(const config::RunConfig& config,
                     const std::vector<config::DataSource>& sources, bool is_validation,
                     const TextModel& model, int num_threads) {
  const SplitRole role = is_validation ? SplitRole::kValidation : SplitRole::kTrain;
  std::vector<std::unique_ptr<TokenizedSource>> opened =
      open_all(config, sources, role, model, num_threads);
  ProblemCollector tokenizing;
  std::vector<ExampleStore> stores;
  std::vector<DatasetPart> parts;
  std::vector<DatasetStats> stats;
  DatasetStats total;
  Fingerprint fingerprint;
  int64_t num_examples = 0;
  for (size_t i = 0; i < sources.size(); ++i) {
    const config::DataSource& source = sources[i];
    LoadedSource loaded;
    bool is_loaded = false;
    tokenizing.run([&] {
      loaded = load_source(config, source, *opened[i], model, num_threads);
      is_loaded = true;
    });
    opened[i].reset();
    if (!is_loaded && i + 1 < sources.size())
      log::info("data: {} has errors; they are reported when the other data sets are read",
                shown_name(source.path));
    if (!is_loaded) continue;
    loaded.part.begin = num_examples;
    num_examples += loaded.examples.size();
    loaded.part.end = num_examples;
    stores.push_back(std::move(loaded.examples));
    parts.push_back(std::move(loaded.part));
    stats.push_back(loaded.stats);
    total += loaded.stats;
    fingerprint.add(loaded.fingerprint);
    if (source.weight != 1) fingerprint.add(fmt::format("{}", source.weight));
  }
  tokenizing.throw_if_any();
  log_mix(parts, stats, role);
  if (const auto warning = one_sided_warning(total); warning && !is_validation)
    log::warn("{}", *warning);
  return {ExampleStore::concatenate(stores), std::move(parts), total, fingerprint.hex()};
}

}  // namespace sftrun::data
