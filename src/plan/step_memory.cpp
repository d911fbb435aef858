#include "sftrun/plan/step_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "sftrun/plan/lora_plan.h"
#include "sftrun/plan/stages.h"
#include "sftrun/spec/blocks.h"
#include "sftrun/spec/graph_limit.h"
#include "sftrun/spec/tensor_parallel.h"
#include "sftrun/spec/trained_names.h"

namespace sftrun::plan {
namespace {

/// Values per token of one layer, in the compute dtype.
struct LayerValues {
  double mixer = 0, feed_forward = 0;  ///< saved by the two blocks, beside the layer's input
  double through_mixer = 0, through_feed_forward = 0;  ///< more in their backward passes
  double run_feed_forward = 0;  ///< GPU: more in the block's forward pass, its output included
};

/// Widths of LoRA's inner columns, and with DoRA the outputs before the magnitude.
struct AdapterWidths {
  double mixer = 0, feed_forward = 0;
};

/// Whether products of several linears are one (`model::Decoder::join_linears`).
bool joins_linears(const config::RunConfig& config, const MicroBatchShape& shape) {
  const config::LoraConfig& lora = config.tuning.lora;
  return shape.on_gpu && config.tuning.trains_adapter() && !lora.dora && lora.dropout == 0;
}

/// Rows of joint linears have so many columns for adapters, or a multiple.
constexpr int64_t kJointStep = 16;
constexpr const char* kGateUp = "gate_up";  // `spec::LinearSpec::joint`

class LayerEstimate {
 public:
  LayerEstimate(const spec::ArchSpec& arch, const config::RunConfig& config,
                const MicroBatchShape& shape)
      : arch_(arch),
        config_(config),
        lora_(lora_spec(config.tuning.lora)),
        tokens_(static_cast<double>(shape.tokens)),
        element_bytes_(static_cast<double>(shape.element_bytes)),
        fp32_(4.0 / element_bytes_),
        on_gpu_(shape.on_gpu),
        joins_(joins_linears(config, shape)),
        trains_base_(!config.tuning.trains_adapter()),
        has_dora_(config.tuning.trains_adapter() && config.tuning.lora.dora),
        has_dropout_(config.tuning.trains_adapter() && config.tuning.lora.dropout > 0),
        threads_(static_cast<double>(shape.threads)) {}

  LayerValues of(int64_t layer) const {
    const auto hidden = static_cast<double>(arch_.hidden_size);
    const AdapterWidths adapters = adapters_of(layer);
    LayerValues values;
    spec::has_state(arch_, layer) ? add_delta_net(values) : add_attention(layer, values);
    values.through_mixer += 2 * hidden;  // gradients of the layer's output and of its middle
    if (has_dora_ || has_dropout_) values.through_mixer += hidden;  // the input after dropout
    add_feed_forward(layer, values);
    on_gpu_ ? add_feed_forward_moments(layer, values) : add_feed_forward_on_cpu(layer, values);
    values.through_feed_forward += hidden;
    values.mixer += adapters.mixer;
    values.feed_forward += hidden + adapters.feed_forward;  // the middle
    if (arch_.norms != spec::NormPlacement::kBefore) {      // outputs before their norms
      values.mixer += hidden, values.feed_forward += hidden;
      values.through_mixer += hidden, values.through_feed_forward += hidden;
    }
    return values;
  }

 private:
  void add_attention(int64_t layer, LayerValues& values) const {
    const spec::AttentionSizes sizes = spec::attention_sizes(arch_, layer);
    const auto queries = static_cast<double>(sizes.queries()),
               keys = static_cast<double>(sizes.keys());
    const double gates = arch_.attention_gate ? queries : 0;
    values.mixer += 2 * queries + 2 * keys + gates + fp32_ * static_cast<double>(sizes.num_heads);
    // Gradients of the output, of q, k and v, and of k and v for each query head.
    const bool shares_keys = sizes.num_heads != sizes.num_kv_heads;
    double of_each_head = 2 * queries * fp32_;
    if (on_gpu_) {
      // LibTorch's flash attention sums the gradient of q in fp32 (mha_bwd in flash_api.cpp).
      of_each_head = (shares_keys ? 2 * queries : 0) +
                     fp32_ * (queries + static_cast<double>(sizes.num_heads));
    }
    // Queries, keys, values and their gradients of the head that a thread works on, packed for products.
    constexpr double kPacked = 8;
    const double packed =
        on_gpu_ ? 0 : kPacked * fp32_ * threads_ * static_cast<double>(sizes.head_dim);
    values.through_mixer += 2 * queries + 2 * keys + gates + of_each_head + packed;
    if (on_gpu_) values.through_mixer += more_of_mixer(queries, keys, of_each_head);
  }

