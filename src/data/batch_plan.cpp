#include "sftrun/data/batch_plan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

#include "packing.h"
#include "sftrun/core/error.h"
#include "sftrun/core/rng.h"
#include "sftrun/data/teacher_scores.h"
#include "shuffle.h"

namespace sftrun::data {
namespace {

/// Random streams of one seed: two per epoch, so that the order of examples and the order of bins
/// are independent.
RandomStream example_order_stream(uint64_t seed, int64_t epoch) {
  return {seed, 2 * static_cast<uint64_t>(epoch)};
}
RandomStream bin_order_stream(uint64_t seed, int64_t epoch) {
  return {seed, 2 * static_cast<uint64_t>(epoch) + 1};
}

/// A separate stream: the random share of the data set `group` in an epoch.
RandomStream share_stream(uint64_t seed, int64_t epoch, size_t group) {
  constexpr uint64_t kShares = 0x73686172652d7631;
  return {seed ^ kShares, (static_cast<uint64_t>(epoch) << 16) + group};
}

/// A share of [begin, end), drawn anew each epoch, in order.
void append_share(const BatchPlanOptions::Group& group, double share, RandomStream random,
                  std::vector<int64_t>& order) {
  std::vector<int64_t> drawn(static_cast<size_t>(group.end - group.begin));
  std::iota(drawn.begin(), drawn.end(), group.begin);
  const auto count = std::llround(share * static_cast<double>(drawn.size()));
  shuffle_range(drawn.begin(), drawn.end(), random);
  std::sort(drawn.begin(), drawn.begin() + count);
  order.insert(order.end(), drawn.begin(), drawn.begin() + count);
}

/// The epoch's examples, in order of the data.
std::vector<int64_t> examples_of(const BatchPlanOptions& options, int64_t num_examples,
                                 int64_t epoch) {
  std::vector<int64_t> order;
  const auto append = [&](int64_t begin, int64_t end) {
    order.resize(order.size() + static_cast<size_t>(end - begin));
    std::iota(order.end() - (end - begin), order.end(), begin);
  };
  if (options.groups.empty()) append(0, num_examples);
  for (size_t i = 0; i < options.groups.size(); ++i) {
    const BatchPlanOptions::Group& group = options.groups[i];
    const double times = std::floor(group.weight);
    for (double time = 0; time < times; ++time) append(group.begin, group.end);
    if (group.weight > times)
      append_share(group, group.weight - times, share_stream(options.seed, epoch, i), order);
  }
  return order;
}

/// Sorts by length within windows of many batches, then shuffles the batches, except a last,
/// shorter one.
void group_by_length(std::vector<int64_t>& order, const std::vector<int64_t>& lengths,
                     const BatchPlanOptions& options, int64_t epoch) {
  constexpr int64_t kBatchesInWindow = 50;  // as transformers' LengthGroupedSampler
  const auto size = static_cast<int64_t>(order.size());
  const int64_t window = kBatchesInWindow * options.global_batch_size;
  for (int64_t begin = 0; begin < size; begin += window) {
    std::stable_sort(order.begin() + begin, order.begin() + std::min(begin + window, size),
                     [&](int64_t a, int64_t b) { return lengths[a] > lengths[b]; });
  }
  if (!options.shuffle) return;
  std::vector<int64_t> batches(static_cast<size_t>(size / options.global_batch_size));
  std::iota(batches.begin(), batches.end(), 0);
  RandomStream random = bin_order_stream(options.seed, epoch);
  shuffle_range(batches.begin(), batches.end(), random);
  std::vector<int64_t> grouped;
  for (const int64_t batch : batches) {
    const auto first = order.begin() + batch * options.global_batch_size;
    grouped.insert(grouped.end(), first, first + options.global_batch_size);
  }
  std::copy(grouped.begin(), grouped.end(), order.begin());
}

std::vector<Bin> form_bins(const std::vector<int64_t>& lengths, const BatchPlanOptions& options,
                           int64_t epoch) {
  std::vector<int64_t> order = examples_of(options, static_cast<int64_t>(lengths.size()), epoch);
  if (options.shuffle) {
    RandomStream random = example_order_stream(options.seed, epoch);
    shuffle_range(order.begin(), order.end(), random);
  }
  if (options.group_by_length) group_by_length(order, lengths, options, epoch);
  if (!options.packing) {
    std::vector<Bin> bins;
    bins.reserve(order.size());
    for (const int64_t example : order) bins.push_back({example});
    return bins;
  }
  std::vector<int64_t> window_ends;
  std::vector<Bin> bins =
      pack_first_fit_decreasing(order, lengths, options.bin_tokens, kPackingWindow, &window_ends);
  if (options.shuffle) {
    // In the order of their first examples, bins of many short examples would come first.
    RandomStream random = bin_order_stream(options.seed, epoch);
    int64_t begin = 0;
    for (const int64_t end : window_ends) {
      shuffle_range(bins.begin() + begin, bins.begin() + end, random);
      begin = end;
    }
  }
  return bins;
}

std::vector<int64_t> sums_of(const std::vector<int64_t>& lengths, int64_t together) {
  std::vector<int64_t> sums(lengths.size() / static_cast<size_t>(together));
  for (size_t i = 0; i < lengths.size(); ++i) sums[i / static_cast<size_t>(together)] += lengths[i];
  return sums;
}

}  // namespace

std::vector<Bin> bins_of_examples(std::vector<Bin> bins_of_units, int64_t together) {
  if (together == 1) return bins_of_units;
  for (Bin& bin : bins_of_units) {
    Bin examples;
    for (const int64_t unit : bin)
      for (int64_t i = 0; i < together; ++i) examples.push_back(unit * together + i);
    bin = std::move(examples);
  }
  return bins_of_units;
}

BatchPlan::BatchPlan(std::vector<int64_t> lengths, std::vector<int64_t> label_tokens,
                     BatchPlanOptions options)
    : lengths_(std::move(lengths)),
      label_tokens_(std::move(label_tokens)),
      options_(std::move(options)) {
  SFTRUN_CHECK_EQ(lengths_.size(), label_tokens_.size());
  SFTRUN_CHECK(options_.global_batch_size > 0);
  SFTRUN_CHECK(options_.max_seq_len > 0);
  if (options_.bin_tokens == 0) options_.bin_tokens = options_.max_seq_len;
  for (const int64_t length : lengths_) SFTRUN_CHECK(length > 0 && length <= options_.max_seq_len);
  const int64_t together = options_.documents_together;
  SFTRUN_CHECK(together > 0 && std::ssize(lengths_) % together == 0);
  unit_lengths_ = sums_of(lengths_, together);
  for (BatchPlanOptions::Group& group : options_.groups) {
    SFTRUN_CHECK(group.begin % together == 0 && group.end % together == 0);
    group.begin /= together;
    group.end /= together;
  }
}

const std::vector<Bin>& BatchPlan::bins_of(int64_t epoch) const {
  SFTRUN_CHECK(epoch >= 0);
  if (cached_epoch_ != epoch) {
    cached_bins_ =
        bins_of_examples(form_bins(unit_lengths_, options_, epoch), options_.documents_together);
    cached_epoch_ = epoch;
  }
  return cached_bins_;
}

int64_t BatchPlan::bins_in_epoch(int64_t epoch) const {
  return std::ssize(bins_of(epoch));
}

int64_t BatchPlan::steps_per_epoch(int64_t epoch) const {
  return (bins_in_epoch(epoch) + options_.global_batch_size - 1) / options_.global_batch_size;
}

std::vector<Bin> BatchPlan::global_batch(int64_t epoch, int64_t step_in_epoch) const {
  const std::vector<Bin>& bins = bins_of(epoch);
  SFTRUN_CHECK(step_in_epoch >= 0 && step_in_epoch < steps_per_epoch(epoch));
  const int64_t begin = step_in_epoch * options_.global_batch_size;
  const int64_t end =
      std::min(begin + options_.global_batch_size, static_cast<int64_t>(bins.size()));
  return {bins.begin() + begin, bins.begin() + end};
}

int64_t BatchPlan::label_tokens(const std::vector<Bin>& bins) const {
  int64_t sum = 0;
  for (const Bin& bin : bins)
    for (const int64_t example : bin) sum += label_tokens_.at(static_cast<size_t>(example));
  return sum;
}

int64_t BatchPlan::tokens_of(const Bin& bin) const {
  int64_t tokens = 0;
  for (const int64_t example : bin) tokens += lengths_.at(static_cast<size_t>(example));
  return tokens;
}

int64_t BatchPlan::max_tokens(int64_t num_bins, int64_t num_steps) const {
  SFTRUN_CHECK(num_bins > 0);
  int64_t most = 0;
  for (int64_t step = 0; step < std::min(num_steps, steps_per_epoch(0)); ++step) {
    int64_t tokens = 0, bins = 0;
    for (const Bin& bin : global_batch(0, step)) {
      tokens += tokens_of(bin);
      most = std::max(most, tokens);
      if (++bins % num_bins == 0) tokens = 0;
    }
  }
  return most;
}

int64_t BatchPlan::longest_tokens(int64_t num_bins) const {
  std::vector<int64_t> tokens;
  for (const Bin& bin : bins_of(0)) tokens.push_back(tokens_of(bin));
  const auto end = tokens.begin() + std::min(num_bins, std::ssize(tokens));
  std::partial_sort(tokens.begin(), end, tokens.end(), std::greater<>());
  return std::accumulate(tokens.begin(), end, int64_t{0});
}

namespace {

void append_image(SequenceMedia image, Batch& batch) {
  int64_t num_rows = 0;
  for (auto row = static_cast<int32_t>(image.begin); row < image.end; ++row) {
    const auto at = static_cast<size_t>(row);
    if (batch.tokens[at] != image.feature) continue;
    SFTRUN_CHECK(at == 0 || batch.labels[at - 1] == kIgnoreIndex);
    const bool continues = num_rows > 0 && batch.image_rows.back().end == row;
    if (!continues) batch.image_rows.push_back({row, row});
    batch.image_rows.back().end = row + 1;
    ++num_rows;
  }
  SFTRUN_CHECK_EQ(num_rows, image.num_tokens);
  batch.images.push_back(std::move(image));
}

/// Of the example whose rows were appended last.
void append_media(std::vector<SequenceMedia> media, bool is_blank, Batch& batch) {
  const int32_t first_row = batch.cu_seqlens.back();
  for (SequenceMedia& one : media) {
    one.is_blank = is_blank;
    one.begin += first_row;
    one.end += first_row;
    if (one.is_image()) {
      append_image(std::move(one), batch);
      continue;
    }
    SFTRUN_CHECK_EQ(one.end - one.begin, one.num_tokens);
    for (int64_t row = std::max<int64_t>(one.begin, 1); row < one.end; ++row)
      SFTRUN_CHECK(batch.labels[static_cast<size_t>(row - 1)] == kIgnoreIndex);
    batch.features.push_back(std::move(one));
  }
}

/// Writes the positions of one batch, row by row.
class RopeWalk {
 public:
  RopeWalk(int64_t num_rows, int64_t merge_side)
      : positions_(static_cast<size_t>(3 * num_rows)), num_rows_(num_rows), side_(merge_side) {}

