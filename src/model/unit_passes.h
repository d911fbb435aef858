#pragma once

#include "sftrun/model/decoder.h"
#include "sftrun/model/micro_batch_run.h"

/// What the units do in the passes of a micro-batch. `Stage` calls these functions in the order of the
/// units, between their hooks.   @pre the micro-batch has tokens
namespace sftrun::model {

/// Whether the backward pass reaches this unit.
bool has_backward(Decoder& decoder, const MicroBatchRun& run, int64_t unit);
/// Whether it goes on to the unit before this one.
bool needs_input_gradient(Decoder& decoder, const MicroBatchRun& run, int64_t unit);

/// A unit before the embedding: of the tower, or a projector of features. Nothing, if the micro-batch has no inputs for it.
void inputs_forward(Decoder& decoder, MicroBatchRun& run, int64_t unit);
void inputs_backward(Decoder& decoder, MicroBatchRun& run, int64_t unit);

/// Sets `run.hidden`; the rows of images and features are those of the tower and the projectors.
void embedding_forward(Decoder& decoder, MicroBatchRun& run);
/// From `run.hidden` to `run.hidden`. With gradient checkpointing the input is kept, else the state.
/// @param streams of inputs that wait in the host's memory; null: they stay on the device
void layer_forward(Decoder& decoder, MicroBatchRun& run, int64_t layer,
                   const InputStreams* streams);
/// From `run.grad` to `run.grad`; computes the layer again if its input was kept.
void layer_backward(Decoder& decoder, MicroBatchRun& run, int64_t layer,
                    const InputStreams* streams);
void embedding_backward(Decoder& decoder, MicroBatchRun& run);

// The head reads `run.hidden`. Only rows that have a label reach the final norm and the head.

/// The loss and, if the run trains, its backward pass: it then sets `run.grad` and takes `run.hidden`.
/// With a head of scores the loss is `run.options.score_loss`.
/// @return sum of losses, of tokens each times its row's factor: fp64 scalar on the device
at::Tensor head_loss(Decoder& decoder, MicroBatchRun& run);
/// -log p of the label of each labelled row [N] fp32, without gradients.
at::Tensor losses_of_labels(Decoder& decoder, const MicroBatchRun& run);
/// What the model, as a teacher, says of each labelled row.
layers::TeacherTargets top_tokens(Decoder& decoder, const MicroBatchRun& run, int64_t k,
                                  int64_t num_tokens, double temperature);
/// Adds to `sum`, an fp64 scalar on the device, the weights of labels that are the most likely token.
void add_correct(Decoder& decoder, const MicroBatchRun& run, at::Tensor& sum);

}  // namespace sftrun::model
