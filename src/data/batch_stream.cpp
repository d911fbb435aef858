#include "sftrun/data/batch_stream.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "bad_records.h"
#include "dataset_checks.h"
#include "judgement_balance.h"
#include "packing.h"
#include "sampled_hash.h"
#include "sftrun/core/error.h"
#include "sftrun/core/hash.h"
#include "sftrun/core/log.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/rng.h"
#include "sftrun/data/data_problems.h"
#include "shuffle.h"
#include "tokenized_source.h"

namespace sftrun::data {
namespace {

/// Separate from the random streams of epochs and splits.
RandomStream window_stream(uint64_t seed, int64_t window) {
  constexpr uint64_t kWindows = 0x73747265616d2d31;
  return {seed ^ kWindows, static_cast<uint64_t>(window)};
}

/// Position in a data set: after `record` records of pass `pass`.
struct SourcePosition {
  int64_t pass = 0, record = 0;
};

/// A data set that is read repeatedly.
class EndlessSource {
 public:
  EndlessSource(const config::RunConfig& config, const config::DataSource& source,
                const TextModel& model, int num_threads, int32_t first_file)
      : config_(config),
        source_(source),
        model_(model),
        num_threads_(num_threads),
        first_file_(first_file) {
    reopen();
    current_->require_one_format();
    checks_.emplace(model, config, current_->format().format, current_->rule());
    log::info("data: {} is streamed; format of records: {} ({})", shown_name(source.path),
              name_of(current_->format().format), current_->format().reason);
    estimated_records_ = current_->estimated_records();
  }

  void seek(const SourcePosition& position) {
    position_ = position;
    if (position.record > 0) current_->skip(position.record);
    checks_.reset();  // they were checked at the start of the run
  }

  /// Appends the examples of the next `count` records, and adds the bad ones among them to `bad`.
  void take(int64_t count, std::vector<Example>& examples, BadRecords& bad) {
    const int64_t wanted = count;
    while (count > 0) {
      if (next_ == block_.records.size() && !read_block()) continue;
      const size_t i = next_++;
      ++position_.record;
      --count;
      if (const auto& refused = block_.bad[i]) {
        bad.add(*refused, position_.record);
        continue;
      }
      if (checks_) checks_->add(block_.records[i], block_.places[i]);
      for (Outcome& outcome : block_.records[i]) {
        if (outcome.example.tokens.empty()) continue;
        outcome.example.file += first_file_;
        any_in_pass_ = true;
        examples.push_back(std::move(outcome.example));
      }
    }
    warn_of_repeats(wanted);
    if (!checks_ || checks_->stats().num_records == 0) return;  // all bad so far
    say(checks_->conclude());
    checks_.reset();
  }

  const SourcePosition& position() const { return position_; }
  const std::vector<SourceFile>& files() const { return current_->files(); }
  double estimated_records() const { return estimated_records_; }
  double weight() const { return source_.weight; }

 private:
  void reopen() {
    current_ = std::make_unique<TokenizedSource>(config_, source_, SplitRole::kTrain, model_,
                                                 num_threads_);
  }

  /// False at the end of a pass.
  bool read_block() {
    next_ = 0;
    if (auto block = current_->next()) {
      block_ = std::move(*block);
      if (config_.data.bad_records == config::BadRecords::kError) refuse_bad_records();
      return true;
    }
    block_ = {};
    if (!any_in_pass_ && position_.record > 0) {
      throw DataError("no record can be trained on", source_.path,
                      "see the output of sftrun preview");
    }
    any_in_pass_ = false;
    num_records_ = position_.record;
    position_ = {position_.pass + 1, 0};
    reopen();
    return false;
  }

  /// A window holds such records several times, so that steps see some again before others.
  void warn_of_repeats(int64_t num_in_window) {
    if (num_records_ == 0 || num_records_ >= num_in_window || warned_) return;
    warned_ = true;
    const double share = static_cast<double>(num_records_) / static_cast<double>(num_in_window);
    const auto fitting =
        static_cast<int64_t>(share * static_cast<double>(config_.data.shuffle_buffer));
    log::warn(
        "data: {} has {}, and a window of data.shuffle_buffer = {} takes {} from it: some "
        "are seen again before others are seen once; set data.shuffle_buffer to at most {}, or "
        "data.streaming: false",
        shown_name(source_.path), counted(num_records_, "record"), config_.data.shuffle_buffer,
        num_in_window, std::max<int64_t>(1, fitting));
  }

  void refuse_bad_records() const {
    BadRecords bad;
    for (size_t i = 0; i < block_.bad.size(); ++i) {
      if (const auto& refused = block_.bad[i]) bad.add(*refused, static_cast<int64_t>(i));
    }
    if (bad.count() > 0) bad.refuse(static_cast<int64_t>(block_.bad.size()));
  }

