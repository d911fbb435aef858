#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "sftrun/data/batch_plan.h"
#include "sftrun/model/stage.h"
#include "sftrun/parallel/communicator.h"
#include "sftrun/parallel/mesh.h"
#include "sftrun/train/objective.h"

/// Contrastive losses over all texts of a global batch, whose gradients are computed in two passes
/// (GradCache, arXiv:2101.06983): the first gives the embeddings of all texts, without saved
/// activations, from which every rank computes the same loss and its gradient by each embedding; the
/// second is an ordinary forward and backward pass of each micro-batch with these gradients. So loss and
/// gradients do not depend on micro-batches, ranks and packing.
namespace sftrun::train {

/// This rank's micro-batches of a global batch.
struct EmbeddedMicroBatches {
  int64_t num_micro_batches = 0;
  std::function<data::Batch(int64_t)> micro_batch;  ///< may be empty
  int64_t num_texts = 0;                            ///< of the global batch
};

/// The embeddings of all texts of the global batch, in its order: [texts, hidden] fp32 on the device, before they are
/// normalised. The same on every rank.   @param randomness of the step, as of the second pass
at::Tensor embed_texts(const model::Stage& stage, const Objective& objective,
                       const EmbeddedMicroBatches& batches, const model::Randomness& randomness,
                       bool is_pinned, parallel::Communicator& comm, const parallel::Mesh& mesh);

/// Numbers that equal texts, and they alone, have in common: [texts] int64 on the CPU, in the order of the bins.
at::Tensor text_numbers(const data::ExampleStore& examples, const std::vector<data::Bin>& bins);

/// Whether no query has a text that its own is told from: the texts that fit, and those that do not, are all the same, or there
/// are none that do not and the queries are. The loss and its gradient are 0 then.
/// @param texts of `text_numbers`: one example is none of these cases, as the last of an epoch may be alone
/// @param sequences texts of an example
bool tells_nothing_apart(const at::Tensor& texts, int64_t sequences);
/// The same of all examples of a data set.
bool tells_nothing_apart(const data::ExampleStore& examples, int64_t sequences);

/// The loss of the embeddings, which is a sum over examples (objectives/embed.cpp).
/// @param embeddings of `embed_texts`   @param texts of `text_numbers`
/// @param with_gradients else `EmbeddedBatch::gradients` is undefined
EmbeddedBatch contrast(const at::Tensor& embeddings, const at::Tensor& texts,
                       const config::TrainConfig& config, bool with_gradients);

/// What the examples of a micro-batch have of the sums of a global batch.
/// @param document_keys `data::Batch::document_keys`
ScoreValue share_of(const EmbeddedBatch& embedded, const std::vector<int64_t>& document_keys,
                    int64_t sequences);

}  // namespace sftrun::train
