#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sftrun/config/run_config.h"
#include "sftrun/data/batch_plan.h"
#include "sftrun/model/packed_batch.h"

/// What training minimises, as a function of the log-probabilities of the labels.
///
/// An objective is a sum of terms over the global batch, divided by their number: label tokens, by
/// their weights (SFT), or pairs of answers (DPO). It states that number (`count_terms`), which the caller sums
/// over all ranks and micro-batches, so that neither changes the loss or its gradient.
namespace sftrun::train {

class Teacher;

/// Values of the labelled rows of sampled answers: [rows] fp64.
struct SampledRows {
  at::Tensor policy;         ///< log p by the trained model
  at::Tensor reference;      ///< by the reference model; undefined: it is not read
  at::Tensor old_logps;      ///< by the model when it sampled; NaN, or undefined: not known
  at::Tensor sampled_logps;  ///< by the engine that sampled, in the same way
  at::Tensor documents;      ///< int64: the document of each row
  at::Tensor is_label;       ///< bool: false of a row that stands in for labels that are lost
};

/// Sums over the labelled rows of each document of a micro-batch, on the device: [documents] fp64.
/// What an objective's row does not ask for is undefined.
struct DocumentSums {
  at::Tensor policy;     ///< sum of log p of the answer's labels, by the trained model
  at::Tensor reference;  ///< by the reference model
  at::Tensor lengths;    ///< number of the answer's labels, 0 where a document has none
  /// Of labels beyond the length of the shorter answer of a pair, which `policy` and `reference` do
  /// not have then (`train.ld_alpha`).
  at::Tensor tail_policy, tail_reference;
  at::Tensor prompt_policy;  ///< of the labels of prompts, which chosen sequences alone have
  at::Tensor is_desirable;   ///< bool
  at::Tensor divergence;     ///< scalar: KTO's estimate for the global batch
  SampledRows rows;
  at::Tensor advantages, scores;  ///< of sampled answers
  at::Tensor is_cut_short;        ///< bool
};

/// A mean over the terms of the global batch, by its name in metrics.jsonl.
struct ObjectiveMetric {
  std::string name;  ///< as in TRL: "rewards/chosen"
  at::Tensor sum;    ///< scalar fp64 on the device: sum over the terms of this micro-batch
};

/// The gradients of documents' labels: [documents] fp64, undefined as in DocumentSums.
struct DocumentWeights {
  /// d(loss_sum) / d(-sum of log p of the document's labels). The gradient of each labelled row's
  /// cross-entropy is multiplied by the weight of its document.
  at::Tensor answers, tails, prompts;
  /// [rows] fp64: of each labelled row, in place of those of documents.
  at::Tensor rows;
};

/// An objective's value on a micro-batch; everything stays on the device.
struct ObjectiveValue {
  at::Tensor loss_sum;  ///< scalar fp64: sum of this micro-batch's terms
  DocumentWeights weights;
  std::vector<ObjectiveMetric> metrics;
};

/// What a head of scores gives of a micro-batch, and what it is to give.
struct DocumentScores {
  at::Tensor scores;   ///< [documents, labels] fp64
  at::Tensor counts;   ///< [documents] bool: false: it is no part of the loss
  at::Tensor targets;  ///< [documents, most] fp64: numbers of classes, then -1; margins
  bool wants_confusion = false;
};

/// The value of an objective on scores.
struct ScoreValue {
  at::Tensor loss_sum;  ///< scalar fp64: sum of this micro-batch's terms
  at::Tensor gradient;  ///< [documents, labels] fp32 of loss_sum
  std::vector<ObjectiveMetric> metrics;
  /// What evaluations count, if asked for. One label: [labels, labels] fp64, rows of the actual, columns of the predicted
  /// classes. Several, or above kMaxConfusion classes: [labels, 4], true positives, false negatives, false positives, true negatives.
  at::Tensor confusion;
};

/// What the terms of a batch are counted from, before any forward pass.
using BatchCounts = data::BinCounts;

/// The loss of the embeddings of a global batch (embeddings.h), known before the passes that give its
/// gradients. Examples are in the order of the batch.
struct EmbeddedBatch {
  at::Tensor gradients;  ///< [texts, hidden] fp32: of the sum of `losses` by each embedding
  at::Tensor losses;     ///< [examples] fp64
  std::vector<std::string> metric_names;
  at::Tensor metrics;  ///< [metrics, examples] fp64
};

/// What is known of a global batch before the passes that give gradients.
struct GlobalBatch {
  BatchCounts counts;
  std::shared_ptr<const EmbeddedBatch> embedded;  ///< null: the row does not embed
  at::Tensor divergence;  ///< scalar fp64 (divergence.h); undefined if the row needs none
};

/// The objective of `train.objective`: its row, and what computes it. Where the row's `needs_sums` is
/// false, each labelled row's cross-entropy is a term, or its mixture with a divergence from a teacher,
/// with the weight 1, and one pass suffices. Else a first pass gives sums over documents, `evaluate`
/// the weights, a second pass the gradients.
class Objective {
 public:
  /// @param teacher beside the student, which must outlive the objective; null: there is none, or its
  /// scores come with the batches
  explicit Objective(config::TrainConfig config, const Teacher* teacher = nullptr)
      : config_(std::move(config)), teacher_(teacher) {}

