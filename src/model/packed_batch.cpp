#include "sftrun/model/packed_batch.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstring>

#include "sftrun/core/error.h"
#include "sftrun/data/batch_plan.h"
#include "sftrun/data/features.h"
#include "sftrun/kernels/delta_chunks.h"
#include "staging.h"

namespace sftrun::model {
namespace {

/// [T]: document index in the global batch and position of each token.
void write_token_keys(const data::Batch& batch, std::span<kernels::TokenKey> keys) {
  for (size_t document = 0; document + 1 < batch.cu_seqlens.size(); ++document) {
    const auto first = static_cast<size_t>(batch.cu_seqlens[document]),
               end = static_cast<size_t>(batch.cu_seqlens[document + 1]);
    for (size_t i = first; i < end; ++i) {
      keys[i] = {static_cast<uint32_t>(batch.document_keys[document]),
                 static_cast<uint32_t>(batch.position_ids[i])};
    }
  }
}

/// The rows with a label.
struct LabelledRows {
  std::vector<int64_t> rows, documents, kinds;
  std::vector<int32_t> labels;

  void add(size_t row, size_t document, int32_t label, data::LabelKind kind) {
    rows.push_back(static_cast<int64_t>(row));
    documents.push_back(static_cast<int64_t>(document));
    kinds.push_back(static_cast<int64_t>(kind));
    labels.push_back(label);
  }
};

/// Labels of each document.
std::vector<int64_t> label_counts(const data::Batch& batch) {
  std::vector<int64_t> counts(batch.cu_seqlens.size() - 1);
  for (size_t document = 0; document < counts.size(); ++document)
    counts[document] =
        batch.cu_seqlens[document + 1] - batch.cu_seqlens[document] -
        std::count(batch.labels.begin() + batch.cu_seqlens[document],
                   batch.labels.begin() + batch.cu_seqlens[document + 1], data::kIgnoreIndex);
  return counts;
}

/// Rows whose token stands for an image or features.
std::vector<bool> media_rows(const data::Batch& batch) {
  std::vector<bool> are_media(batch.tokens.size());
  const auto mark = [&](int64_t begin, int64_t end) {
    std::fill(are_media.begin() + begin, are_media.begin() + end, true);
  };
  for (const data::RowSpan& run : batch.image_rows) mark(run.begin, run.end);
  for (const data::SequenceMedia& media : batch.features) mark(media.begin, media.end);
  return are_media;
}

LabelledRows labelled_rows(const data::Batch& batch, const LabelKinds& kinds) {
  LabelledRows labelled;
  std::vector<int64_t> counts;
  std::vector<bool> are_media;
  if (kinds.any()) counts = label_counts(batch);
  if (kinds.prompts_of_chosen) are_media = media_rows(batch);
  for (size_t document = 0; document + 1 < batch.cu_seqlens.size(); ++document) {
    const auto end = static_cast<size_t>(batch.cu_seqlens[document + 1]);
    // A document without labels has lost them.
    const bool has_prompt = kinds.prompts_of_chosen && document % 2 == 0 && counts[document] > 0;
    const int64_t both =
        kinds.tails ? std::min(counts[document], counts[document ^ 1U]) : batch.num_tokens();
    int64_t number = 0;
    for (auto row = static_cast<size_t>(batch.cu_seqlens[document]); row < end; ++row) {
      if (batch.labels[row] != data::kIgnoreIndex)
        labelled.add(row, document, batch.labels[row],
                     number++ < both ? data::LabelKind::kAnswer : data::LabelKind::kTail);
      else if (has_prompt && row + 1 < end && !are_media[row + 1])
        labelled.add(row, document, batch.tokens[row + 1], data::LabelKind::kPrompt);
    }
  }
  return labelled;
}

size_t scored_row(const data::Batch& batch, size_t document, std::optional<int64_t> pad_token) {
  const auto first = static_cast<size_t>(batch.cu_seqlens[document]),
             end = static_cast<size_t>(batch.cu_seqlens[document + 1]);
  const std::span tokens(batch.tokens);
  return first + scored_part(tokens.subspan(first, end - first), pad_token).size() - 1;
}

/// One row of each document, without a token to predict.
LabelledRows scored_rows(const data::Batch& batch, std::optional<int64_t> pad_token) {
  LabelledRows scored;
  for (size_t document = 0; document + 1 < batch.cu_seqlens.size(); ++document)
    scored.add(scored_row(batch, document, pad_token), document, data::kIgnoreIndex,
               data::LabelKind::kAnswer);
  return scored;
}

/// The rows that are pooled, without tokens to predict.
LabelledRows pooled_rows(const data::Batch& batch, PoolingRows pooling) {
  LabelledRows pooled;
  for (size_t document = 0; document + 1 < batch.cu_seqlens.size(); ++document) {
    const auto first = static_cast<size_t>(batch.cu_seqlens[document]),
               end = static_cast<size_t>(batch.cu_seqlens[document + 1]);
    for (size_t row = pooling == PoolingRows::kLast ? end - 1 : first; row < end; ++row)
      pooled.add(row, document, data::kIgnoreIndex, data::LabelKind::kAnswer);
  }
  return pooled;
}

/// A row without a label; there is one if labels are padded.
int64_t unlabelled_row(const data::Batch& batch) {
  for (int64_t row = batch.num_tokens() - 1; row >= 0; --row)
    if (batch.labels[static_cast<size_t>(row)] == data::kIgnoreIndex) return row;
  return 0;
}

/// Pads up to `count` with a row without a label, of document 0, as its loss is 0.
void pad(LabelledRows& labelled, const data::Batch& batch, int64_t count) {
  const int64_t own = std::ssize(labelled.rows);
  SFTRUN_CHECK(own <= count && count <= batch.num_tokens());
  if (own == count) return;
  const auto size = static_cast<size_t>(count);
  labelled.rows.resize(size, unlabelled_row(batch));
  labelled.labels.resize(size, data::kIgnoreIndex);
  labelled.documents.resize(size, 0);
  labelled.kinds.resize(size, static_cast<int64_t>(data::LabelKind::kAnswer));
}

/// One value for each labelled row; rows that stand in for labels that are lost get zeros.
void add_label_values(Staging& staging, const data::LabelValues& values,
                      const LabelledRows& labelled, PackedBatch& packed) {
  for (size_t i = 0; i < data::kNumLabelColumns; ++i) {
    const std::vector<float>& column = values.columns[i];
    if (column.empty()) continue;
    SFTRUN_CHECK(column.size() <= labelled.rows.size());
    staging.add<float>(
        std::ssize(labelled.rows),
        [&column](std::span<float> room) {
          std::fill(std::copy(column.begin(), column.end(), room.begin()), room.end(), 0.0F);
        },
        packed.label_values[i]);
  }
}

/// The labels whose rows this rank has.
data::RowSpan own_labels(const LabelledRows& labelled, const layers::SequenceShare* share) {
  const auto all = static_cast<int32_t>(labelled.rows.size());
  if (share == nullptr) return {0, all};
  SFTRUN_CHECK(std::is_sorted(labelled.rows.begin(), labelled.rows.end()));
  const auto number_of = [&](int64_t row) {
    const auto at = std::lower_bound(labelled.rows.begin(), labelled.rows.end(), row);
    return static_cast<int32_t>(at - labelled.rows.begin());
  };
  return {number_of(share->begin()), number_of(share->end())};
}

/// `packed.own_labels` of the rows, counted from this rank's first one.
std::vector<int64_t> own_label_rows(const LabelledRows& labelled, const PackedBatch& packed) {
  const layers::SequenceShare* share = packed.context.share.get();
  const data::RowSpan own = packed.own_labels;
  std::vector<int64_t> rows(labelled.rows.begin() + own.begin, labelled.rows.begin() + own.end);
  for (int64_t& row : rows) row -= share == nullptr ? 0 : share->begin();
  return rows;
}

/// @param labelled, own_rows must outlive `staging.send`
void add_labels(Staging& staging, const LabelledRows& labelled,
                const std::vector<int64_t>& own_rows, const BatchOptions& options,
                PackedBatch& packed) {
  staging.add_copy<int64_t>(own_rows, packed.label_rows);
  staging.add_copy<int32_t>(labelled.labels, packed.labels);
  if (options.with_documents) staging.add_copy<int64_t>(labelled.documents, packed.label_documents);
  if (options.kinds.any()) staging.add_copy<int64_t>(labelled.kinds, packed.label_kinds);
}

/// The teacher's rows, padded up to `count` rows.
data::TeacherRows padded_teacher(const data::Batch& batch, const BatchOptions& options,
                                 int64_t count) {
  if (!options.distillation) return {};
  SFTRUN_CHECK(batch.teacher.has_value());
  data::TeacherRows rows = *batch.teacher;
  const auto size = static_cast<size_t>(count), k = static_cast<size_t>(rows.k);
  SFTRUN_CHECK(rows.tokens.size() <= size * k && rows.log_probs.size() <= size * (k + 1));
  rows.tokens.resize(size * k, 0);
  rows.log_probs.resize(size * (k + 1), 0);
  return rows;
}

/// @param rows must outlive `staging.send`
void add_teacher(Staging& staging, const data::TeacherRows& rows, const BatchOptions& options,
                 PackedBatch& packed) {
  if (!options.distillation) return;
  layers::TeacherTargets& targets = packed.teacher.emplace();
  targets.mix = *options.distillation;
  staging.add_copy<int32_t>(rows.tokens, targets.tokens);
  staging.add_copy<float>(rows.log_probs, targets.log_probs);
}

/// cu_seqlens, padded up to `count` documents with empty ones.
void add_documents(Staging& staging, const data::Batch& batch, int64_t count, at::Tensor& to) {
  SFTRUN_CHECK(static_cast<int64_t>(batch.cu_seqlens.size()) <= count + 1);
  staging.add<int32_t>(
      count + 1,
      [&cu_seqlens = batch.cu_seqlens](std::span<int32_t> room) {
        const auto end = std::copy(cu_seqlens.begin(), cu_seqlens.end(), room.begin());
        std::fill(end, room.end(), cu_seqlens.back());
      },
      to);
}

/// Step number and gradient factor, which kernels read on the device.
void add_step(Staging& staging, uint32_t step, std::optional<double> grad_factor,
              PackedBatch& packed) {
  staging.add<int32_t>(
      1, [step](std::span<int32_t> room) { room[0] = static_cast<int32_t>(step); },
      packed.context.step_device);
  if (!grad_factor) return;
  staging.add<float>(
      1, [grad_factor](std::span<float> room) { room[0] = static_cast<float>(*grad_factor); },
      packed.grad_factor);
}

/// Token keys for dropout and noise on CUDA; CPU kernels read the host array.
void add_token_keys(Staging& staging, const data::Batch& batch, layers::BatchContext& context) {
  static_assert(sizeof(kernels::TokenKey) == 2 * sizeof(int32_t));
  staging.add<int32_t>(
      2 * batch.num_tokens(),
      [&batch](std::span<int32_t> room) {
        std::vector<kernels::TokenKey> keys(room.size() / 2);
        write_token_keys(batch, keys);
        std::memcpy(room.data(), keys.data(), room.size_bytes());
      },
      context.token_keys_device);
}

/// @param arrays must outlive `staging.send`
void add_chunks(Staging& staging, const kernels::ChunkArrays& arrays, kernels::Chunks& chunks) {
  chunks.steps = arrays.steps;
  staging.add_copy<int64_t>(arrays.tokens, chunks.tokens);
  staging.add_copy<float>(arrays.real, chunks.real);
  staging.add_copy<int64_t>(arrays.previous, chunks.previous);
  staging.add_copy<int64_t>(arrays.following, chunks.following);
  staging.add_copy<float>(arrays.has_following, chunks.has_following);
  staging.add_copy<int64_t>(arrays.places, chunks.places);
}

void add_rope_rows(Staging& staging, const RopeRows& rows, DeviceRopeRows& on_device) {
  if (!rows.rows.empty()) staging.add_copy<int64_t>(rows.rows, on_device.rows);
  if (rows.cos.empty()) return;
  staging.add_copy<float>(rows.cos, on_device.cos);
  staging.add_copy<float>(rows.sin, on_device.sin);
}

/// The batch's own sizes, without padding. Where all documents lost their labels, one row of it stands for them.
BatchSizes sizes_of(const data::Batch& batch, const LabelledRows& labelled) {
  const int64_t fewest_labels = batch.num_lost > 0 ? 1 : 0;
  return {batch.num_tokens(), std::max(fewest_labels, std::ssize(labelled.rows)),
          static_cast<int64_t>(batch.cu_seqlens.size()) - 1, batch.max_seqlen};
}

/// Positions on three axes, as `Batch::rope_positions`; empty: those of the documents.
using RopePositions = std::vector<int32_t>;

/// Of rows of the whole micro-batch those of this rank; undefined if `rows` is.
at::Tensor own_rows(const at::Tensor& rows, const layers::SequenceShare& share, int64_t dim = 0) {
  return rows.defined() ? rows.narrow(dim, share.begin(), share.end() - share.begin()) : rows;
}

/// Drops tokens and positions of other ranks. What is of documents and labels stays whole.
void keep_own_rows(PackedBatch& packed, at::Tensor& positions, std::vector<DeviceRopeRows>& ropes) {
  layers::BatchContext& context = packed.context;
  if (!context.share) return;
  const layers::SequenceShare& share = *context.share;
  packed.tokens = own_rows(packed.tokens, share);
  positions = own_rows(positions, share, positions.dim() - 1);
  for (DeviceRopeRows& rope : ropes) {
    rope.rows = own_rows(rope.rows, share);
    for (at::Tensor* angles : {&rope.cos, &rope.sin})
      if (angles->defined())
        *angles = own_rows(angles->view({share.num_rows(), -1}), share).flatten();
  }
  context.token_keys_device = own_rows(context.token_keys_device, share);
  if (context.token_keys.empty()) return;
  context.token_keys.erase(context.token_keys.begin() + share.end(), context.token_keys.end());
  context.token_keys.erase(context.token_keys.begin(), context.token_keys.begin() + share.begin());
}

/// Copies all arrays of the batch to the device in one transfer.
void send(const data::Batch& batch, const RopePositions& on_axes, RopeCache& rope,
          const BatchTarget& target, const BatchOptions& options, PackedBatch& packed) {
  layers::BatchContext& context = packed.context;
  LabelledRows labelled = options.pooling     ? pooled_rows(batch, *options.pooling)
                          : target.has_scores ? scored_rows(batch, target.pad_token)
                                              : labelled_rows(batch, options.kinds);
  const BatchSizes sizes = packed.sizes.value_or(sizes_of(batch, labelled));
  pad(labelled, batch, sizes.labels);
  packed.own_labels = own_labels(labelled, context.share.get());
  const std::vector<int64_t> label_rows = own_label_rows(labelled, packed);
  Staging staging(target, options.is_pinned);
  at::Tensor positions;
  staging.add_copy<int64_t>(batch.tokens, packed.tokens);
  const bool has_axes = !on_axes.empty();
  SFTRUN_CHECK(!has_axes || !packed.sizes);
  staging.add_copy<int64_t>(has_axes ? on_axes : batch.position_ids, positions);
  add_labels(staging, labelled, label_rows, options, packed);
  // Labels of prompts, which have no values, are between those of answers.
  SFTRUN_CHECK(!options.kinds.prompts_of_chosen || batch.values.empty());
  add_label_values(staging, batch.values, labelled, packed);
  const data::TeacherRows teacher = padded_teacher(batch, options, sizes.labels);
  add_teacher(staging, teacher, options, packed);
  if (!batch.is_desirable.empty())
    staging.add_copy<uint8_t>(batch.is_desirable, packed.is_desirable);
  if (target.device.is_cuda()) {
    add_documents(staging, batch, sizes.documents, context.cu_seqlens_device);
    add_token_keys(staging, batch, context);
    add_step(staging, context.step, options.grad_factor, packed);
  }
  kernels::ChunkArrays chunk_arrays;
  const auto chunks = std::make_shared<kernels::Chunks>();
  if (target.cuts_chunks) {
    chunk_arrays = kernels::chunk_arrays(batch.cu_seqlens);
    add_chunks(staging, chunk_arrays, *chunks);
  }
  const std::vector<RopeRows> rope_rows = rope.rows_of(batch.cu_seqlens, on_axes);
  std::vector<DeviceRopeRows> device_rows(rope_rows.size());
  for (size_t i = 0; i < rope_rows.size(); ++i)
    add_rope_rows(staging, rope_rows[i], device_rows[i]);
  packed.staged = staging.send();
  if (packed.teacher) {
    packed.teacher->tokens = packed.teacher->tokens.view({sizes.labels, teacher.k});
    packed.teacher->log_probs = packed.teacher->log_probs.view({sizes.labels, teacher.k + 1});
  }
  if (packed.is_desirable.defined()) packed.is_desirable = packed.is_desirable.to(at::kBool);
  if (target.device.is_cuda()) context.token_keys_device = context.token_keys_device.view({-1, 2});
  if (target.cuts_chunks) {
    chunks->tokens = chunks->tokens.view({-1, kernels::kChunk});
    chunks->real = chunks->real.view({-1, kernels::kChunk});
    context.chunks = chunks;
  }
  if (has_axes) positions = positions.view({-1, batch.num_tokens()});
  keep_own_rows(packed, positions, device_rows);
  context.ropes = rope.angles(positions, device_rows, options.is_pinned);
}

PackedBatch packed_of(const data::Batch& batch, const RopePositions& on_axes, RopeCache& rope,
                      const BatchTarget& target, const Randomness& randomness,
                      const BatchOptions& options) {
  PackedBatch packed;
  packed.sizes = options.sizes;
  layers::BatchContext& context = packed.context;
  context.cu_seqlens = batch.cu_seqlens;
  context.max_seqlen =
      options.sizes ? static_cast<int32_t>(options.sizes->longest) : batch.max_seqlen;
  context.dropout_seed = randomness.seed;
  context.step = randomness.step;
  context.training = randomness.training;
  context.is_for_graph = options.sizes.has_value();
  if (target.sequence_ranks != nullptr)
    context.share =
        std::make_shared<layers::SequenceShare>(*target.sequence_ranks, batch.num_tokens());
  if (target.device.is_cpu()) {
    context.token_keys.resize(batch.tokens.size());
    write_token_keys(batch, context.token_keys);
  }
  send(batch, on_axes, rope, target, options, packed);
  return packed;
}

/// The runs of rows with images in each document, where the model's attention sees them both ways.
/// Neighbouring images are one run, as in transformers.
void add_both_ways(const std::vector<data::RowSpan>& rows, const BatchTarget& target,
                   const BatchOptions& options, PackedBatch& packed) {
  if (target.vision->both_ways == spec::BothWays::kNever) return;
  std::vector<kernels::RowSpan>& spans = packed.context.both_ways;
  const std::vector<int32_t>& documents = packed.context.cu_seqlens;
  for (const data::RowSpan& run : rows) {
    const bool begins_document = std::binary_search(documents.begin(), documents.end(), run.begin);
    if (spans.empty() || spans.back().end != run.begin || begins_document)
      spans.push_back({run.begin, run.end});
    else
      spans.back().end = run.end;
  }
  if (target.device.is_cpu()) return;
  at::Tensor ends = at::empty({documents.back()}, at::kInt);
  kernels::write_key_ends(spans,
                          {ends.mutable_data_ptr<int32_t>(), static_cast<size_t>(ends.numel())});
  packed.context.key_ends_device = sent(ends, target.device, options.is_pinned);
}

/// On the host.
FeaturePlaces places_of(const std::vector<data::RowSpan>& runs, const PackedBatch& packed) {
  std::vector<at::Tensor> numbers;
  for (const data::RowSpan& run : runs) numbers.push_back(at::arange(run.begin, run.end));
  const at::Tensor rows = at::cat(numbers);
  const layers::SequenceShare* share = packed.context.share.get();
  if (share == nullptr) return {rows, {}};
  const at::Tensor own =
      at::logical_and(rows >= share->begin(), rows < share->end()).nonzero().flatten();
  return {rows.index_select(0, own) - share->begin(), own};
}

/// @param keys must outlive `staging.send`
void add_keys(Staging& staging, const layers::BatchContext& keys, at::Tensor& on_device) {
  const std::vector<kernels::TokenKey>& all = keys.token_keys;
  if (all.empty()) return;
  staging.add<int32_t>(
      static_cast<int64_t>(2 * all.size()),
      [&all](std::span<int32_t> room) { std::memcpy(room.data(), all.data(), room.size_bytes()); },
      on_device);
}

/// What attention's kernels read of documents that are seen whole.
void add_whole_documents(Staging& staging, kernels::BatchMetadata& seen) {
  if (seen.both_ways.empty()) return;
  staging.add_copy<int32_t>(seen.cu_seqlens, seen.cu_seqlens_device);
  staging.add<int32_t>(
      seen.cu_seqlens.back(),
      [&seen](std::span<int32_t> ends) { kernels::write_key_ends(seen.both_ways, ends); },
      seen.key_ends_device);
}

/// Copies images and their layout to a GPU in one transfer.
void send(PackedImages& images, const BatchTarget& target, const BatchOptions& options) {
  Staging staging(target, options.is_pinned);
  layers::TowerLayout& layout = images.layout;
  for (at::Tensor* each : {&images.input.patches, &images.input.feature_rows, &images.places.rows,
                           &images.places.numbers, &layout.order, &layout.positions,
                           &layout.position_weights, &layout.cos, &layout.sin}) {
    if (!each->defined()) continue;
    *each = each->contiguous();
    staging.add_tensor(*each, *each);
  }
  for (layers::BatchContext* context : {&layout.rows, &layout.merged})
    add_keys(staging, *context, context->token_keys_device);
  for (kernels::BatchMetadata* seen : {&layout.seen_in_tiles, &layout.seen_in_windows})
    add_whole_documents(staging, *seen);
  staging.send();
  for (layers::BatchContext* context : {&layout.rows, &layout.merged}) {
    if (!context->token_keys_device.defined()) continue;
    context->token_keys_device = context->token_keys_device.view({-1, 2});
    context->token_keys.clear();
  }
}

/// @pre the batch has images
void add_images(const data::Batch& batch, const BatchTarget& target, const BatchOptions& options,
                PackedBatch& packed) {
  add_both_ways(batch.image_rows, target, options, packed);
  if (!target.is_before_embedding) return;
  PackedImages& images = packed.images.emplace();
  images.input = target.images->load(batch, target.faults);
  images.layout = layers::tower_layout(*target.vision, images.input.tiles, packed.context);
  images.places = places_of(batch.image_rows, packed);
  if (!target.device.is_cpu()) send(images, target, options);
  if (target.vision->embedded_as >= 0)
    packed.tokens.index_fill_(0, images.places.rows, target.vision->embedded_as);
}

/// @param of the features of one projector
at::Tensor read_values(const data::Batch& batch, const std::vector<const data::SequenceMedia*>& of,
                       const FeatureProjector& projector, data::MediaFaults* faults) {
  std::vector<at::Tensor> values;
  for (const data::SequenceMedia* media : of) {
    at::Tensor rows = at::empty({media->num_tokens, projector.input_width});
    const std::span<float> to(rows.mutable_data_ptr<float>(), static_cast<size_t>(rows.numel()));
    const bool is_read = data::read_of_batch(batch, *media, faults,
                                             [&] { data::read_features(*media, projector, to); });
    if (!is_read) rows.zero_();
    values.push_back(rows);
  }
  return at::cat(values);
}

/// @throws data::MediaError for files of features that changed, or cannot be read
void add_features(const data::Batch& batch, const BatchTarget& target, const BatchOptions& options,
                  PackedBatch& packed) {
  if (batch.features.empty() || !target.is_before_embedding) return;
  for (size_t i = 0; i < target.projectors->size(); ++i) {
    const auto number = static_cast<int64_t>(i);
    std::vector<const data::SequenceMedia*> own;
    std::vector<data::RowSpan> rows;
    for (const data::SequenceMedia& media : batch.features) {
      if (media.projector != number) continue;
      own.push_back(&media);
      rows.push_back({static_cast<int32_t>(media.begin), static_cast<int32_t>(media.end)});
    }
    if (own.empty()) continue;
    const at::Tensor values =
        read_values(batch, own, (*target.projectors)[i], target.faults).to(target.features_dtype);
    FeaturePlaces places = places_of(rows, packed);
    for (at::Tensor* numbers : {&places.rows, &places.numbers})
      if (numbers->defined()) *numbers = sent(*numbers, target.device, options.is_pinned);
    packed.features.push_back({.projector = number,
                               .values = sent(values, target.device, options.is_pinned),
                               .places = std::move(places)});
  }
}

void add_samples(const data::Batch& batch, const BatchTarget& target, const BatchOptions& options,
                 PackedBatch& packed) {
  if (!options.with_documents || batch.advantages.empty()) return;
  const auto on_device = [&](const at::Tensor& host) {
    return sent(host, target.device, options.is_pinned);
  };
  packed.advantages = on_device(at::tensor(batch.advantages, at::kDouble));
  packed.scores = on_device(at::tensor(batch.scores, at::kDouble));
  packed.is_cut_short = on_device(at::tensor(batch.is_cut_short, at::kByte).to(at::kBool));
}

void add_reference(const data::Batch& batch, const BatchTarget& target, const BatchOptions& options,
                   PackedBatch& packed) {
  if (!batch.reference_logps || !options.with_documents) return;
  packed.reference_logps =
      sent(at::tensor(*batch.reference_logps, at::kDouble), target.device, options.is_pinned);
}

/// Of documents that are scored.
void add_targets(const data::Batch& batch, const BatchTarget& target, const BatchOptions& options,
                 PackedBatch& packed) {
  if (!target.has_scores) return;
  const auto num_documents = static_cast<int64_t>(batch.cu_seqlens.size()) - 1;
  const std::vector<int64_t> labels = label_counts(batch);
  at::Tensor counts = at::empty({num_documents}, at::kBool);
  for (int64_t i = 0; i < num_documents; ++i) {
    const auto at = static_cast<size_t>(i);
    const bool is_one_token = batch.cu_seqlens[at + 1] - batch.cu_seqlens[at] == 1;
    counts.mutable_data_ptr<bool>()[i] = labels[at] > 0 || is_one_token;
  }
  packed.counts = sent(counts, target.device, options.is_pinned);
  SFTRUN_CHECK_EQ(std::ssize(batch.targets), num_documents);
  int64_t most = 1;
  for (const std::vector<float>& of_document : batch.targets)
    most = std::max(most, std::ssize(of_document));
  at::Tensor targets = at::full({num_documents, most}, -1.0, at::kDouble);
  for (int64_t i = 0; i < num_documents; ++i)
    std::ranges::copy(batch.targets[static_cast<size_t>(i)],
                      targets.mutable_data_ptr<double>() + i * most);
  packed.targets = sent(targets, target.device, options.is_pinned);
}

/// How the rows that are pooled become embeddings.
void add_pooling(const data::Batch& batch, const BatchTarget& target, const BatchOptions& options,
                 PackedBatch& packed) {
  if (!options.pooling) return;
  std::vector<int64_t> documents, lengths;
  std::vector<float> weights;
  for (size_t document = 0; document + 1 < batch.cu_seqlens.size(); ++document) {
    const int64_t rows = *options.pooling == PoolingRows::kLast
                             ? 1
                             : batch.cu_seqlens[document + 1] - batch.cu_seqlens[document];
    const auto count = static_cast<size_t>(rows);
    documents.insert(documents.end(), count, static_cast<int64_t>(document));
    weights.insert(weights.end(), count, 1.0F / static_cast<float>(rows));
    lengths.push_back(rows);
  }
  const auto on_device = [&](const at::Tensor& host) {
    return sent(host, target.device, options.is_pinned);
  };
  packed.pooled = {.documents = on_device(at::tensor(documents, at::kLong)),
                   .lengths = on_device(at::tensor(lengths, at::kLong)),
                   .weights = on_device(at::tensor(weights, at::kFloat))};
}

/// @throws DataError if the target has no tower
void require_tower(const data::Batch& batch, const BatchTarget& target) {
  if (target.vision != nullptr && target.images != nullptr) return;
  throw DataError("a record has an image, and the model was loaded without its vision tower",
                  batch.images.empty() ? "" : data::name_of(batch.images[0].media),
                  "with data.streaming, let a record with images be among the first 1000 of a "
                  "data set");
}

/// The batch with at least one token for each rank that shares it: its last document goes on with
/// tokens that have no label, which the others do not see.
data::Batch with_rows_for(int64_t ranks, const data::Batch& batch) {
  data::Batch longer = batch;
  while (longer.num_tokens() < ranks) {
    longer.tokens.push_back(longer.tokens.back());
    longer.position_ids.push_back(longer.position_ids.back() + 1);
    longer.labels.push_back(data::kIgnoreIndex);
  }
  longer.cu_seqlens.back() = static_cast<int32_t>(longer.num_tokens());
  longer.max_seqlen =
      std::max(longer.max_seqlen, longer.cu_seqlens.back() - *(longer.cu_seqlens.end() - 2));
  return longer;
}

}  // namespace

at::Tensor PackedBatch::own_of(const at::Tensor& of_labels) const {
  return of_labels.defined()
             ? of_labels.narrow(0, own_labels.begin, own_labels.end - own_labels.begin)
             : of_labels;
}

at::Tensor FeaturePlaces::of_rows(const at::Tensor& all) const {
  return numbers.defined() ? all.index_select(0, numbers) : all;
}

at::Tensor FeaturePlaces::of_all(const at::Tensor& gradient, int64_t num_features) const {
  if (!numbers.defined()) return gradient;
  std::vector<int64_t> shape = gradient.sizes().vec();
  shape[0] = num_features;
  return at::zeros(shape, gradient.options()).index_copy_(0, numbers, gradient);
}

void put_rows(at::Tensor& hidden, const at::Tensor& rows, const at::Tensor& features) {
  SFTRUN_CHECK_EQ(features.size(0), rows.numel());
  hidden.index_copy_(0, rows, features);
}

BatchTarget::BatchTarget(at::Device to) : device(to) {
  if (to.is_cuda()) copies = c10::impl::VirtualGuardImpl(to.type()).getStreamFromGlobalPool(to);
}

std::span<const int32_t> scored_part(std::span<const int32_t> tokens,
                                     std::optional<int64_t> pad_token) {
  if (!pad_token) return tokens;
  size_t size = tokens.size();
  while (size > 1 && tokens[size - 1] == *pad_token) --size;
  return tokens.first(size);
}

PackedBatch prepare_batch(const data::Batch& batch, RopeCache& rope, const BatchTarget& target,
                          const Randomness& randomness, const BatchOptions& options) {
  if (batch.num_tokens() == 0) {
    PackedBatch empty;
    add_reference(batch, target, options, empty);
    return empty;
  }
  if (target.sequence_ranks != nullptr && batch.num_tokens() < target.sequence_ranks->size()) {
    SFTRUN_CHECK(batch.image_rows.empty() && batch.rope_positions.empty());
    return prepare_batch(with_rows_for(target.sequence_ranks->size(), batch), rope, target,
                         randomness, options);
  }
  const bool has_images = !batch.image_rows.empty();
  const RopePositions& own = batch.rope_positions;
  if (options.sizes) {
    SFTRUN_CHECK(!has_images && batch.features.empty());
    return packed_of(filled_up(batch, *options.sizes), own, rope, target, randomness, options);
  }
  if (has_images) require_tower(batch, target);
  const bool makes_axes = has_images && target.has_rope_axes && own.empty();
  PackedBatch packed = packed_of(
      batch, makes_axes ? data::rope_positions_of(batch, target.vision->merger.side) : own, rope,
      target, randomness, options);
  if (has_images) add_images(batch, target, options, packed);
  add_features(batch, target, options, packed);
  add_reference(batch, target, options, packed);
  add_samples(batch, target, options, packed);
  add_targets(batch, target, options, packed);
  add_pooling(batch, target, options, packed);
  return packed;
}

}  // namespace sftrun::model