  /// What comes after the gradients of q, k and v, or beside them (src/layers/fused/mixer.cpp).
  double more_of_mixer(double queries, double keys, double of_each_head) const {
    const auto hidden = static_cast<double>(arch_.hidden_size);
    const double joint = joins_ ? queries + 2 * keys : 0;  // gradients as columns of one tensor
    // Queries and keys are normed again.
    const bool has_norms = arch_.qk_norm != spec::QkNorm::kNone;
    const double beside = of_each_head + joint + (has_norms ? queries + keys : 0);
    // Gradients of the normed input, and of the input; with full training the input normed again.
    const double after = (trains_base_ ? hidden : 0) + hidden +
                         std::max(hidden, trains_base_ ? fp32_ * hidden : 0.0);
    return std::max(beside, after) - of_each_head;
  }

  /// fp32 values of a matrix' gradient before it is added (`kernels::add_matmul_tn_`).
  double matrix_gradient(double rows, double columns) const {
    return trains_base_ ? fp32_ * rows * columns / tokens_ : 0;
  }

  /// The gradients before the magnitudes of a gate, and of up while it is multiplied in fp32
  /// (`times_gains` in src/layers/linear/fused_linears.cpp).
  double dora(double inner) const { return inner * (1 + fp32_ + (fp32_ > 1 ? 1 : 0)); }

  /// The moments of the feed-forward block on a GPU that may need most
  /// (src/layers/fused/feed_forward.cpp), beside what the layer saves and the output's gradient.
  void add_feed_forward_moments(int64_t layer, LayerValues& values) const {
    const auto hidden = static_cast<double>(arch_.hidden_size);
    // Gradients of the normed input and of the input. A norm that trains has the product in fp32 that
    // its gradient is the sum of (`kernels::rms_norm_weight_grad`).
    const double norm = hidden + std::max(hidden, trains_base_ ? fp32_ * hidden : 0.0);
    const bool is_sparse = arch_.layers[static_cast<size_t>(layer)].sparse;
    if (!is_sparse || arch_.mixture.beside_dense) {
      const auto inner = static_cast<double>(spec::intermediate_size(arch_, layer));
      // The gated product, and the block's output.
      values.run_feed_forward = inner + hidden;
      // A joint linear overwrites the gradient of the gated product with that product. Without one, it
      // is computed again beside its gradient, or beside the gradient of the matrix.
      // Dropout of the adapter's input, or of its gradient, is one more.
      const double through_down = joins_ ? inner
                                         : inner + std::max(inner, matrix_gradient(hidden, inner)) +
                                               (has_dropout_ ? inner : 0);
      const double through_gates = hidden + matrix_gradient(hidden, inner) +
                                   (has_dropout_ ? hidden : 0) + (has_dora_ ? dora(inner) : 0);
      // Gate and up are freed before the norm's backward pass.
      values.through_feed_forward = std::max({through_down, through_gates, norm - 2 * inner});
    }
    if (is_sparse) add_mixture_moments(norm, values);
  }