  const config::RunConfig& config_;
  config::DataSource source_;
  TextModel model_;
  int num_threads_;
  int32_t first_file_;
  std::unique_ptr<TokenizedSource> current_;
  TokenizedSource::Block block_;
  size_t next_ = 0;
  SourcePosition position_;
  bool any_in_pass_ = true;  // unknown after a seek
  int64_t num_records_ = 0;  // of a pass; 0: no pass has ended yet
  bool warned_ = false;
  double estimated_records_ = 0;
  std::optional<DatasetChecks> checks_;
};

[[noreturn]] void refuse_position() {
  throw DataError("the checkpoint's position is not in these data", "data.train",
                  "streamed data must not change during a run: restore the data of the run, "
                  "or start a new run in another output.dir");
}

}  // namespace

struct BatchStream::Window {
  int64_t index = 0;
  std::vector<SourcePosition> begin;  // of each data set
  double epochs_begin = 0, epochs_end = 0;
  std::vector<Example> examples;
  std::vector<Bin> bins;
  int64_t num_bad = 0;         // bad records that were left out
  int64_t num_bad_before = 0;  // between the last window and `begin`: those had no example
};

class BatchStream::Windows {
 public:
  Windows(const config::RunConfig& config, const TextModel& model, int num_threads)
      : config_(config) {
    ProblemCollector problems;
    for (const config::DataSource& source : config_.data.train) {
      problems.run([&] {
        sources_.emplace_back(std::make_unique<EndlessSource>(config_, source, model, num_threads,
                                                              static_cast<int32_t>(files_.size())));
        const auto& files = sources_.back()->files();
        files_.insert(files_.end(), files.begin(), files.end());
      });
    }
    problems.throw_if_any();
    for (const auto& source : sources_)
      epoch_records_ += source->weight() * source->estimated_records();
  }

  bool seek(int64_t index, const std::vector<SourcePosition>& begin, double epochs) {
    if (begin.size() != sources_.size()) return false;
    index_ = index;
    epochs_ = epochs;
    for (size_t i = 0; i < begin.size(); ++i) sources_[i]->seek(begin[i]);
    return true;
  }

  std::shared_ptr<const Window> make() {
    auto window = std::make_shared<Window>();
    while (window->bins.empty()) {
      window->index = index_;
      window->num_bad_before += std::exchange(window->num_bad, 0);
      window->begin.clear();
      for (const auto& source : sources_) window->begin.push_back(source->position());
      window->epochs_begin = epochs_;
      int64_t num_records = 0;
      BadRecords bad;
      for (const auto& source : sources_) {
        const int64_t count = share_of(*source);
        source->take(count, window->examples, bad);
        num_records += count;
      }
      window->num_bad = bad.count();
      if (bad.count() > 0) log::warn("data: {}", bad.left_out(num_records));
      if (index_ == 0) warn_of_one_judgement(window->examples);
      epochs_ += static_cast<double>(num_records) / epoch_records_;
      window->epochs_end = epochs_;
      form_bins(*window);
      ++index_;
    }
    return window;
  }

  const std::vector<SourceFile>& files() const { return files_; }

 private:
  /// Records of a window that are this data set's; the same in every window.
  int64_t share_of(const EndlessSource& source) const {
    const double share = source.weight() * source.estimated_records() / epoch_records_;
    return std::max<int64_t>(
        1, std::llround(share * static_cast<double>(config_.data.shuffle_buffer)));
  }

  static void warn_of_one_judgement(const std::vector<Example>& examples) {
    DatasetStats stats;
    for (const Example& example : examples) {
      stats.num_desirable += example.judgement == Judgement::kDesirable ? 1 : 0;
      stats.num_undesirable += example.judgement == Judgement::kUndesirable ? 1 : 0;
    }
    if (const auto warning = one_sided_warning(stats))
      log::warn("{} (of the first window of data.shuffle_buffer)", *warning);
  }