  void begin_document() { next_ = 0; }
  int64_t row() const { return row_; }
  void text_until(int64_t end) {
    for (; row_ < end; ++next_) set(next_, next_, next_);
  }
  /// An image, or frames of a video, which may be at the place of the frames before them.
  void image(const SequenceMedia& image) {
    const int64_t height = image.grid_thw[1] / side_, width = image.grid_thw[2] / side_;
    const bool has_place = image.frames.time < 0 || image.frames.first == 0;
    if (has_place) place_ = next_;
    const int64_t time = place_ + std::max<int64_t>(image.frames.time, 0);
    for (int64_t frame = 0; frame < image.grid_thw[0]; ++frame)
      for (int64_t y = 0; y < height; ++y)
        for (int64_t x = 0; x < width; ++x) set(time + frame, place_ + y, place_ + x);
    next_ = place_ + std::max(height, width);
  }
  std::vector<int32_t> take() { return std::move(positions_); }

 private:
  void set(int64_t time, int64_t height, int64_t width) {
    int64_t axis = 0;
    for (const int64_t position : {time, height, width})
      positions_[static_cast<size_t>(axis++ * num_rows_ + row_)] = static_cast<int32_t>(position);
    ++row_;
  }

  std::vector<int32_t> positions_;
  int64_t num_rows_, side_;
  int64_t row_ = 0, next_ = 0, place_ = 0;
};

int64_t num_places(const SequenceMedia& image, int64_t merge_side) {
  const auto& [time, height, width] = image.grid_thw;
  return time * (height / merge_side) * (width / merge_side);
}

}  // namespace

std::vector<int32_t> rope_positions_of(const Batch& batch, int64_t merge_side) {
  if (batch.images.empty()) return {};
  RopeWalk walk(batch.num_tokens(), merge_side);
  size_t image = 0;
  for (size_t document = 0; document + 1 < batch.cu_seqlens.size(); ++document) {
    const int64_t end = batch.cu_seqlens[document + 1];
    walk.begin_document();
    for (; image < batch.images.size() && batch.images[image].end <= end; ++image) {
      // The run of such an image is one, without markers in between.
      const auto& rows = batch.image_rows[image];
      SFTRUN_CHECK_EQ(num_places(batch.images[image], merge_side), int64_t{rows.end} - rows.begin);
      walk.text_until(rows.begin);
      walk.image(batch.images[image]);
    }
    walk.text_until(end);
  }
  return walk.take();
}

void set_rope_positions(Batch& batch, int64_t merge_side) {
  batch.rope_positions = rope_positions_of(batch, merge_side);
}

namespace {

Judgement stored_judgement(const StoredExample& stored) {
  return static_cast<Judgement>(stored.judgement);
}

/// Of labels whose document does not have the column.
constexpr std::array<float, kNumLabelColumns> kMissingValues = {
    1, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::quiet_NaN()};

/// Adds the columns of the document that was appended last.
/// @param before labels of the batch before it
void append_values(const LabelValues& of_document, int64_t before, int64_t label_tokens,
                   LabelValues& values) {
  for (size_t i = 0; i < kNumLabelColumns; ++i) {
    const std::vector<float>& own = of_document.columns[i];
    std::vector<float>& all = values.columns[i];
    if (own.empty() && all.empty()) continue;
    SFTRUN_CHECK(own.empty() || std::ssize(own) == label_tokens);
    all.resize(static_cast<size_t>(before), kMissingValues[i]);
    all.insert(all.end(), own.begin(), own.end());
    all.resize(static_cast<size_t>(before + label_tokens), kMissingValues[i]);
  }
}

}  // namespace

namespace {

/// @param advantage of the example, if the store has it
void append_sample(const StoredExample& stored, double advantage, Batch& batch) {
  if (stored.score_kind == static_cast<uint8_t>(ScoreKind::kNone)) return;
  batch.advantages.push_back(advantage);
  batch.scores.push_back(stored.score);
  batch.is_cut_short.push_back(stored.is_cut_short);
}

}  // namespace

double Batch::label_weight() const {
  const std::vector<float>& weights = values.of(LabelColumn::kWeight);
  return weights.empty() ? static_cast<double>(label_tokens)
                         : std::accumulate(weights.begin(), weights.end(), 0.0);
}

Batch make_batch(const ExampleStore& examples, const std::vector<Bin>& global_batch,
                 std::span<const int64_t> places, const std::set<int64_t>& lost) {
  Batch batch;
  batch.cu_seqlens.push_back(0);
  const std::vector<double>* reference = examples.reference_logps();
  const std::vector<double>* advantages = examples.advantages();
  if (reference != nullptr) batch.reference_logps.emplace();
  const TeacherScores* teacher = examples.teacher().get();
  if (teacher != nullptr) batch.teacher.emplace().k = teacher->description().k;
  int64_t counted = 0, key = 0;  // bins, and their documents
  for (const int64_t place : places) {
    SFTRUN_CHECK(place >= counted && place < std::ssize(global_batch));
    for (; counted < place; ++counted) key += std::ssize(global_batch[counted]);
    ++counted;
    for (const int64_t index : global_batch[place]) {
      const ExampleView example = examples[index];
      const auto length = static_cast<int32_t>(example.size());
      SFTRUN_CHECK(length > 0);
      const bool is_lost = !lost.empty() && lost.contains(index);
      for (int32_t position = 0; position < length; ++position) {
        batch.tokens.push_back(example.token(position));
        batch.labels.push_back(is_lost ? kIgnoreIndex : example.label(position));
        batch.position_ids.push_back(position);
      }
      if (example.stored->num_media > 0) append_media(examples.media_of(index), is_lost, batch);
      batch.cu_seqlens.push_back(batch.cu_seqlens.back() + length);
      batch.document_keys.push_back(key++);
      if (const auto judgement = stored_judgement(*example.stored); judgement != Judgement::kNone)
        batch.is_desirable.push_back(judgement == Judgement::kDesirable ? 1 : 0);
      batch.targets.push_back(example.stored->num_targets > 0 ? examples.targets_of(index)
                                                              : std::vector<float>());
      if (reference != nullptr)
        batch.reference_logps->push_back(is_lost ? 0 : reference->at(static_cast<size_t>(index)));
      if (advantages != nullptr)
        append_sample(*example.stored, advantages->at(static_cast<size_t>(index)), batch);
      if (teacher != nullptr && !is_lost)
        teacher->append(key_of_example(examples, index), example.stored->label_tokens,
                        *batch.teacher);
      batch.max_seqlen = std::max(batch.max_seqlen, length);
      const int64_t label_tokens = is_lost ? 0 : int64_t{example.stored->label_tokens};
      append_values(is_lost ? LabelValues() : examples.values_of(index), batch.label_tokens,
                    label_tokens, batch.values);
      batch.label_tokens += label_tokens;
      batch.num_lost += is_lost ? 1 : 0;
    }
  }
  for (const size_t judged : {batch.is_desirable.size(), batch.advantages.size()})
    SFTRUN_CHECK(judged == 0 || judged == batch.document_keys.size());
  return batch;
}

Batch make_batch(const ExampleStore& examples, const std::vector<Bin>& global_batch,
                 int64_t first_bin, int64_t num_bins, const std::set<int64_t>& lost) {
  SFTRUN_CHECK(first_bin >= 0 && num_bins >= 0);
  const int64_t begin = std::min(first_bin, std::ssize(global_batch));
  std::vector<int64_t> places(
      static_cast<size_t>(std::min(num_bins, std::ssize(global_batch) - begin)));
  std::iota(places.begin(), places.end(), begin);
  return make_batch(examples, global_batch, places, lost);
}

namespace {

/// An example of a global batch that is not lost.
struct KeptExample {
  int64_t index = 0, key = 0, bin = 0;
};

std::vector<KeptExample> kept_examples(const std::vector<Bin>& global_batch,
                                       const std::set<int64_t>& lost) {
  std::vector<KeptExample> kept;
  int64_t key = 0;
  for (int64_t bin = 0; bin < std::ssize(global_batch); ++bin) {
    for (const int64_t index : global_batch[bin]) {
      if (!lost.contains(index)) kept.push_back({index, key, bin});
      ++key;
    }
  }
  return kept;
}

/// Whether two examples are answers of one record, a pair that was taken apart.
bool are_of_one_record(const StoredExample& one, const StoredExample& other) {
  return one.file == other.file && one.record == other.record;
}

/// For each example the one whose answer it gets: the next of the data, or the one behind it where that
/// is of the same record. The answers are those of the batch, each once, in whatever bins they are.
std::vector<int64_t> answers_for(const ExampleStore& examples,
                                 const std::vector<KeptExample>& kept) {
  std::vector<size_t> order(kept.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return kept[a].index < kept[b].index; });
  const auto following = [&](size_t place, size_t shift) {
    return kept[order[(place + shift) % order.size()]].index;
  };
  const auto num_of_one_record = [&](size_t shift) {
    int64_t count = 0;
    for (size_t place = 0; place < order.size(); ++place)
      count += are_of_one_record(examples.stored(kept[order[place]].index),
                                 examples.stored(following(place, shift)));
    return count;
  };
  constexpr size_t kAnswersOfRecord = 2;
  size_t best = 1;
  for (size_t shift = 2; shift <= std::min(kAnswersOfRecord, order.size() - 1); ++shift)
    if (num_of_one_record(shift) < num_of_one_record(best)) best = shift;
  std::vector<int64_t> answers(kept.size());
  for (size_t place = 0; place < order.size(); ++place)
    answers[order[place]] = following(place, best);
  return answers;
}

/// Whether an image or other features reach into the answer.
/// @param starts_in_prompt only such as begin before it
bool answer_has_media(const ExampleStore& examples, int64_t index, bool starts_in_prompt) {
  const StoredExample& stored = examples.stored(index);
  if (stored.num_media == 0) return false;
  const auto media = examples.stored_media(index);
  return std::any_of(media.begin(), media.end(), [&](const StoredMedia& one) {
    return one.end > stored.answer_begin && (!starts_in_prompt || one.begin < stored.answer_begin);
  });
}

/// A document of one example's prompt and the other's answer.
void append_mismatched(const ExampleStore& examples, const KeptExample& asked, int64_t answered,
                       int64_t max_seq_len, Batch& batch) {
  const ExampleView prompt = examples[asked.index], answer = examples[answered];
  const auto prompt_end = static_cast<int32_t>(prompt.stored->answer_begin);
  const int64_t first = answer.stored->answer_begin;
  const auto length =
      static_cast<int32_t>(std::min(prompt_end + answer.size() - first, max_seq_len));
  SFTRUN_CHECK(length > 0);
  for (int32_t row = 0; row < length; ++row) {
    const int64_t in_answer = first + row - prompt_end;  // where the row's token is in the answer
    batch.tokens.push_back(row < prompt_end ? prompt.token(row) : answer.token(in_answer));
    const int64_t next = in_answer + 1;
    // The first token of an example has no label, because nothing is before it; here is a prompt.
    const bool is_labelled =
        row + 1 < length && row + 1 >= prompt_end && (answer.has_label(next) || next == 0);
    batch.labels.push_back(is_labelled ? answer.token(next) : kIgnoreIndex);
    batch.position_ids.push_back(row);
    batch.label_tokens += is_labelled ? 1 : 0;
  }
  if (prompt.stored->num_media > 0) {
    std::vector<SequenceMedia> media = examples.media_of(asked.index);
    std::erase_if(media, [&](const SequenceMedia& one) { return one.end > prompt_end; });
    append_media(std::move(media), /*is_blank=*/false, batch);
  }
  batch.cu_seqlens.push_back(batch.cu_seqlens.back() + length);
  batch.document_keys.push_back(asked.key);
  batch.max_seqlen = std::max(batch.max_seqlen, length);
}

}  // namespace

