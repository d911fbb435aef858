#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/data/media.h"

namespace sftrun::data {

/// Value of a label that is not trained on; PyTorch's ignore_index.
inline constexpr int32_t kIgnoreIndex = -100;

/// Of an answer, for objectives on judged answers.
enum class Judgement : uint8_t { kNone, kUndesirable, kDesirable };

/// What a number beside a label token is.
enum class LabelColumn : uint8_t {
  kWeight,      ///< of the token in the loss; 1 where it is missing
  kOldLogp,     ///< log p when the answer was sampled, by the model that is trained
  kSampledLogp  ///< the same as the engine gave it that sampled the answer
};
inline constexpr size_t kNumLabelColumns = 3;

/// Columns of numbers of label tokens, in the order of the tokens; a column that is missing is empty.
struct LabelValues {
  std::array<std::vector<float>, kNumLabelColumns> columns;

  std::vector<float>& of(LabelColumn column) { return columns[static_cast<size_t>(column)]; }
  const std::vector<float>& of(LabelColumn column) const {
    return columns[static_cast<size_t>(column)];
  }
  bool empty() const {
    for (const std::vector<float>& column : columns)
      if (!column.empty()) return false;
    return true;
  }
};

/// What `Example::score` is.
enum class ScoreKind : uint8_t { kNone, kReward, kAdvantage };

/// One tokenized training example. `labels[i]` is the token to predict *at* position i from tokens
/// 0..i, already shifted: labels[i] == tokens[i + 1] or kIgnoreIndex; the last is always
/// kIgnoreIndex.
struct Example {
  std::vector<int32_t> tokens, labels;
  int64_t record = -1;       ///< index of the record in the data set
  int32_t file = 0;          ///< index of its file in the data set
  int64_t line = 0;          ///< line or row of the record in its file, from 1, for messages
  int64_t label_tokens = 0;  ///< count of labels != kIgnoreIndex
  Judgement judgement = Judgement::kNone;
  int64_t answer_begin = 0;    ///< of a judged answer: its first token
  LabelValues values;          ///< columns of [label_tokens], or empty
  std::vector<float> targets;  ///< what the whole example is to give; empty: nothing
  double score = 0;            ///< of the answer
  ScoreKind score_kind = ScoreKind::kNone;
  uint64_t group = 0;         ///< answers to the same prompt have the same number; 0: no group
  bool is_cut_short = false;  ///< the answer reached the limit of its length when it was sampled
  std::string record_text;    ///< of a prompt that the run may answer: its record, as JSON
  std::vector<SequenceMedia> media;  ///< in order
};

/// What a labelled row is a part of, for objectives whose sums are apart.
enum class LabelKind : int64_t {
  kAnswer,
  kTail,   ///< of an answer, beyond the length of the shorter answer of its pair
  kPrompt  ///< of a chosen sequence
};

/// Rows [begin, end) of a batch.
struct RowSpan {
  int32_t begin = 0, end = 0;
  bool operator==(const RowSpan&) const = default;
};

/// What a teacher says of label tokens, of one after the other (data/teacher_scores.h).
struct TeacherRows {
  int64_t k = 0;
  std::vector<int32_t> tokens;  ///< [rows * k]
  std::vector<float>
      log_probs;  ///< [rows * (k + 1)]: of `tokens`, then of all other tokens together
};

/// Several documents concatenated; no padding. Documents do not attend to each other.
struct Batch {
  std::vector<int32_t> tokens, labels;  ///< [T]
  std::vector<int32_t> position_ids;    ///< [T] index of each token in its document
  /// [3 * T] positions for RoPE on three axes (M-RoPE: time, height, width), axis by axis; empty:
  /// `position_ids` on every axis.
  std::vector<int32_t> rope_positions;
  std::vector<int32_t> cu_seqlens;  ///< [n + 1], starts with 0, ends with T; no empty documents
  std::vector<int64_t>
      document_keys;  ///< [n] identity of each document in this step, for counter-based dropout
  /// [n] 1: a desirable answer, 0: an undesirable one; empty: they are not judged.
  std::vector<uint8_t> is_desirable;
  std::vector<std::vector<float>> targets;  ///< [n] Example::targets
  std::vector<SequenceMedia> images;  ///< in order; their `begin` and `end` are rows of the batch
  /// Runs of rows that get features, in order: features of all images one after another are those of
  /// all runs one after another. A run is of one image, whose rows may see each other both ways.
  std::vector<RowSpan> image_rows;
  /// In order; rows [begin, end) are those that get them.
  std::vector<SequenceMedia> features;
  int32_t max_seqlen = 0;
  int64_t label_tokens = 0;
  int64_t num_lost = 0;  ///< documents that lost their labels (make_batch)
  /// Of the labels, in their order: [label_tokens] each. A column that no document has is empty.
  LabelValues values;
  /// [n] sum of log p of each document's labels by the reference model, if the examples have it;
  /// nullopt: they have not.
  std::optional<std::vector<double>> reference_logps;
  /// [n] of sampled answers: advantages, what their records say (`Example::score`), and 1 where the
  /// answer was cut short. Empty: they are not sampled.
  std::vector<double> advantages, scores;
  std::vector<uint8_t> is_cut_short;
  std::optional<TeacherRows> teacher;  ///< of the rows with a label, if the examples have one
  int64_t num_tokens() const { return static_cast<int64_t>(tokens.size()); }
  /// Sum of the labels' weights.
  double label_weight() const;
};

}  // namespace sftrun::data