  /// Of src/layers/experts/device_mixture.cpp.
  void add_mixture_moments(double norm, LayerValues& values) const {
    const auto hidden = static_cast<double>(arch_.hidden_size),
               chosen = static_cast<double>(arch_.mixture.top_k),
               inner = chosen * static_cast<double>(arch_.mixture.intermediate_size),
               shared = static_cast<double>(arch_.mixture.shared_size),
               rows = chosen * hidden;  // a row of each chosen expert
    const double experts = static_cast<double>(arch_.mixture.num_experts);
    const double matrix =  // a product in the compute dtype
        trains_base_ ? experts * hidden * inner / chosen / tokens_ : 0;
    // The normed input; gated products and answers, and their sum; that sum and the layer's output.
    const double run = hidden + std::max(inner + rows + hidden, 2 * hidden);
    // Gradients of answers and of gated products, and these again if the experts train.
    const double through_down = rows + inner + (trains_base_ ? inner + matrix : 0);
    // Gradients of the rows, and if the experts train the rows again.
    const double through_gates = rows + (trains_base_ ? rows + 2 * matrix : 0);
    // The router computes in fp32: its input, if it trains, that input's gradient, and the same
    // rounded. Gates are freed before it.
    const double through_router = rows + fp32_ * experts + (trains_base_ ? fp32_ * hidden : 0) +
                                  (fp32_ + 1) * hidden - 2 * inner;
    // Gradients of the shared expert's answer, of its input, and of its inner values or of its input
    // by another way.
    const double through_shared =
        shared > 0 ? rows + hidden + 2 * hidden + std::max(shared, hidden) - 2 * inner : 0;
    const double sum = rows + (shared > 0 ? 3 : 2) * hidden - 2 * inner;
    const double through = hidden + std::max({through_down, through_gates, through_router,
                                              through_shared, sum, norm - hidden - 2 * inner});
    values.run_feed_forward = std::max(values.run_feed_forward, run);
    values.through_feed_forward = std::max(values.through_feed_forward, through);
  }

  void add_delta_net(LayerValues& values) const {
    const spec::DeltaNetSpec& net = arch_.delta_net;
    const auto channels = static_cast<double>(net.channels()),
               outputs = static_cast<double>(net.values()),
               hidden = static_cast<double>(arch_.hidden_size),
               heads = static_cast<double>(net.num_value_heads);
    values.mixer += channels + 3 * outputs + 2 * heads;
    // The convolution's output, before and after SiLU, and its gradient, in fp32; the normed input;
    // gradients of the block's output and of the recurrence's, as rows and as chunks.
    values.through_mixer +=
        fp32_ * (3 * channels + 4 * heads) + hidden + 3 * outputs + fp32_ * rule_values(net);
  }

  /// fp32 values per token of the chunks that the backward pass of the delta rule has at once
  /// (`RuleBackward` in src/kernels/delta_net/delta_rule.cpp).
  double rule_values(const spec::DeltaNetSpec& net) const {
    constexpr double kChunk = 64;
    const auto keys = static_cast<double>(net.key_dim), values = static_cast<double>(net.value_dim),
               per_key = static_cast<double>(net.num_value_heads) /
                         static_cast<double>(net.num_key_heads),
               key_heads = static_cast<double>(net.num_key_heads);
    const double of_key_head =
        4 * keys + 2 * kChunk +
        per_key * (2 * kChunk + 6 * keys + 4 * values + 3 * keys * values / kChunk);
    // A CPU's threads have a key head each; a GPU computes as many pairs of chunk and head at once.
    constexpr double kPairs = 1 << 11;
    const double at_once =
        on_gpu_ ? std::max(1.0, std::floor(kPairs / (tokens_ / kChunk * per_key))) : threads_;
    return of_key_head * std::min(key_heads, at_once);
  }

  void add_feed_forward(int64_t layer, LayerValues& values) const {
    const bool is_sparse = arch_.layers[static_cast<size_t>(layer)].sparse;
    if (!is_sparse || arch_.mixture.beside_dense) {
      const auto inner = static_cast<double>(spec::intermediate_size(arch_, layer));
      values.feed_forward += 2 * inner;
    }
    if (!is_sparse) return;
    const auto inner = static_cast<double>(arch_.mixture.intermediate_size),
               chosen = static_cast<double>(arch_.mixture.top_k),
               shared = static_cast<double>(arch_.mixture.shared_size),
               hidden = static_cast<double>(arch_.hidden_size),
               experts = static_cast<double>(arch_.mixture.num_experts);
    // The router's choice: a weight and an expert, and the order of the rows (four int64; on a GPU
    // three int32).
    const double choice_bytes = on_gpu_ ? 20 : 36;
    values.feed_forward += 2 * chosen * inner + (shared > 0 ? 2 * shared + hidden : 0) +
                           fp32_ * experts + chosen * choice_bytes / element_bytes_;
  }

