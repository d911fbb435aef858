#pragma once

#include "fields/limits.h"
#include "sftrun/config/run_config.h"

namespace sftrun::config {

template <class Visitor>
void visit_fields(OffloadConfig& offload, Visitor&& field) {
  using enum OnResume;
  field(offload.optimizer, "optimizer", any(), kAny,
        "Optimizer state: train.optimizer adamw becomes paged_adamw, adamw_8bit paged_adamw_8bit.",
        "cpu");
  field(offload.activations, "activations", any(), kAny,
        "With train.gradient_checkpointing: the inputs of layers, between the forward and the "
        "backward pass.",
        "cpu");
  field(offload.base, "base", any(), kAny,
        "Frozen weights, in their own format (4 bits stay 4 bits). Each layer is copied to the GPU "
        "for each use, the next one while the current one computes.",
        "cpu");
  field(offload.params, "params", any(), kAny,
        "Trained weights, with their gradients and optimizer state, for tuning.mode full and "
        "partial. Each layer is copied to the GPU for each use, its gradients are copied back, and "
        "the CPU updates the weights. Not with zero1, zero2, pipeline, tensor and device_map.",
        "cpu");
}

template <class Visitor>
void visit_fields(ParallelConfig& parallel, Visitor&& field) {
  using enum OnResume;
  field(parallel.strategy, "strategy", any(), kAny,
        "How devices share the work; each computes a part of the batch. auto: ddp if the run fits, "
        "else the first of the others that does. ddp: every device has the whole model. zero1: "
        "optimizer state is divided over the devices. zero2: gradients, too. zero3, fsdp: also all "
        "weights, which are gathered layer by layer in their own format (4 bits stay 4 bits). "
        "hybrid: as fsdp within each group of `dp_shard` devices, and copies on the other groups. "
        "pipeline: each device has some of the layers; the parts of a batch pass through them one "
        "after the other. tensor: each device has a part of every matrix, and they compute each "
        "layer together. device_map: the same inside one process, see `device_map`. "
        "All give the same losses.",
        "fsdp");
  field(parallel.dp_replicate, "dp_replicate",
        between(1, kMaxDevices).otherwise("the remaining devices"), kAny,
        "Number of copies of the model, each with its part of the batch. The product of "
        "dp_replicate, dp_shard, pp, cp and tp is the number of all devices.",
        "2");
  field(
      parallel.dp_shard, "dp_shard", between(1, kMaxDevices).otherwise("as the strategy says"),
      kAny,
      "Number of devices over which one copy of the model is divided, as the strategy says (zero1 "
      "to fsdp; with auto, pipeline and tensor as fsdp), each with its part of the batch. If it is "
      "not set, hybrid takes the devices of one machine, other strategies all remaining devices.",
      "8");
  field(parallel.pp, "pp", between(1, kMaxDevices).otherwise("as the strategy says"), kAny,
        "Number of stages into which the layers are divided. If it is not set, pipeline takes all "
        "remaining devices. It can be combined with dp_shard, dp_replicate, cp and tp. For "
        "device_map: the number of devices to use. train.grad_accum should be several times as "
        "large.",
        "4");
  field(parallel.cp, "cp", between(1, kMaxDevices).otherwise("1"), kAny,
        "Number of devices that share each sequence, for long contexts: each has a part of its "
        "tokens, and of the heads while attention runs, so that activations are divided by it. The "
        "number of attention heads must be a multiple of it. It can be combined with dp_shard, "
        "dp_replicate, pp and tp; what dp_shard divides is then divided over these devices, too.",
        "4");
  field(parallel.tp, "tp", between(1, kMaxDevices).otherwise("as the strategy says"), kAny,
        "Number of devices that divide each matrix. If it is not set, tensor takes all remaining "
        "devices. The number of attention heads must be a multiple of it. It can be combined with "
        "dp_shard, dp_replicate, cp and pp.",
        "2");
  field(parallel.fetch, "fetch", any(), kAny,
        "How often divided or offloaded weights are copied to a device. per_micro_batch: for the "
        "forward and the backward pass of each micro-batch. per_step: once for the forward and "
        "once for the backward passes of all micro-batches of a step (grad_accum); their "
        "activations are then kept at the same time. auto: per_step if offload.activations and one "
        "of offload.base and offload.params are cpu.",
        "per_step");
  field(
      parallel.device_map, "device_map", any().otherwise("none"), kAny,
      "One process with the layers on several GPUs of the machine. auto, balanced: the same number "
      "of bytes on each (weights in their own formats, with what trains). sequential: the first "
      "GPU is filled, then the next. Or a map of modules "
      "to GPUs, as in transformers: `{model.embed_tokens: 0, model.layers.0-15: 0, "
      "model.layers.16-31: 1, lm_head: 1}`.",
      "auto");
  field(parallel.backend, "backend", any(), kAny,
        "Library for collectives. auto: nccl between GPUs, else gloo.", "gloo");
  field(parallel.timeout, "timeout", any(), kAny,
        "Maximum time that ranks wait for each other, at the rendezvous and in every collective "
        "(90s, 10m, 1h; a number alone is seconds).",
        "10m");
  field(
      parallel.stall_after, "stall_after", any(), kAny,
      "Time without progress after which the log says which ranks the others wait for, and what "
      "these do and since when. The run continues. At most a third of `timeout`. A number alone is "
      "seconds.",
      "1m");
  field(parallel.accelerate, "accelerate", a_path().otherwise("none"), kAny,
        "A configuration file of Accelerate (`accelerate config`): number of processes and "
        "machines, strategy, dtype (docs/coming-from.md).",
        "configs/accelerate/multi_gpu_fsdp.yaml");
  field(parallel.deepspeed, "deepspeed", a_path().otherwise("none"), kAny,
        "A configuration file of DeepSpeed, in JSON: ZeRO stage, dtype, batch sizes, optimizer, "
        "schedule. `auto` in it takes the run's value (docs/coming-from.md).",
        "configs/deepspeed/zero2.json");
}

}  // namespace sftrun::config
