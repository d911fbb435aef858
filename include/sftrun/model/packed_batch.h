#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "sftrun/data/example.h"
#include "sftrun/layers/backend.h"
#include "sftrun/layers/batch_context.h"
#include "sftrun/layers/distillation.h"
#include "sftrun/model/batch_sizes.h"
#include "sftrun/model/packed_images.h"
#include "sftrun/model/rope_cache.h"

namespace sftrun::model {

/// A micro-batch on its device. T tokens, N of them with a label.
///
/// In context parallelism (`context.share`) a rank has some of the T tokens, and of the label rows
/// those that are among them: `own_labels` of the N labels, which are all there with their values.
struct PackedBatch {
  at::Tensor staged;  ///< uint8: all data copied; most tensors below are views of it
  at::Tensor tokens;  ///< [T] int64
  /// [N] int64: rows with a label, ascending; padding may follow. For a head of scores: the row of each
  /// document that is scored (N documents).
  at::Tensor label_rows;
  data::RowSpan own_labels = {};  ///< the labels of `label_rows`; with all tokens here [0, N)
  at::Tensor labels;              ///< [N] int32
  /// [N] int64: number of the document that each labelled row belongs to; set if asked for.
  at::Tensor label_documents;
  /// [N] int64: data::LabelKind; set if some are asked for.
  at::Tensor label_kinds;
  /// By data::LabelColumn: [N] fp32, undefined where the batch does not have the column.
  std::array<at::Tensor, data::kNumLabelColumns> label_values;
  at::Tensor is_desirable;  ///< [documents] bool; undefined: they are not judged
  /// Scored documents: [documents] bool, whether each is a part of the loss, and [documents, most]
  /// fp64 `data::Batch::targets`, behind which -1 follows. Else undefined.
  at::Tensor counts, targets;
  /// [documents] fp64: `data::Batch::reference_logps`; undefined: the batch has none.
  at::Tensor reference_logps;
  /// Of sampled answers: [documents] fp64, fp64 and bool; undefined: they are not sampled.
  at::Tensor advantages, scores, is_cut_short;
  std::optional<layers::TeacherTargets> teacher;  ///< of the N rows; set if asked for
  /// How the N rows, which are those of `BatchOptions::pooling`, become embeddings; set if asked for
  std::optional<layers::PooledRows> pooled;
  at::Tensor grad_factor;           ///< [1] fp32: multiplies the loss's gradient; undefined: 1
  std::optional<BatchSizes> sizes;  ///< sizes that the batch was padded to
  std::optional<PackedImages> images;
  std::vector<PackedFeatures> features;  ///< one for each projector that the batch has features of
  layers::BatchContext context;
  int64_t num_tokens() const { return tokens.defined() ? tokens.size(0) : 0; }
  const at::Tensor& values_of(data::LabelColumn column) const {
    return label_values[static_cast<size_t>(column)];
  }
  /// Of values of all labels [N, …] those of `label_rows`; undefined if `of_labels` is.
  at::Tensor own_of(const at::Tensor& of_labels) const;
};

struct Randomness {
  uint64_t seed = 0;
  uint32_t step = 0;
  bool training = false;
};

/// Target device of micro-batches, and on CUDA the copy stream. Use one per model: LibTorch's
/// allocator caches memory per stream.
struct BatchTarget {
  // NOLINTNEXTLINE(google-explicit-constructor): a device is a batch target
  BatchTarget(at::Device to);
  at::Device device;
  std::optional<c10::Stream> copies;
  bool cuts_chunks = false;  ///< the model has gated delta nets: compute `Chunks` for each batch
  /// The model's tower; null: it takes no images.
  const spec::VisionSpec* vision = nullptr;
  bool has_scores = false;           ///< the model scores the last token of each document
  std::optional<int64_t> pad_token;  ///< it is not the last token where others are before it
  bool is_before_embedding = true;   ///< false: a stage of a pipeline that gets hidden states
  bool has_rope_axes = false;        ///< M-RoPE: rows of images have positions on three axes
  const layers::SequenceRanks* sequence_ranks =
      nullptr;                               ///< null: all tokens of a micro-batch are here
  std::shared_ptr<ImageSource> images = {};  ///< null: micro-batches have none
  const std::vector<FeatureProjector>* projectors = nullptr;  ///< of the model; null: none
  at::ScalarType features_dtype = at::kFloat;
  /// Takes note of images and features that cannot be read, of which zeros take the place; null: they are errors.
  data::MediaFaults* faults = nullptr;
};

/// Labels of other kinds than data::LabelKind::kAnswer. Documents are pairs then.
struct LabelKinds {
  bool tails = false;
  /// The prompts of chosen sequences get labels: all tokens but the first, and those of images.
  bool prompts_of_chosen = false;
  bool any() const { return tails || prompts_of_chosen; }
};

/// The rows of a document that are its embedding.
enum class PoolingRows : uint8_t { kLast, kAll };

/// How a batch is copied to a GPU.
struct BatchOptions {
  /// Copy asynchronously from page-locked memory.
  bool is_pinned = true;
  std::optional<double> grad_factor = {};  ///< `PackedBatch::grad_factor`
  bool with_documents = false;             ///< sets `PackedBatch::label_documents`
  LabelKinds kinds = {};                   ///< sets `PackedBatch::label_kinds`
  /// Sets `PackedBatch::teacher`.   @pre the batch has the teacher's rows, or no tokens
  std::optional<layers::Distillation> distillation = {};
  std::optional<PoolingRows> pooling = {};  ///< sets `PackedBatch::pooled`
  /// Pad to these sizes with unlabelled tokens, rows without a label and empty documents.
  std::optional<BatchSizes> sizes = {};
};

/// The part of a text that a head of scores reads, whose last token is scored, as transformers'
/// GenericForSequenceClassification chooses it: the last one that is not the padding token.
/// @param tokens not empty   @param pad_token nullopt: the last token is scored
std::span<const int32_t> scored_part(std::span<const int32_t> tokens,
                                     std::optional<int64_t> pad_token);

/// With `BatchTarget::sequence_ranks` the rows of this rank.
/// @param batch as formed by data::make_batch; may be empty (T = 0)
/// Loads its images, too.   @pre with images, options.sizes is not set
/// @throws DataError for an image if the target has no tower; data::MediaError for images and features that cannot be read, unless the
/// target takes note of them
PackedBatch prepare_batch(const data::Batch& batch, RopeCache& rope, const BatchTarget& target,
                          const Randomness& randomness, const BatchOptions& options = {});

}  // namespace sftrun::model
