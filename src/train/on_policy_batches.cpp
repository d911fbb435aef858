#include "sftrun/train/on_policy_batches.h"

#include <algorithm>

#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/core/rng.h"
#include "sftrun/data/last_answer.h"

namespace sftrun::train {
namespace {

/// Which examples are asked has other random numbers than what is answered.
constexpr uint64_t kOfShare = uint64_t{1} << 62U;

void count_tokens(data::StepBatch& batch) {
  batch.tokens = batch.label_tokens = 0;
  for (const data::Bin& bin : batch.bins) {
    for (const int64_t index : bin) {
      batch.tokens += batch.examples.stored(index).length;
      batch.label_tokens += batch.examples.stored(index).label_tokens;
    }
  }
}

/// @param of the example of the data
data::Example answered_example(const data::StoredExample& of, const AskedExample& asked,
                               const std::vector<int32_t>& answer) {
  data::Example example{.record = of.record,
                        .file = of.file,
                        .line = of.number,
                        .label_tokens = std::ssize(answer),
                        .media = asked.prompt.media};
  example.tokens.assign(asked.prompt.ids.begin(), asked.prompt.ids.end());
  const size_t begin = example.tokens.size();
  example.tokens.insert(example.tokens.end(), answer.begin(), answer.end());
  example.labels.assign(example.tokens.size(), data::kIgnoreIndex);
  for (size_t i = begin; i < example.tokens.size(); ++i) example.labels[i - 1] = example.tokens[i];
  return example;
}

observe::NamedValues metrics_of_answers(const Rollout& rollout) {
  const AnswerStatistics all = statistics_of(rollout.answers);
  observe::NamedValues metrics = {{"completions/mean_length", all.mean_length},
                                  {"completions/clipped_ratio", all.clipped_ratio}};
  for (auto& metric : metrics_of(all, rollout.answers, {})) metrics.push_back(std::move(metric));
  metrics.emplace_back("rollouts/seconds", rollout.seconds);
  return metrics;
}

}  // namespace

/// The examples of a step that the student answers, in order.
struct OnPolicyBatches::Asked {
  struct Place {
    size_t bin = 0, document = 0;
    bool operator==(const Place&) const = default;
  };
  std::vector<Place> places;
  std::vector<AskedExample> examples;
};

OnPolicyBatches::OnPolicyBatches(const config::RunConfig& config, std::unique_ptr<Batches> data,
                                 const data::Dataset* known, Write write)
    : rollouts_(config.train.rollouts),
      seed_(static_cast<uint64_t>(config.train.seed)),
      max_seq_len_(config.model.max_seq_len),
      data_(std::move(data)),
      known_(known),
      write_(std::move(write)) {
  if (known_ != nullptr)
    find_longest_prompts(static_cast<size_t>(config.train.global_batch_size.value.value()));
}

void OnPolicyBatches::find_longest_prompts(size_t count) {
  const data::ExampleStore& examples = known_->examples();
  for (int64_t i = 0; i < examples.size(); ++i)
    if (const auto answer = data::last_answer(examples[i])) prompts_.emplace_back(answer->begin, i);
  if (prompts_.empty())
    throw DataError(
        "train.rollouts.share: no training example has a prompt before its answer, so that the "
        "student has nothing to answer",
        "data.train", "use data with prompts and answers, or remove train.rollouts");
  std::stable_sort(prompts_.begin(), prompts_.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  if (prompts_.size() > count) prompts_.resize(count);
}

/// @return nullopt: it has no prompt
std::optional<AskedExample> OnPolicyBatches::asked_of(const data::ExampleStore& examples,
                                                      int64_t index) const {
  const auto answer = data::last_answer(examples[index]);
  if (!answer || answer->begin >= max_seq_len_) return std::nullopt;
  return AskedExample{
      .prompt = data::prompt_until(examples, index, answer->begin),
      .max_new_tokens = std::min(rollouts_.max_new_tokens, max_seq_len_ - answer->begin),
      .place = {},
      .record = examples.record_text_of(index)};
}

OnPolicyBatches::Asked OnPolicyBatches::asked_in(const data::StepBatch& batch, int64_t step) const {
  RandomStream stream(seed_, kOfShare | static_cast<uint64_t>(step));
  Asked asked;
  for (size_t bin = 0; bin < batch.bins.size(); ++bin) {
    for (size_t document = 0; document < batch.bins[bin].size(); ++document) {
      const bool is_drawn = stream.next_unit() < *rollouts_.share;
      const int64_t index = batch.bins[bin][document];
      std::optional<AskedExample> example;
      if (is_drawn) example = asked_of(batch.examples, index);
      if (!example) continue;
      example->place = data_->file_of(batch, index)
                           .where(static_cast<int64_t>(batch.examples.stored(index).number));
      asked.places.push_back({bin, document});
      asked.examples.push_back(std::move(*example));
    }
  }
  return asked;
}

data::StepBatch OnPolicyBatches::with_answers(data::StepBatch batch, const Asked& asked,
                                              const std::vector<RolloutAnswer>& answers) const {
  SFTRUN_CHECK_EQ(answers.size(), asked.examples.size());
  std::vector<int64_t> kept, origins;  // of batch.examples
  std::vector<data::Example> answered;
  std::vector<std::pair<int64_t*, int64_t>> to_number;  // entries of bins
  for (size_t bin = 0; bin < batch.bins.size(); ++bin) {
    for (size_t document = 0; document < batch.bins[bin].size(); ++document) {
      int64_t& index = batch.bins[bin][document];
      const size_t next = answered.size();
      if (next < asked.places.size() && asked.places[next] == Asked::Place{bin, document}) {
        answered.push_back(answered_example(batch.examples.stored(index), asked.examples[next],
                                            answers[next].tokens));
        origins.push_back(index);
        to_number.emplace_back(&index, static_cast<int64_t>(next));
      } else {
        kept.push_back(index);
        index = std::ssize(kept) - 1;
      }
    }
  }
  for (const auto& [index, number] : to_number) *index = std::ssize(kept) + number;
  if (known_ != nullptr) {  // streamed examples name their files among those of the batch
    std::vector<data::SourceFile> files;
    for (const std::vector<int64_t>* indices : {&kept, &origins})
      for (const int64_t index : *indices) files.push_back(data_->file_of(batch, index));
    batch.files = std::move(files);
  }
  batch.examples = data::ExampleStore::concatenate(
      {batch.examples.select(kept), data::ExampleStore::in_memory(answered)});
  count_tokens(batch);
  return batch;
}

int OnPolicyBatches::prepare(int64_t step) {
  before_prepared_ = data_->position();
  data::StepBatch batch = data_->at(step);
  const Asked asked = asked_in(batch, step);
  if (!asked.examples.empty()) {
    const Rollout rollout = write_(step, asked.examples);
    if (rollout.stop_exit_code != 0) return rollout.stop_exit_code;
    batch = with_answers(std::move(batch), asked, rollout.answers);
    batch.metrics = metrics_of_answers(rollout);
    // A student that becomes sure as its teacher is has no fault.
    const AnswerStatistics signs{.clipped_ratio = statistics_of(rollout.answers).clipped_ratio};
    for (const std::string& warning : faults_.add(signs, {}))
      log::warn("step {}: {}", step + 1, warning);
  }
  batch.deal = dealer().deal(batch.examples, batch.bins);
  prepared_ = std::move(batch);
  prepared_step_ = step;
  return 0;
}

data::StepBatch OnPolicyBatches::at(int64_t step) {
  SFTRUN_CHECK_EQ(prepared_step_, step);
  prepared_step_ = -1;
  before_prepared_.reset();
  return std::exchange(prepared_, {});
}

const data::SourceFile& OnPolicyBatches::file_of(const data::StepBatch& batch,
                                                 int64_t index) const {
  if (known_ == nullptr || batch.files.empty()) return data_->file_of(batch, index);
  return batch.files.at(static_cast<size_t>(index));
}

int64_t OnPolicyBatches::longest_answered() const {
  if (known_ == nullptr) return max_seq_len_;
  return std::min(prompts_.front().first + rollouts_.max_new_tokens, max_seq_len_);
}

/// @pre the data is known
data::StepBatch OnPolicyBatches::longest_asked(int64_t num_bins) const {
  data::StepBatch batch;
  std::vector<data::Example> examples;
  for (const auto& [length, index] : prompts_) {
    if (std::ssize(examples) == num_bins) break;
    const std::optional<AskedExample> asked = asked_of(known_->examples(), index);
    if (!asked) continue;
    const std::vector<int32_t> answer(static_cast<size_t>(asked->max_new_tokens), 0);
    batch.bins.push_back({std::ssize(examples)});
    batch.files.push_back(known_->file_of(index));
    examples.push_back(answered_example(known_->examples().stored(index), *asked, answer));
  }
  batch.examples = data::ExampleStore::in_memory(examples);
  count_tokens(batch);
  return batch;
}

data::StepBatch OnPolicyBatches::longest(int64_t num_bins) const {
  data::StepBatch of_data = data_->longest(num_bins);
  if (known_ == nullptr) return of_data;
  data::StepBatch asked = longest_asked(num_bins);
  return asked.tokens > of_data.tokens ? std::move(asked) : std::move(of_data);
}

std::vector<data::StepBatch> OnPolicyBatches::largest(int64_t num_bins,
                                                      std::span<const data::BinCost> by) const {
  std::vector<data::StepBatch> batches = data_->largest(num_bins, by);
  if (known_ != nullptr) batches.push_back(longest_asked(num_bins));
  return batches;
}

int64_t OnPolicyBatches::micro_batch_tokens(int64_t num_bins, bool of_longest) const {
  const int64_t of_data = data_->micro_batch_tokens(num_bins, of_longest);
  if (known_ == nullptr) return of_data;
  return std::max(of_data, num_bins * longest_answered());
}

}  // namespace sftrun::train