  const config::ObjectiveInfo& info() const { return config_.objective_info(); }
  const config::TrainConfig& config() const { return config_; }
  const Teacher* teacher() const { return teacher_; }

  /// How many terms the loss has in a (micro or global) batch. Loss, gradient and metrics are
  /// divided by the sum over the global batch.
  double count_terms(const BatchCounts& counts) const;

  /// Without host synchronisation. An empty micro-batch (no documents) has loss 0.
  /// @param totals of the global batch: a mean over other things than the terms is divided by these
  /// @pre info().needs_sums()
  ObjectiveValue evaluate(const DocumentSums& sums, const BatchCounts& totals) const;

  /// The value of scores [documents, labels] fp32 of a micro-batch, which may be empty.
  /// @param batch whose documents they are   @pre info().has_scores()
  ScoreValue evaluate_scores(const at::Tensor& scores, const model::PackedBatch& batch,
                             bool wants_confusion) const;

  /// Which rows are the embeddings of documents; nullopt: the row does not embed.
  std::optional<model::PoolingRows> pooling() const;

  /// Values of ScoreValue::confusion; 0: the objective counts none.
  int64_t confusion_size(int64_t num_labels) const;
  /// "f1_macro" and "f1_micro" (as scikit-learn has them, with 0 for 0 / 0) of such values; empty: of none.
  std::vector<std::pair<std::string, double>> metrics_of(const std::vector<double>& confusion,
                                                         int64_t num_labels) const;
  /// How a teacher's and the labels' losses are mixed; nullopt: there is no teacher.
  std::optional<layers::Distillation> distillation() const;

  /// Labels whose sums are apart from those of answers.
  model::LabelKinds label_kinds() const;

 private:
  config::TrainConfig config_;
  const Teacher* teacher_;
};

/// Sums of log p over the labelled rows of one kind, of each document: [documents] fp64.
/// @param losses [N] fp32: -log p of each labelled row
at::Tensor sums_by_document(const at::Tensor& losses, const model::PackedBatch& batch,
                            data::LabelKind kind);

/// Numbers of labels of each document's answer: [documents] fp64.
at::Tensor lengths_by_document(const model::PackedBatch& batch);

/// The factor of each labelled row's gradient (`GradScale::row_factors`): [N] fp32, the weight of
/// its document and kind.
at::Tensor row_factors(const DocumentWeights& weights, const model::PackedBatch& batch);

}  // namespace sftrun::train
