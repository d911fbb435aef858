#include "fit.h"

#include <algorithm>
#include <array>
#include <utility>

#include "sftrun/core/error.h"

namespace sftrun::data {
namespace {

/// Whether one of the first `count` tokens has a label. The very first token has none, because
/// nothing predicts it. Where the whole sequence is to give something, or is a prompt, any token will do.
bool has_target(const Sequence& sequence, int64_t count) {
  const bool any_will_do = !sequence.targets.empty() || sequence.is_prompt;
  if (any_will_do) return count > 0 && !sequence.ids.empty();
  const auto end =
      sequence.mask.begin() + std::min<int64_t>(count, static_cast<int64_t>(sequence.mask.size()));
  return end - sequence.mask.begin() > 1 && std::find(sequence.mask.begin() + 1, end, 1) != end;
}

/// Whether the first `count` tokens end within an image, or between frames of a video.
bool cuts_an_image(const Sequence& sequence, int64_t count) {
  int64_t last_kept_video = 0;
  for (const SequenceMedia& image : sequence.media) {
    if (image.begin < count && count < image.end) return true;
    if (image.is_of_video() && image.begin >= count && image.frames.video == last_kept_video)
      return true;
    if (image.begin < count) last_kept_video = image.frames.video;
  }
  return false;
}

}  // namespace

LengthRule length_rule(const config::RunConfig& config, RecordFormat format) {
  using config::TooLong;
  LengthRule rule{config.model.max_seq_len, config.data.too_long};
  if (config.train.has_rollouts()) {
    rule.answer_tokens = config.train.rollouts.max_new_tokens;
    rule.max_seq_len -= rule.answer_tokens;
    if (rule.too_long != TooLong::kError) rule.too_long = TooLong::kDrop;
    return rule;
  }
  if (rule.too_long == TooLong::kAuto) {
    const config::RecordFormatInfo& info = config::format_info(format);
    rule.too_long = info.is_text || info.is_retrieval ? TooLong::kTruncate : TooLong::kDrop;
  }
  return rule;
}

std::string LengthRule::words() const {
  if (answer_tokens == 0) return fmt::format("model.max_seq_len is {}", max_seq_len);
  return fmt::format(
      "a prompt may have {} (model.max_seq_len {} less train.rollouts.max_new_tokens {})",
      max_seq_len, max_seq_len + answer_tokens, answer_tokens);
}

Fate fate_of(const Sequence& sequence, const LengthRule& rule, const std::string& where) {
  const auto length = static_cast<int64_t>(sequence.ids.size());
  if (!has_target(sequence, length)) return Fate::kWithoutLabels;
  if (length <= rule.max_seq_len) return Fate::kKept;
  if (rule.too_long == config::TooLong::kDrop) return Fate::kTooLong;
  if (rule.too_long == config::TooLong::kTruncate) {
    if (cuts_an_image(sequence, rule.max_seq_len)) return Fate::kTooLong;
    return has_target(sequence, rule.max_seq_len) ? Fate::kTruncated : Fate::kLabelsCutOff;
  }
  throw DataError(fmt::format("the record has {} tokens, {}", length, rule.words()), where,
                  rule.answer_tokens > 0
                      ? "raise model.max_seq_len, or set data.too_long to drop"
                      : "raise model.max_seq_len, or set data.too_long to drop or truncate");
}

namespace {

/// Without the tokens before those at its end, as tokenizers truncate.
Sequence shortened(const Sequence& sequence, int64_t length) {
  Sequence cut{.ids = sequence.ids, .mask = sequence.mask, .targets = sequence.targets};
  const int64_t first = length - sequence.num_end_tokens,
                end = std::ssize(sequence.ids) - sequence.num_end_tokens;
  cut.ids.erase(cut.ids.begin() + first, cut.ids.begin() + end);
  cut.mask.erase(cut.mask.begin() + first, cut.mask.begin() + end);
  return cut;
}

}  // namespace

Example to_example(const Sequence& sequence, int64_t max_seq_len, int64_t record) {
  const bool keeps_end = sequence.num_end_tokens > 0 && sequence.num_end_tokens < max_seq_len;
  if (keeps_end && std::ssize(sequence.ids) > max_seq_len)
    return to_example(shortened(sequence, max_seq_len), max_seq_len, record);
  const size_t length = std::min(sequence.ids.size(), static_cast<size_t>(max_seq_len));
  Example example{
      .tokens = {sequence.ids.begin(), sequence.ids.begin() + static_cast<ptrdiff_t>(length)},
      .labels = std::vector<int32_t>(length, kIgnoreIndex),
      .record = record,
      .judgement = sequence.judgement,
      .answer_begin = std::min(sequence.num_prompt_tokens, static_cast<int64_t>(length)),
      .targets = sequence.targets,
      .score = sequence.score,
      .score_kind = sequence.score_kind,
      .group = sequence.group,
      .is_cut_short = sequence.is_cut_short,
      .record_text = sequence.record_text};
  const std::array<std::pair<LabelColumn, const std::vector<float>*>, kNumLabelColumns> columns = {
      {{LabelColumn::kWeight, &sequence.weights},
       {LabelColumn::kOldLogp, &sequence.old_logps},
       {LabelColumn::kSampledLogp, &sequence.sampled_logps}}};
  for (size_t i = 1; i < length; ++i) {
    if (!sequence.mask[i]) continue;
    example.labels[i - 1] = sequence.ids[i];
    ++example.label_tokens;
    for (const auto& [column, values] : columns)
      if (!values->empty()) example.values.of(column).push_back((*values)[i]);
  }
  for (const SequenceMedia& image : sequence.media)
    if (image.end <= static_cast<int64_t>(length)) example.media.push_back(image);
  return example;
}

}  // namespace sftrun::data