Batch make_mismatched_batch(const ExampleStore& examples, const std::vector<Bin>& global_batch,
                            std::span<const int64_t> places, int64_t max_seq_len,
                            const std::set<int64_t>& lost) {
  Batch batch;
  batch.cu_seqlens.push_back(0);
  const std::vector<KeptExample> kept = kept_examples(global_batch, lost);
  if (kept.size() < 2) return batch;
  const std::vector<int64_t> answers = answers_for(examples, kept);
  for (size_t i = 0; i < kept.size(); ++i) {
    if (!std::binary_search(places.begin(), places.end(), kept[i].bin)) continue;
    const int64_t answered = answers[i];
    const StoredExample& asked = examples.stored(kept[i].index);
    SFTRUN_CHECK(stored_judgement(asked) != Judgement::kNone);
    if (are_of_one_record(asked, examples.stored(answered))) continue;
    const bool is_whole = !answer_has_media(examples, kept[i].index, /*starts_in_prompt=*/true) &&
                          !answer_has_media(examples, answered, /*starts_in_prompt=*/false);
    if (is_whole) append_mismatched(examples, kept[i], answered, max_seq_len, batch);
  }
  return batch;
}

namespace {

/// How many tokens may be labels: all but the first, and none that stands for an image or features.
int64_t sequence_labels(const ExampleStore& examples, int64_t index) {
  int64_t labels = int64_t{examples.stored(index).length} - 1;
  for (const StoredMedia& media : examples.stored_media(index)) {
    labels -= media.num_tokens;
    const bool is_first =
        media.begin == 0 && (!media.is_image() || examples[index].token(0) == media.feature);
    if (is_first) ++labels;
  }
  return labels;
}

template <class Counts>
BinCounts counts_where(const ExampleStore& examples, const std::vector<Bin>& bins,
                       const Counts& counts_example) {
  BinCounts counts;
  for (const Bin& bin : bins) {
    for (size_t i = 0; i < bin.size(); ++i) {
      if (!counts_example(bin[i])) continue;
      const StoredExample& example = examples.stored(bin[i]);
      ++counts.documents;
      counts.label_tokens += example.label_tokens;
      counts.label_weight += example.label_weight;
      if (example.is_cut_short != 0) counts.cut_short_labels += example.label_tokens;
      counts.desirable += stored_judgement(example) == Judgement::kDesirable ? 1 : 0;
      if (i % 2 != 0 || example.label_tokens == 0) continue;
      counts.chosen_labels += example.label_tokens;
      counts.chosen_sequence_labels += sequence_labels(examples, bin[i]);
    }
  }
  return counts;
}

}  // namespace

BinCounts& BinCounts::operator-=(const BinCounts& others) {
  documents -= others.documents;
  label_tokens -= others.label_tokens;
  label_weight -= others.label_weight;
  chosen_labels -= others.chosen_labels;
  chosen_sequence_labels -= others.chosen_sequence_labels;
  desirable -= others.desirable;
  cut_short_labels -= others.cut_short_labels;
  return *this;
}

BinCounts counts_of(const ExampleStore& examples, const std::vector<Bin>& bins) {
  return counts_where(examples, bins, [](int64_t) { return true; });
}

BinCounts counts_among(const ExampleStore& examples, const std::vector<Bin>& bins,
                       const std::set<int64_t>& some) {
  if (some.empty()) return {};
  return counts_where(examples, bins, [&](int64_t example) { return some.contains(example); });
}

}  // namespace sftrun::data
