#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "sftrun/config/run_config.h"
#include "sftrun/plan/teacher.h"
#include "sftrun/plan/tower.h"
#include "sftrun/spec/arch_spec.h"
#include "sftrun/spec/lora_spec.h"

/// What the blocks of a model take in memory: a row for each (src/plan/blocks/). The plans of a
/// training step and of generation are walks over the rows of the units; tests/model/block_bytes_test.cpp
/// compares every row with LibTorch's allocator.
namespace sftrun::plan {

/// One micro-batch of a data-parallel rank. Where several devices compute it together, StepContext takes
/// a device's part of the model, and in context parallelism of the tokens.
struct MicroBatchShape {
  int64_t tokens = 0;
  int64_t element_bytes = 4;  ///< of the compute dtype
  bool on_gpu = false;
  int64_t threads = 1;  ///< of a CPU: each works on an attention head
  TowerUse tower = {};
  ImageShape images = {};
  std::shared_ptr<const TeacherUse> teacher = {};  ///< beside the model; null: none
};

/// What the bytes of a block depend on: the sizes that one device has of the model, the run, and its
/// micro-batch.   @pre the run outlives it
struct StepContext {
  StepContext(const spec::ArchSpec& whole, const config::RunConfig& config,
              const MicroBatchShape& shape);

  /// Devices that share each sequence. Mixers have all of its tokens, and a part of the heads.
  int64_t sharing() const { return config.parallel.axes.cp; }
  /// Bytes of a tensor [tokens, columns] in the compute dtype, and in fp32.
  int64_t rows(int64_t columns) const { return shape.tokens * columns * shape.element_bytes; }
  int64_t fp32_rows(int64_t columns) const { return shape.tokens * columns * 4; }

  spec::ArchSpec arch;
  const config::RunConfig& config;
  MicroBatchShape shape;
  spec::LoraSpec lora;
  bool trains_base;  ///< weights of the text model, all or some of them
  bool trains_all, has_dora, has_dropout;
  bool trains_embedding = false, trains_head = false;  ///< in full
  bool joins_linears;  ///< products of several linears are one (`model::DecoderJoints`)
  TowerTraining tower_training;
};

/// Bytes of a block in a training step.
struct TrainingBytes {
  int64_t kept = 0;         ///< from the forward to the backward pass, beside the block's input
  int64_t in_forward = 0;   ///< more while it runs forward, its output included
  int64_t in_backward = 0;  ///< more while it runs backward, beside the gradient of its output
};

/// Bytes of a block in generation, in which a pass reads prompts (prefill) or one token of each sequence
/// (decode).
struct GenerationBytes {
  int64_t cache_of_token = 0;     ///< between passes
  int64_t state_of_sequence = 0;  ///< between passes, of any length
  int64_t pass = 0;               ///< more in a pass over the context's tokens
  int64_t pass_of_sequence = 0;   ///< more in a pass, however many tokens it reads
};

/// A kind of block. Bytes of adapters, of the layer's residuals, and of gradients of whole matrices
/// follow from its list of tensors (spec/blocks.h) and are added by the walk.
struct BlockRow {
  /// `spec::BlockTensors::block`, "embedding", "head"; of the image side "tower_patches", "tower_layer" and
  /// "tower_mergers"
  std::string_view name;
  std::string_view title;  ///< "delta net"; empty: not named in a layer's kind
  /// @param layer -1: the block is outside the layers; of "tower_layer" one of the tower's
  TrainingBytes (*training)(const StepContext& step, int64_t layer);
  GenerationBytes (*generation)(const StepContext& pass, int64_t layer);
  /// More of a CPU process that has such a block: many small tensors, which are glibc's.
  int64_t process_bytes = 0;
};
/// @pre there is one of that name
const BlockRow& block_row(std::string_view name);

/// Bytes of the copies of a layer's adapters that its joint linears have on a GPU, with their padding
/// (`layers::JointLinears`). Beside dense weights they are part of the unit that is gathered.
int64_t joint_adapter_bytes(const StepContext& step, int64_t layer);

}  // namespace sftrun::plan