  /// More in the backward pass of the feed-forward block on a CPU.
  void add_feed_forward_on_cpu(int64_t layer, LayerValues& values) const {
    const auto hidden = static_cast<double>(arch_.hidden_size);
    const bool is_sparse = arch_.layers[static_cast<size_t>(layer)].sparse;
    if (!is_sparse || arch_.mixture.beside_dense) {
      const auto inner = static_cast<double>(spec::intermediate_size(arch_, layer));
      values.through_feed_forward += 2 * inner;
      // The gated product after dropout, or a gradient before its magnitude; the normed input.
      if (has_dora_ || has_dropout_) values.through_feed_forward += inner + hidden;
    }
    if (!is_sparse) return;
    const auto inner = static_cast<double>(arch_.mixture.intermediate_size),
               chosen = static_cast<double>(arch_.mixture.top_k);
    // Rows of each chosen expert: inputs, outputs' and inputs' gradients; of the inner width the
    // gradient, and those of gate and up side by side.
    values.through_feed_forward += chosen * (3 * inner + 3 * hidden) + hidden;
  }

  AdapterWidths adapters_of(int64_t layer) const {
    AdapterWidths widths;
    if (!config_.tuning.trains_adapter()) return widths;
    for (const spec::BlockTensors& block : spec::layer_blocks(arch_, layer)) {
      double& width = block.is_mixer ? widths.mixer : widths.feed_forward;
      std::map<std::string, double> joints;
      for (const spec::LinearSpec& linear : block.linears) {
        const double columns = adapter_columns(layer, linear);
        if (joins_ && columns > 0)
          joints[linear.joint.empty() ? linear.module : linear.joint] += columns;
        else
          width += columns;
      }
      // Rows of joint linears are padded to 16 columns; those of gate and up have them beside, too.
      for (const auto& [joint, columns] : joints) {
        const double padded = std::ceil(columns / kJointStep) * kJointStep;
        width += joint == kGateUp ? 2 * padded : padded;
      }
    }
    return widths;
  }

  double adapter_columns(int64_t layer, const spec::LinearSpec& linear) const {
    const std::string name = spec::name_in_layer(arch_, layer, linear.module);
    if (!spec::is_target(lora_, name, linear, arch_)) return 0;
    return static_cast<double>(lora_.r_of(spec::update_name(lora_, name))) +
           (lora_.dora ? static_cast<double>(linear.out_features) : 0);
  }

