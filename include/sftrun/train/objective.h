#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sftrun/config/run_config.h"

/// What training minimises, as a function of the log-probabilities of the labels.
///
/// An objective is a sum of terms over the global batch, divided by their number: label tokens
/// (SFT) or pairs of answers (DPO). It states that number (`count_terms`), which the caller sums
/// over all ranks and micro-batches, so that neither changes the loss or its gradient.
namespace sftrun::train {

/// Sums over the labelled rows of each document of a micro-batch, on the device.
struct DocumentSums {
  at::Tensor policy;  ///< [documents] fp64: sum of log p of the labels, by the trained model
  at::Tensor
      reference;  ///< [documents] fp64: by the reference model; undefined if the row needs none
  at::Tensor lengths;  ///< [documents] fp64: number of labels, 0 where a document has none
};

/// A mean over the terms of the global batch, by its name in metrics.jsonl.
struct ObjectiveMetric {
  std::string name;  ///< as in TRL: "rewards/chosen"
  at::Tensor sum;    ///< scalar fp64 on the device: sum over the terms of this micro-batch
};

/// An objective's value on a micro-batch; everything stays on the device.
struct ObjectiveValue {
  at::Tensor loss_sum;  ///< scalar fp64: sum of this micro-batch's terms
  /// [documents] fp64: d(loss_sum) / d(-sum of log p of the document's labels). The gradient of
  /// each labelled row's cross-entropy is multiplied by the weight of its document.
  at::Tensor weights;
  std::vector<ObjectiveMetric> metrics;
};

/// What the terms of a micro-batch are counted from, before any forward pass.
struct BatchCounts {
  int64_t label_tokens = 0, documents = 0;
};

/// The objective of `train.objective`: its row, and what computes it. Where the row's `needs_sums` is
/// false, each labelled row's cross-entropy is a term, its weight 1, and one pass suffices. Else a
/// first pass gives sums over documents, `evaluate` the weights, a second pass the gradients.
class Objective {
 public:
  explicit Objective(config::TrainConfig config) : config_(std::move(config)) {}

  const config::ObjectiveInfo& info() const { return config_.objective_info(); }

  /// How many terms the loss has in a (micro or global) batch. Loss, gradient and metrics are
  /// divided by the sum over the global batch.
  int64_t count_terms(const BatchCounts& counts) const;

  /// Without host synchronisation. An empty micro-batch (no documents) has loss 0.
  /// @pre info().needs_sums()
  ObjectiveValue evaluate(const DocumentSums& sums) const;

 private:
  config::TrainConfig config_;
};

/// Sums of log p over each document's labelled rows: [documents] fp64.
/// @param losses [N] fp32: -log p of each labelled row   @param documents [N] int64: the document
/// of each labelled row (`PackedBatch::label_documents`)
at::Tensor sums_by_document(const at::Tensor& losses, const at::Tensor& documents,
                            int64_t num_documents);

/// Numbers of labels of each document: [documents] fp64.
/// @param labels [N] int32: of each labelled row; `data::kIgnoreIndex` in rows of padding
at::Tensor lengths_by_document(const at::Tensor& labels, const at::Tensor& documents,
                               int64_t num_documents);

/// The factor of each labelled row's gradient (`GradScale::row_factors`): [N] fp32, the weight of
/// its document.
at::Tensor row_factors(const ObjectiveValue& value, const at::Tensor& documents);

}  // namespace sftrun::train
