#include "sftrun/plan/step_memory.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "adapter_bytes.h"
#include "blocks/block.h"
#include "layer_bytes.h"
#include "sftrun/plan/stages.h"
#include "sftrun/spec/blocks.h"
#include "sftrun/spec/graph_limit.h"
#include "sftrun/spec/tensor_parallel.h"
#include "sftrun/spec/trained_names.h"
#include "teacher_memory.h"
#include "tower_bytes.h"

namespace sftrun::plan {
namespace {

/// LibTorch's cuBLAS has a workspace among its tensors: 32 MiB on cards of compute capability 9, 8 MiB
/// on others. cuBLASLt, which adds a bias in the product, has another: in a tower that trains, and in joint
/// products without adapters.
constexpr int64_t kCublasWorkspace = int64_t{32} << 20;

/// Of every layer, the largest of a number of bytes.
template <typename Bytes>
int64_t largest_of_layers(const spec::ArchSpec& arch, Bytes&& bytes) {
  int64_t largest = 0;
  for (int64_t layer = 0; layer < arch.num_layers; ++layer)
    largest = std::max<int64_t>(largest, bytes(layer));
  return largest;
}

/// Values of the largest matrix of a layer.
int64_t largest_matrix(const spec::ArchSpec& arch, int64_t layer) {
  int64_t largest = 0;
  for (const spec::LinearSpec& linear : spec::layer_linears(arch, layer))
    largest = std::max(largest, linear.in_features * linear.out_features);
  return largest;
}

/// CPU: the product in fp32 that the gradient of a norm's weight is the sum of
/// (`kernels::rms_norm_weight_grad`). 0: norms do not train.
int64_t norm_gradient_bytes(const StepContext& step) {
  return step.trains_all && !step.shape.on_gpu ? step.fp32_rows(step.arch.hidden_size) : 0;
}

/// Angles of positions in fp32; a GPU has those of all positions, too (`model::RopeCache`).
int64_t angle_bytes(const spec::ArchSpec& arch, int64_t positions) {
  return positions * std::ssize(arch.ropes) * arch.head_dim * kFp32;
}

/// What a teacher says of a label: numbers and log-probabilities of its k tokens. The k of files is not
/// known here, and taken to be the default.
int64_t teacher_bytes_of_label(const StepContext& step) {
  if (!step.config.train.objective_info().needs_teacher) return 0;
  const int64_t k = std::min(step.config.train.teacher_topk, step.arch.vocab_size);
  return (2 * k + 1) * kFp32;
}

/// Tokens, labels, dropout keys and positions, what a teacher says, and the angles of each position.
int64_t batch_bytes(const StepContext& step) {
  constexpr int64_t kOfToken = 64;
  return step.shape.tokens * (kOfToken + teacher_bytes_of_label(step)) +
         angle_bytes(step.arch, step.shape.tokens);
}

/// On a GPU products read whole matrices: quantised ones are unpacked.
bool unpacks_layers(const StepContext& step) {
  const config::TuningConfig& tuning = step.config.tuning;
  return step.shape.on_gpu && !step.trains_base &&
         (tuning.quantises_base() || tuning.keeps_blocks());
}

/// Whether a grouped product on a GPU decodes the codes itself (src/kernels/experts/grouped_tiles.cu):
/// in 16 bits, matrices that the run quantises. What files have may be ggml's blocks, which are
/// unpacked.
bool decodes_experts(const StepContext& step, const spec::ExpertSpec& matrix) {
  constexpr int64_t kGroup = 8, kSixteenBits = 2;
  const auto options = step.config.tuning.quant_options();
  if (!options || step.shape.element_bytes != kSixteenBits) return false;
  const bool blocks_are_whole = !quant_info(options->format).has_blocks ||
                                (options->block_size >= kGroup &&
                                 std::has_single_bit(static_cast<uint64_t>(options->block_size)));
  return blocks_are_whole && matrix.in_features % kGroup == 0 && matrix.out_features % kGroup == 0;
}

/// The largest matrix of all experts of a layer that a grouped product reads dense.
int64_t unpacked_experts_bytes(const StepContext& step) {
  if (!unpacks_layers(step)) return 0;
  return step.shape.element_bytes * largest_of_layers(step.arch, [&](int64_t layer) {
           int64_t largest = 0;
           for (const spec::ExpertSpec& matrix : spec::layer_experts(step.arch, layer)) {
             if (!decodes_experts(step, matrix))
               largest = std::max(largest, matrix.in_features * matrix.out_features);
           }
           return step.arch.mixture.num_experts * largest;
         });
}

/// Two buffers of the largest product of several linears (`layers::DequantPrefetcher`).
int64_t unpacking_bytes(const StepContext& step) {
  if (!unpacks_layers(step)) return 0;
  return 2 * step.shape.element_bytes * largest_of_layers(step.arch, [&](int64_t layer) {
           return largest_product(step.arch, layer);
         });
}

/// Copies of a layer's adapters beside quantised weights, while the layer is used: where units leave,
/// others have none.
int64_t adapter_copies(const StepContext& step) {
  const config::ParallelConfig& parallel = step.config.parallel;
  const bool units_leave = parallel.axes.has_shards() ||
                           parallel.offload.base == config::Offload::kCpu ||
                           parallel.offload.params == config::Offload::kCpu;
  if (!units_leave || !unpacks_layers(step)) return 0;
  return largest_of_layers(step.arch,
                           [&](int64_t layer) { return joint_adapter_bytes(step, layer); });
}

/// Layers below it have no backward pass, and keep nothing.
int64_t first_trained_layer(const StepContext& step) {
  const spec::ArchSpec& arch = step.arch;
  const config::TuningConfig& tuning = step.config.tuning;
  if (step.tower_training.any() || tuning.mode != config::TuningMode::kPartial) return 0;
  const std::vector<spec::TensorSpec> tensors = spec::tensor_specs(arch);
  const spec::TrainableNames names(tuning.trainable, with_tower(tensors, arch, step.shape.tower));
  int64_t first = arch.num_layers;
  for (const spec::TensorSpec& tensor : tensors) {
    if (tensor.role == spec::TensorRole::kBuffer || !names.match(tensor.name)) continue;
    if (tensor.role == spec::TensorRole::kEmbedding || tensor.projector >= 0) return 0;
    if (tensor.layer >= 0) first = std::min<int64_t>(first, tensor.layer);
  }
  return first;
}

/// What layers save at the same time, of all that would be saved.
double share_of_stage(const spec::ArchSpec& arch, const config::RunConfig& config) {
  if (!config.parallel.axes.has_stages()) return 1;
  const std::vector<double> shares = activation_shares(arch, config);
  return *std::max_element(shares.begin(), shares.end());
}

int64_t micro_batches_at_once(const config::RunConfig& config) {
  if (config.parallel.fetch != config::Fetch::kPerStep) return 1;
  return config.train.grad_accum.value.value_or(1);
}

/// Whether passes of this size become CUDA graphs (src/model/pass_graphs.cpp).
bool is_captured(const spec::ArchSpec& arch, const StepContext& step) {
  const config::RunConfig& config = step.config;
  if (!step.shape.on_gpu || config.train.cuda_graphs == config::CudaGraphs::kOff) return false;
  if (step.shape.images.patches > 0) return false;
  const bool chooses_by_lengths = config.model.attention == config::AttentionChoice::kCudnn ||
                                  config.model.attention == config::AttentionChoice::kMeasure;
  if (config.tuning.backend != config::TuningBackend::kFused || chooses_by_lengths ||
      !config.train.objective_info().is_cross_entropy ||
      config.parallel.offload.activations == config::Offload::kCpu)
    return false;
  const config::Axes& axes = config.parallel.axes;
  const bool communicates =
      axes.divides_model() || axes.has_shards() || (axes.dp_replicate > 1 && step.trains_base);
  if (communicates) return false;
  const bool has_states = spec::any_has_state(arch);
  const bool has_aux_loss =
      spec::aux_loss_coef(config.train.router_aux_loss_coef, arch.mixture).value_or(0) > 0;
  if (has_states || has_aux_loss) return false;
  return config.train.cuda_graphs == config::CudaGraphs::kOn ||
         step.shape.tokens <= spec::tokens_worth_a_graph(arch, step.trains_all);
}

/// Beside activations: the batch; matrices that are unpacked; GPU: cuBLAS' workspace and the angles of
/// all positions. A captured pass has a workspace and inputs of its own.
int64_t workspace_bytes(const spec::ArchSpec& whole, const StepContext& step) {
  int64_t bytes = micro_batches_at_once(step.config) * batch_bytes(step) + unpacking_bytes(step) +
                  adapter_copies(step);
  if (step.shape.on_gpu)
    bytes += kCublasWorkspace + angle_bytes(step.arch, step.config.model.max_seq_len);
  if (step.shape.on_gpu && (has_biased_joint_alone(step) || step.tower_training.any()))
    bytes += kCublasWorkspace;
  if (is_captured(whole, step)) bytes += kCublasWorkspace + batch_bytes(step);
  return bytes;
}

/// Bytes of the embedding and the layers: what they keep together, and the largest backward pass less
/// what the units after it kept.
struct UnitsBytes {
  int64_t kept = 0, in_backward = 0;
};

/// @param frees a unit frees what it kept at the end of its backward pass
UnitsBytes units_bytes(const StepContext& step, bool frees) {
  UnitsBytes units;
  const auto add = [&](const KeptBytes& unit) {
    units.in_backward = std::max(units.in_backward, unit.in_backward - (frees ? units.kept : 0));
    units.kept += unit.between;
  };
  // The last layer comes first in the backward pass.
  const int64_t first = first_trained_layer(step);
  for (int64_t layer = step.arch.num_layers - 1; layer >= first; --layer)
    add(kept_bytes(step, layer, step.config.train.gradient_checkpointing));
  if (first == 0) {
    const TrainingBytes embedding = block_row("embedding").training(step, /*layer=*/-1);
    add({.between = embedding.kept, .in_backward = embedding.in_backward});
  }
  return units;
}

/// Whether inputs of layers wait in host memory.
bool keeps_inputs_on_host(const StepContext& step) {
  return step.config.train.gradient_checkpointing == config::Checkpointing::kLayer &&
         step.shape.on_gpu && step.config.parallel.offload.activations == config::Offload::kCpu;
}

/// Projectors of features: at most every token of the micro-batch stands for a row of features.
/// @param not_there what is freed before they run
void add_projectors(const StepContext& step, int64_t not_there, TowerBytes& bytes) {
  for (int64_t i = 0; i < std::ssize(step.arch.projectors); ++i) {
    const TrainingBytes of = block_row("projector").training(step, i);
    bytes.images += step.rows(step.arch.projectors[static_cast<size_t>(i)].input_width) +
                    step.rows(step.arch.hidden_size);
    bytes.kept += of.kept;
    bytes.of_unit =
        std::max({bytes.of_unit, of.in_forward - of.kept - not_there, of.in_backward - not_there});
  }
}

/// Micro-batches whose images are there at the same time: in a pipeline those that are under way in its
/// first stage, which has the tower.
int64_t images_at_once(const config::RunConfig& config) {
  const config::Axes& axes = config.parallel.axes;
  if (!axes.has_stages()) return micro_batches_at_once(config);
  return std::min(axes.pp, config.train.grad_accum.value.value_or(axes.pp));
}

/// @param of_units of all units, in one micro-batch
int64_t kept_in_step(const spec::ArchSpec& whole, const StepContext& step, int64_t of_units) {
  constexpr int64_t kInputsUnderWay = 3;  // one is used, and its neighbours are copied
  const config::Axes& axes = step.config.parallel.axes;
  const int64_t hidden = step.rows(step.arch.hidden_size),
                at_once = micro_batches_at_once(step.config);
  int64_t kept = of_units;
  if (keeps_inputs_on_host(step)) kept = hidden * std::min(kInputsUnderWay, step.arch.num_layers);
  kept = std::llround(static_cast<double>(kept * at_once) * share_of_stage(whole, step.config));
  kept += hidden * (at_once - 1);  // gradients between two units
  // What a stage sends stays until the next one has received it.
  if (step.shape.on_gpu && axes.has_stages() && !axes.stages_in_process) kept += hidden;
  return kept;
}

/// What earlier micro-batches of a pipeline keep while the teacher reads the next one.
int64_t kept_before(const config::RunConfig& config, int64_t kept) {
  const config::Axes& axes = config.parallel.axes;
  if (!axes.has_stages()) return 0;
  const int64_t at_once = std::min(axes.pp, config.train.grad_accum.value.value_or(axes.pp));
  return kept / at_once * (at_once - 1);
}

}  // namespace

spec::ArchSpec device_arch(const spec::ArchSpec& arch, const config::Axes& axes) {
  return axes.tp == 1 ? arch : spec::part_of(arch, {.rank = axes.tp - 1, .size = axes.tp});
}

std::vector<LayerKind> layer_kinds(const spec::ArchSpec& whole, const config::RunConfig& config,
                                   const MicroBatchShape& shape) {
  const StepContext step(whole, config, shape);
  std::vector<LayerKind> kinds;
  for (int64_t layer = 0; layer < step.arch.num_layers; ++layer) {
    const std::string name = layer_kind(step.arch, layer);
    auto kind = std::find_if(kinds.begin(), kinds.end(),
                             [&](const LayerKind& known) { return known.name == name; });
    if (kind == kinds.end()) kind = kinds.insert(kinds.end(), {.name = name});
    ++kind->layers;
    using enum config::Checkpointing;
    for (const config::Checkpointing again : {kNone, kMlp, kAttention, kLayer}) {
      const KeptBytes bytes = kept_bytes(step, layer, again);
      LayerBytes& of_kind = kind->bytes[again];
      of_kind.kept += bytes.between;
      of_kind.in_backward = std::max(of_kind.in_backward, bytes.in_backward);
    }
  }
  return kinds;
}

StepMemory step_memory(const spec::ArchSpec& whole, const config::RunConfig& config,
                       const MicroBatchShape& shape) {
  const StepContext step(whole, config, shape);
  const bool frees = !keeps_inputs_on_host(step) && !config.parallel.axes.has_stages();
  const UnitsBytes units = units_bytes(step, frees);
  TowerBytes tower = tower_bytes(step, frees ? units.kept : 0, frees);
  add_projectors(step, frees ? units.kept + tower.kept : 0, tower);
  const int64_t gradient = matrix_gradient_on_cpu(
      step,
      largest_of_layers(step.arch, [&](int64_t layer) { return largest_matrix(step.arch, layer); }),
      step.trains_all);
  const int64_t kept = kept_in_step(whole, step, units.kept);
  const TeacherBytes teacher = shape.teacher ? teacher_bytes(config, shape) : TeacherBytes();
  return {.kept = kept,
          .layer = units.in_backward + gradient + norm_gradient_bytes(step) +
                   unpacked_experts_bytes(step),
          .head = block_row("head").training(step, /*layer=*/-1).in_forward,
          .workspace = workspace_bytes(whole, step) + teacher.sent,
          .images = tower.images * images_at_once(step.config),
          .tower_kept = tower.kept * images_at_once(step.config),
          .tower = tower.of_unit,
          .teacher = shape.teacher ? teacher.in_pass + kept_before(config, kept) : 0};
}

}  // namespace sftrun::plan