  const spec::ArchSpec& arch_;
  const config::RunConfig& config_;
  spec::LoraSpec lora_;
  double tokens_, element_bytes_;
  double fp32_;  // values of the compute dtype in the memory of an fp32 value
  bool on_gpu_;
  bool joins_;
  bool trains_base_;
  bool has_dora_, has_dropout_;
  double threads_;
};

/// What a layer keeps between its passes, and needs beside that in its backward pass.
struct KeptValues {
  double between = 0, in_backward = 0;
};

KeptValues kept_values(const LayerValues& layer, config::Checkpointing again, double hidden) {
  // A block that is computed again keeps its input.
  const bool whole = again == config::Checkpointing::kLayer,
             drops_mixer = whole || again == config::Checkpointing::kAttention,
             drops_feed_forward = whole || again == config::Checkpointing::kMlp;
  const double mixer = drops_mixer ? layer.mixer : 0,
               feed_forward = drops_feed_forward ? layer.feed_forward - (whole ? 0 : hidden) : 0;
  const double saved = layer.mixer + layer.feed_forward - mixer - feed_forward;
  // The state of the feed-forward block is freed before the mixer's backward pass.
  const double freed = layer.feed_forward - feed_forward;
  const double in_feed_forward = feed_forward + layer.through_feed_forward + (whole ? mixer : 0),
               in_mixer = mixer + layer.through_mixer - (whole ? 0 : freed);
  // The block is computed again while the gradient of its output waits.
  const double again_feed_forward = feed_forward + layer.run_feed_forward + (whole ? mixer : 0) +
                                    (drops_feed_forward ? hidden : 0);
  return {.between = hidden + saved,
          .in_backward = std::max({in_feed_forward, again_feed_forward, in_mixer})};
}

/// "delta net, experts"
std::string kind_name(const spec::ArchSpec& arch, int64_t layer) {
  const spec::LayerSpec& spec = arch.layers[static_cast<size_t>(layer)];
  const bool is_delta_net = spec::has_state(arch, layer);
  const char* feed_forward = !spec.sparse                ? "MLP"
                             : arch.mixture.beside_dense ? "MLP and experts"
                                                         : "experts";
  return fmt::format("{}, {}", is_delta_net ? "delta net" : "attention", feed_forward);
}

/// Rows whose logits exist at the same time (`chunk_rows` in src/layers/fused/fused_head.cpp).
int64_t logit_rows(int64_t tokens, int64_t vocab, bool on_gpu) {
  constexpr int64_t kRowBlock = 64;
  const int64_t rows =
      on_gpu ? std::max<int64_t>(1024, (int64_t{256} << 20) / vocab)
             : std::max(kRowBlock, (int64_t{32} << 20) / vocab / kRowBlock * kRowBlock);
  return std::min(tokens, rows);
}

/// On a GPU products read whole matrices: a quantised head is unpacked for its own.
bool unpacks_head(const config::TuningConfig& tuning, const MicroBatchShape& shape) {
  const bool is_quantised = tuning.quantises_base() ? tuning.quant_embeddings.value_or(false)
                                                    : tuning.quant == config::Quant::kGguf &&
                                                          tuning.quant_embeddings.value_or(true);
  return shape.on_gpu && tuning.trains_adapter() && is_quantised;
}

/// LibTorch's cuBLAS has a workspace among its tensors: 32 MiB on cards of compute capability 9, 8 MiB
/// on others.
constexpr int64_t kCublasWorkspace = int64_t{32} << 20;

bool trains_all(const config::TuningConfig& tuning) {
  return tuning.mode == config::TuningMode::kFull;
}

/// CPU: the gradient of a matrix that trains, before it is added to the gradients: a product in the
/// compute dtype, which is then copied to fp32. 0: none trains.
int64_t matrix_gradient_bytes(const config::TuningConfig& tuning, const MicroBatchShape& shape,
                              int64_t values) {
  constexpr int64_t kFp32 = 4;
  const bool is_copied = shape.element_bytes != kFp32;
  return trains_all(tuning) && !shape.on_gpu
             ? values * (kFp32 + (is_copied ? shape.element_bytes : 0))
             : 0;
}

/// CPU: the product in fp32 that the gradient of a norm's weight is the sum of
/// (`kernels::rms_norm_weight_grad`). 0: norms do not train.
int64_t norm_gradient_bytes(const config::TuningConfig& tuning, const MicroBatchShape& shape,
                            int64_t hidden) {
  constexpr int64_t kFp32 = 4;
  return trains_all(tuning) && !shape.on_gpu ? kFp32 * shape.tokens * hidden : 0;
}

/// oneDNN, which has the products in fp32 on a CPU, copies the logits' gradient to transpose it for
/// the gradient of the head. 0: the head does not train.
int64_t transposed_logits_bytes(const config::TuningConfig& tuning, const MicroBatchShape& shape,
                                int64_t logits) {
  constexpr int64_t kFp32 = 4;
  const bool copies = trains_all(tuning) && !shape.on_gpu && shape.element_bytes == kFp32;
  return copies ? kFp32 * logits : 0;
}

/// Values of the largest matrix of a layer.
int64_t largest_matrix(const spec::ArchSpec& arch) {
  int64_t largest = 0;
  for (int64_t layer = 0; layer < arch.num_layers; ++layer)
    for (const spec::LinearSpec& linear : spec::layer_linears(arch, layer))
      largest = std::max(largest, linear.in_features * linear.out_features);
  return largest;
}

/// On a GPU (src/layers/fused/fused_head.cpp): hidden states, those of labelled rows, normed, and
/// their gradients; beside a chunk of logits the gradients of its rows, or of the matrix.
int64_t head_bytes_on_gpu(const spec::ArchSpec& arch, const config::TuningConfig& tuning,
                          const MicroBatchShape& shape) {
  constexpr int64_t kFp32 = 4;
  const bool trains_base = !tuning.trains_adapter();
  const int64_t rows = logit_rows(shape.tokens, arch.vocab_size, true),
                of_row = arch.hidden_size * shape.element_bytes, matrix = arch.vocab_size * of_row;
  const int64_t chunk =
      rows * arch.vocab_size * shape.element_bytes +
      std::max(rows * of_row, trains_all(tuning) ? kFp32 * arch.vocab_size * arch.hidden_size : 0) +
      (unpacks_head(tuning, shape) ? matrix : 0);
  const int64_t norm = std::max(of_row, trains_base ? kFp32 * arch.hidden_size : 0) * shape.tokens;
  return 4 * shape.tokens * of_row + std::max(chunk, norm);
}

int64_t head_bytes(const spec::ArchSpec& arch, const config::TuningConfig& tuning,
                   const MicroBatchShape& shape) {
  if (shape.on_gpu) return head_bytes_on_gpu(arch, tuning, shape);
  // Hidden states, those of labelled rows, normed, and their gradients of the head and of the norm.
  const int64_t states = 5 * shape.tokens * arch.hidden_size;
  const int64_t logits = logit_rows(shape.tokens, arch.vocab_size, shape.on_gpu) * arch.vocab_size;
  const int64_t unpacked = unpacks_head(tuning, shape) ? arch.vocab_size * arch.hidden_size : 0;
  return (states + logits + unpacked) * shape.element_bytes +
         matrix_gradient_bytes(tuning, shape, arch.vocab_size * arch.hidden_size) +
         transposed_logits_bytes(tuning, shape, logits);
}

/// Angles of positions in fp32; a GPU has those of all positions, too (`model::RopeCache`).
int64_t angle_bytes(const spec::ArchSpec& arch, int64_t positions) {
  constexpr int64_t kFp32 = 4;
  return positions * static_cast<int64_t>(arch.ropes.size()) * arch.head_dim * kFp32;
}

/// Tokens, labels, dropout keys and positions, and the angles of each position.
int64_t batch_bytes(const spec::ArchSpec& arch, const MicroBatchShape& shape) {
  constexpr int64_t kOfToken = 64;
  return shape.tokens * kOfToken + angle_bytes(arch, shape.tokens);
}

/// On a GPU products read whole matrices: quantised ones are unpacked.
bool unpacks_layers(const config::TuningConfig& tuning, const MicroBatchShape& shape) {
  return shape.on_gpu && tuning.trains_adapter() &&
         (tuning.quantises_base() || tuning.keeps_blocks());
}

/// The largest matrix of all experts of a layer, for a grouped product.
int64_t unpacked_experts_bytes(const spec::ArchSpec& arch, const config::RunConfig& config,
                               const MicroBatchShape& shape) {
  if (!unpacks_layers(config.tuning, shape)) return 0;
  int64_t largest = 0;
  for (int64_t layer = 0; layer < arch.num_layers; ++layer)
    for (const spec::ExpertSpec& matrix : spec::layer_experts(arch, layer))
      largest =
          std::max(largest, arch.mixture.num_experts * matrix.in_features * matrix.out_features);
  return largest * shape.element_bytes;
}

/// Two buffers of the largest product of several linears (`layers::DequantPrefetcher`).
int64_t unpacking_bytes(const spec::ArchSpec& arch, const config::RunConfig& config,
                        const MicroBatchShape& shape) {
  if (!unpacks_layers(config.tuning, shape)) return 0;
  int64_t largest = 0;
  for (int64_t layer = 0; layer < arch.num_layers; ++layer) {
    std::map<std::string, int64_t> joints;
    for (const spec::LinearSpec& linear : spec::layer_linears(arch, layer)) {
      const int64_t size = linear.in_features * linear.out_features;
      const int64_t joint = linear.joint.empty() ? size : joints[linear.joint] += size;
      largest = std::max(largest, joint);
    }
  }
  return 2 * largest * shape.element_bytes;
}

/// Copies of a layer's adapters beside quantised weights, while the layer is used: where units leave,
/// others have none.
int64_t adapter_copies(const spec::ArchSpec& arch, const config::RunConfig& config,
                       const MicroBatchShape& shape) {
  const config::ParallelConfig& parallel = config.parallel;
  const bool units_leave = parallel.axes.has_shards() ||
                           parallel.offload.base == config::Offload::kCpu ||
                           parallel.offload.params == config::Offload::kCpu;
  if (!units_leave || !unpacks_layers(config.tuning, shape)) return 0;
  int64_t largest = 0;
  for (int64_t layer = 0; layer < arch.num_layers; ++layer)
    largest = std::max(largest, joint_adapter_bytes(arch, config, shape, layer));
  return largest;
}

/// Layers below it have no backward pass, and keep nothing.
int64_t first_trained_layer(const spec::ArchSpec& arch, const config::TuningConfig& tuning) {
  if (tuning.mode != config::TuningMode::kPartial) return 0;
  const std::vector<spec::TensorSpec> tensors = spec::tensor_specs(arch);
  const spec::TrainableNames names(tuning.trainable, tensors);
  int64_t first = arch.num_layers;
  for (const spec::TensorSpec& tensor : tensors) {
    if (tensor.role == spec::TensorRole::kBuffer || !names.match(tensor.name)) continue;
    if (tensor.role == spec::TensorRole::kEmbedding) return 0;
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
bool is_captured(const spec::ArchSpec& arch, const config::RunConfig& config,
                 const MicroBatchShape& shape) {
  if (!shape.on_gpu || config.train.cuda_graphs == config::CudaGraphs::kOff) return false;
  const bool chooses_by_lengths = config.model.attention == config::AttentionChoice::kCudnn ||
                                  config.model.attention == config::AttentionChoice::kMeasure;
  if (config.tuning.backend != config::TuningBackend::kFused || chooses_by_lengths ||
      config.train.objective_info().needs_sums() ||
      config.parallel.offload.activations == config::Offload::kCpu)
    return false;
  const config::Axes& axes = config.parallel.axes;
  const bool communicates = axes.divides_model() || axes.has_shards() ||
                            (axes.dp_replicate > 1 && !config.tuning.trains_adapter());
  if (communicates) return false;
  const bool has_delta_nets = spec::any_has_state(arch);
  const bool has_aux_loss =
      spec::aux_loss_coef(config.train.router_aux_loss_coef, arch.mixture).value_or(0) > 0;
  if (has_delta_nets || has_aux_loss) return false;
  return config.train.cuda_graphs == config::CudaGraphs::kOn ||
         shape.tokens <= spec::tokens_worth_a_graph(arch, trains_all(config.tuning));
}

/// What a captured pass has of its own beside activations: a workspace of cuBLAS, and its inputs.
int64_t graph_bytes(const spec::ArchSpec& arch, const config::RunConfig& config,
                    const MicroBatchShape& shape) {
  return is_captured(arch, config, shape) ? kCublasWorkspace + batch_bytes(arch, shape) : 0;
}

}  // namespace

spec::ArchSpec device_arch(const spec::ArchSpec& arch, const config::Axes& axes) {
  return axes.tp == 1 ? arch : spec::part_of(arch, {.rank = axes.tp - 1, .size = axes.tp});
}

int64_t joint_adapter_bytes(const spec::ArchSpec& arch, const config::RunConfig& config,
                            const MicroBatchShape& shape, int64_t layer) {
  if (!joins_linears(config, shape)) return 0;
  struct Joint {
    int64_t rank = 0, inputs = 0, outputs = 0;
  };
  const spec::LoraSpec lora = lora_spec(config.tuning.lora);
  std::map<std::string, Joint> joints;
  for (const spec::LinearSpec& linear : spec::layer_linears(arch, layer)) {
    if (linear.joint.empty()) continue;
    Joint& joint = joints[linear.joint];
    joint.inputs = linear.in_features, joint.outputs += linear.out_features;
    const std::string name = spec::name_in_layer(arch, layer, linear.module);
    if (spec::is_target(lora, name, linear, arch))
      joint.rank += lora.r_of(spec::update_name(lora, name));
  }
  int64_t values = 0;
  for (const auto& [name, joint] : joints) {
    const int64_t ranks = (joint.rank + kJointStep - 1) / kJointStep * kJointStep;
    values += ranks * (joint.inputs + joint.outputs + ranks);
  }
  return values * shape.element_bytes;
}

std::vector<LayerKind> layer_kinds(const spec::ArchSpec& whole, const config::RunConfig& config,
                                   const MicroBatchShape& shape) {
  const spec::ArchSpec arch = device_arch(whole, config.parallel.axes);
  const LayerEstimate estimate(arch, config, shape);
  const auto hidden = static_cast<double>(arch.hidden_size),
             bytes = static_cast<double>(shape.tokens * shape.element_bytes);
  std::vector<LayerKind> kinds;
  for (int64_t layer = 0; layer < arch.num_layers; ++layer) {
    const std::string name = kind_name(arch, layer);
    auto kind = std::find_if(kinds.begin(), kinds.end(),
                             [&](const LayerKind& known) { return known.name == name; });
    if (kind == kinds.end()) kind = kinds.insert(kinds.end(), {.name = name});
    ++kind->layers;
    const LayerValues saved = estimate.of(layer);
    using enum config::Checkpointing;
    for (const config::Checkpointing again : {kNone, kMlp, kAttention, kLayer}) {
      const KeptValues values = kept_values(saved, again, hidden);
      LayerBytes& of_kind = kind->bytes[again];
      of_kind.kept += std::llround(values.between * bytes);
      of_kind.in_backward =
          std::max<int64_t>(of_kind.in_backward, std::llround(values.in_backward * bytes));
    }
  }
  return kinds;
}

StepMemory step_memory(const spec::ArchSpec& whole, const config::RunConfig& config,
                       const MicroBatchShape& shape) {
  const spec::ArchSpec arch = device_arch(whole, config.parallel.axes);
  const LayerEstimate estimate(arch, config, shape);
  const config::Checkpointing again = config.train.gradient_checkpointing;
  const auto hidden = static_cast<double>(arch.hidden_size);
  constexpr int64_t kInputsUnderWay = 3;  // one is used, and its neighbours are copied
  const bool on_host = again == config::Checkpointing::kLayer && shape.on_gpu &&
                       config.parallel.offload.activations == config::Offload::kCpu;
  const bool frees_layers = !on_host && !config.parallel.axes.has_stages();
  double kept = 0, largest = 0;
  // The last layer comes first in the backward pass, and frees what it kept.
  const int64_t first = first_trained_layer(arch, config.tuning);
  for (int64_t layer = arch.num_layers - 1; layer >= first; --layer) {
    const KeptValues values = kept_values(estimate.of(layer), again, hidden);
    largest = std::max(largest, values.in_backward - (frees_layers ? kept : 0));
    kept += values.between;
  }
  if (on_host) kept = hidden * static_cast<double>(std::min(kInputsUnderWay, arch.num_layers));
  const double bytes = static_cast<double>(shape.tokens * shape.element_bytes);
  const int64_t at_once = micro_batches_at_once(config);
  kept *= share_of_stage(whole, config) * static_cast<double>(at_once);
  kept += hidden * static_cast<double>(at_once - 1);  // gradients between two units
  // What a stage sends stays until the next one has received it.
  const config::Axes& axes = config.parallel.axes;
  if (shape.on_gpu && axes.has_stages() && !axes.stages_in_process) kept += hidden;
  return {.kept = std::llround(kept * bytes),
          .layer = std::llround(largest * bytes) +
                   matrix_gradient_bytes(config.tuning, shape, largest_matrix(arch)) +
                   norm_gradient_bytes(config.tuning, shape, arch.hidden_size) +
                   unpacked_experts_bytes(arch, config, shape),
          .head = head_bytes(arch, config.tuning, shape),
          .workspace =
              at_once * batch_bytes(arch, shape) + unpacking_bytes(arch, config, shape) +
              adapter_copies(arch, config, shape) + graph_bytes(whole, config, shape) +
              (shape.on_gpu ? kCublasWorkspace + angle_bytes(arch, config.model.max_seq_len) : 0)};
}

}  // namespace sftrun::plan
