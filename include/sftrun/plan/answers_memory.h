#pragma once

#include <cstdint>
#include <optional>

#include "sftrun/config/run_config.h"
#include "sftrun/plan/memory_plan.h"
#include "sftrun/spec/arch_spec.h"

namespace sftrun::plan {

/// What answers of evaluations (`train.predict_with_generate`) or of training (`train.rollouts`) need on
/// a device: at most, because a plan does not know how long the prompts and answers are. They are
/// written between steps, when no activations exist.
struct AnswersMemory {
  const char* setting = "train.predict_with_generate";  ///< that asks for them
  int64_t rows = 0, tokens = 0;  ///< answers at a time, and tokens of the longest with its prompt
  int64_t cache = 0;             ///< keys and values of all rows, states of delta nets
  int64_t pass = 0;              ///< hidden states of the prompts that a pass reads, and logits
  int64_t gathered = 0;          ///< sharded strategies: whole weights beside the device's own part
  int64_t beside = 0;            ///< weights, gradients and optimizer state, which stay
  int64_t context = 0;           ///< as MemoryPlan::context and MemoryPlan::communication

  int64_t total() const { return cache + pass + gathered; }
  int64_t peak() const { return beside + total() + context; }
};

/// What sequences need on a device while they are written, at most.
struct SequencesMemory {
  int64_t rows = 0, tokens = 0;  ///< sequences at a time, and tokens of each with its prompt
  int64_t prompt_tokens = 0;     ///< of the longest prompt
  bool refills = true;           ///< when a sequence has ended, the prompt of another one is read
  bool keeps = true;             ///< keys and values; false: they are only read, as by `score`
  int64_t element_bytes = 4;     ///< of the compute dtype

  /// Keys and values of layers [first, end), and states of their delta nets.
  /// @param arch of the device (device_arch)
  int64_t cache(const spec::ArchSpec& arch, int64_t first, int64_t end) const;
  /// Hidden states of the prompts that a pass reads, and logits.
  int64_t pass(const spec::ArchSpec& arch) const;
};

/// Nothing if the run writes no answers.
/// @param plan the run's
std::optional<AnswersMemory> answers_memory(const spec::ArchSpec& arch,
                                            const config::RunConfig& config,
                                            const RunDevices& devices, const MemoryPlan& plan);

}  // namespace sftrun::plan
