#pragma once

#include "sftrun/model/decoder.h"
#include "sftrun/model/micro_batch_run.h"

/// What the head does with the last layer's output, `run.hidden`. Only rows that have a label reach
/// the final norm and the head.   @pre the micro-batch has tokens, and the head is in memory
namespace sftrun::model {

/// The loss and, if the run trains, its backward pass: it then sets `run.grad` and takes `run.hidden`.
/// @return sum of token losses: fp64 scalar on the device
at::Tensor head_loss(Decoder& decoder, MicroBatchRun& run);
/// -log p of the label of each labelled row [N] fp32, without gradients.
at::Tensor losses_of_labels(Decoder& decoder, const MicroBatchRun& run);
/// Adds to `count`, an int64 scalar on the device, how many labels are the most likely token.
void count_correct(Decoder& decoder, const MicroBatchRun& run, at::Tensor& count);

}  // namespace sftrun::model