  void form_bins(Window& window) const {
    const config::DataConfig& data = config_.data;
    const int64_t together = documents_together(config_);
    std::vector<int64_t> order(window.examples.size() / static_cast<size_t>(together)),
        lengths(order.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
    for (size_t i = 0; i < window.examples.size(); ++i)
      lengths[i / static_cast<size_t>(together)] += std::ssize(window.examples[i].tokens);
    RandomStream random = window_stream(static_cast<uint64_t>(data.seed), window.index);
    if (data.shuffle) shuffle_range(order.begin(), order.end(), random);
    if (data.packing) {
      window.bins = pack_first_fit_decreasing(
          order, lengths, data.bin_tokens.value.value_or(config_.model.max_seq_len),
          std::max<int64_t>(1, static_cast<int64_t>(order.size())), nullptr);
      if (data.shuffle) shuffle_range(window.bins.begin(), window.bins.end(), random);
    } else {
      for (const int64_t example : order) window.bins.push_back({example});
    }
    window.bins = bins_of_examples(std::move(window.bins), together);
  }

  config::RunConfig config_;
  std::vector<std::unique_ptr<EndlessSource>> sources_;
  std::vector<SourceFile> files_;
  double epoch_records_ = 0, epochs_ = 0;
  int64_t index_ = 0;
};

BatchStream::BatchStream(const config::RunConfig& config, const TextModel& model, int num_threads,
                         const nlohmann::ordered_json& position)
    : global_batch_size_(*config.train.global_batch_size.value),
      windows_(std::make_unique<Windows>(config, model, num_threads)) {
  Fingerprint fingerprint;
  for (const SourceFile& file : windows_->files()) {
    file_hashes_.emplace_back(file.path, sampled_hash(file.path));
    fingerprint.add(file_hashes_.back().second);
  }
  fingerprint_ = fingerprint.add(config::to_json(config)["data"]["train"].dump()).hex();
  if (!position.is_null()) used_ = seek(position);
  window_ = windows_->make();
  if (used_ > window_->bins.size()) refuse_position();
  coming_ = std::async(std::launch::async, [this] { return windows_->make(); });
}

size_t BatchStream::seek(const nlohmann::ordered_json& position) {
  try {
    std::vector<SourcePosition> begin;
    for (const auto& source : position.at("sources"))
      begin.push_back({source.at(0).get<int64_t>(), source.at(1).get<int64_t>()});
    if (!windows_->seek(position.at("window").get<int64_t>(), begin,
                        position.at("epochs").get<double>()))
      refuse_position();
    bad_before_ = position.value("bad_records", int64_t{0});
    return position.at("bins").get<size_t>();
  } catch (const nlohmann::json::exception&) {
    refuse_position();
  }
}

BatchStream::~BatchStream() {
  if (coming_.valid()) coming_.wait();
}

void BatchStream::use_next_window() {
  bad_before_ = num_bad_records();
  window_ = coming_.get();
  used_ = 0;
  coming_ = std::async(std::launch::async, [this] { return windows_->make(); });
}

/// Copies the examples of a bin of the window.
void BatchStream::add_bin(const Bin& of_window, std::vector<Example>& examples,
                          StepBatch& batch) const {
  Bin bin;
  for (const int64_t index : of_window) {
    const Example& example = window_->examples[static_cast<size_t>(index)];
    bin.push_back(static_cast<int64_t>(examples.size()));
    batch.tokens += static_cast<int64_t>(example.tokens.size());
    batch.label_tokens += example.label_tokens;
    examples.push_back(example);
  }
  batch.bins.push_back(std::move(bin));
}

std::vector<StepBatch> BatchStream::largest(int64_t num_bins, std::span<const BinCost> by) const {
  std::vector<StepBatch> batches;
  if (by.empty()) return batches;
  const ExampleStore all = ExampleStore::in_memory(window_->examples);
  for (const BinCost& measure : by) {
    StepBatch batch;
    std::vector<Example> examples;
    for (const Bin& bin : largest_bins(all, window_->bins, num_bins, measure))
      add_bin(bin, examples, batch);
    batch.examples = ExampleStore::in_memory(examples);
    batches.push_back(std::move(batch));
  }
  return batches;
}

StepBatch BatchStream::next() {
  std::vector<Example> examples;
  StepBatch batch;
  while (static_cast<int64_t>(batch.bins.size()) < global_batch_size_) {
    if (used_ == window_->bins.size()) use_next_window();
    add_bin(window_->bins[used_++], examples, batch);
  }
  batch.examples = ExampleStore::in_memory(examples);
  batch.files = windows_->files();
  return batch;
}

nlohmann::ordered_json BatchStream::position() const {
  nlohmann::ordered_json sources = nlohmann::ordered_json::array();
  for (const SourcePosition& source : window_->begin)
    sources.push_back({source.pass, source.record});
  return {{"window", window_->index},
          {"sources", sources},
          {"bins", used_},
          {"bad_records", bad_before_ + window_->num_bad_before},
          {"epochs", window_->epochs_begin}};
}

int64_t BatchStream::num_bad_records() const {
  return bad_before_ + window_->num_bad_before + window_->num_bad;
}

double BatchStream::epochs() const {
  const double used = static_cast<double>(used_) / static_cast<double>(window_->bins.size());
  return window_->epochs_begin + used * (window_->epochs_end - window_->epochs_begin);
}

}  // namespace sftrun::data
