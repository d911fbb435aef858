#pragma once

#include "fields/limits.h"
#include "fields/objective.h"
#include "fields/optimizer.h"
#include "fields/schedule.h"
#include "sftrun/config/run_config.h"

namespace sftrun::config {

template <class Visitor>
void visit_batch_fields(TrainConfig& train, Visitor&& field) {
  using enum OnResume;
  field(train.epochs, "epochs", Limits{.min = 0, .max = kMaxEpochs, .above_min = true}, kLength,
        "Passes over the data.", "3");
  field(train.max_steps, "max_steps", between(1, kMaxCount).otherwise("from epochs"), kLength,
        "Stop after this number of optimizer steps; overrides epochs.", "200");
  field(train.batch_size, "batch_size", between(1, kMaxBatch), kAny,
        "Packed sequences of max_seq_len tokens (without packing: examples, with " +
            objectives_for(ExampleForm::kPair) + " pairs) per device and micro-batch.",
        "4");
  field(train.grad_accum, "grad_accum", between(1, kMaxBatch), kAny,
        "Micro-batches per optimizer step.", "4");
  field(train.global_batch_size, "global_batch_size", between(1, kMaxBatch), kSame,
        "batch_size * grad_accum * devices. If this and grad_accum are auto, the target is 32, "
        "less for small data sets; for embed 64 to 128 queries, as they are compared with each "
        "other's texts.",
        "32");
}

template <class Visitor>
void visit_device_fields(TrainConfig& train, Visitor&& field) {
  using enum OnResume;
  field(train.ddp_find_unused_parameters, "ddp_find_unused_parameters", any(), kAny,
        "Accepted for compatibility, without effect: parameters without a gradient are always "
        "allowed.",
        "false");
  field(train.ddp_broadcast_buffers, "ddp_broadcast_buffers", any(), kAny,
        "Accepted for compatibility, without effect: models have no buffers that change.", "false");
  field(
      train.ddp_comm_hook, "ddp_comm_hook", any(), kAny,
      "How ddp and pipeline send gradients. none: in fp32. bf16: rounded to bf16, half the bytes; "
      "the sums are then rounded, too.",
      "bf16");
  field(train.ddp_bucket_cap_mb, "ddp_bucket_cap_mb", between(1, kMaxBatch), kAny,
        "Size of a gradient bucket for the all-reduce, in MiB.", "200");
  field(train.dataloader_num_workers, "dataloader_num_workers", between(0, 256), kAny,
        "Threads that prepare data. 0: all that the process may use.", "4");
  field(train.dataloader_pin_memory, "dataloader_pin_memory", any(), kAny,
        "Copy batches through page-locked (pinned) memory (CUDA).", "true");
  field(train.cuda_graphs, "cuda_graphs", any(), kAny,
        "Capture the forward and backward pass of a micro-batch in a CUDA graph if its shape "
        "repeats; shapes are rounded up to a few sizes. auto: only for micro-batches that are so "
        "small that launching kernels takes longer than computing (docs/cuda-graphs.md).",
        "off");
  field(train.deterministic, "deterministic", any(), kAny,
        "Sum in a fixed order on GPUs, so that a run that is repeated or resumed on the same GPUs "
        "has "
        "the same bits. Attention's backward pass is slower, and cuDNN's attention is not used. On "
        "a CPU it is always so.",
        "true");
}

template <class Visitor>
void visit_fields(TrainConfig& train, Visitor&& field) {
  visit_objective_fields(train, field);
  visit_batch_fields(train, field);
  visit_optimizer_fields(train, field);
  visit_schedule_fields(train, field);
  visit_device_fields(train, field);
}

}  // namespace sftrun::config
