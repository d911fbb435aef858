#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/core/interruption.h"
#include "sftrun/core/model_part.h"
#include "sftrun/layers/backend.h"
#include "sftrun/layers/embedding.h"
#include "sftrun/layers/layer.h"
#include "sftrun/layers/parameter.h"
#include "sftrun/layers/per_layer_inputs.h"
#include "sftrun/layers/projector.h"
#include "sftrun/layers/tower.h"
#include "sftrun/layers/unit.h"
#include "sftrun/model/decoder_joints.h"
#include "sftrun/model/packed_batch.h"
#include "sftrun/spec/arch_spec.h"
#include "sftrun/spec/lora_spec.h"
#include "sftrun/spec/tensor_parallel.h"
#include "sftrun/weights/checkpoint.h"

/// One decoder for every model family; the `ArchSpec` describes what it computes.
namespace sftrun::model {

/// How the frozen linear layers are stored. Routers always stay in fp32.
struct BaseForm {
  /// Keep matrices in the quantised format of the checkpoint; if `quant` is set, only those that
  /// are already in its format, and the experts' tensors.
  bool keep_stored = false;
  /// Quantise the other matrices when they are loaded.
  std::optional<QuantOptions> quant;
  /// Whether this includes embedding and head; nullopt: they keep the checkpoint's format.
  std::optional<bool> embeddings;
  /// Modules to keep in the compute dtype (dequantised if the checkpoint is quantised), by name or
  /// part of a name ("lm_head", "layers.0.mlp").
  std::vector<std::string> skip_modules;
};

enum class Trains { kNothing, kLora, kFull, kPartial };

/// Frozen weights that several decoders on one device use, each with its own adapter. The first one
/// that needs a tensor reads it. For decoders of the same checkpoint, dtype and BaseForm.
struct SharedWeights {
  std::map<std::string, at::Tensor> dense;  ///< by name
  std::map<std::string, kernels::QuantizedMatrix> quantized;
};

struct DecoderOptions {
  at::ScalarType dtype = at::kFloat;  ///< of weights and activations
  at::Device device = at::kCPU;
  const layers::Backend* backend = nullptr;  ///< null: fused
  Trains trains = Trains::kNothing;
  TrainedParts parts;  ///< to which `trains` applies
  spec::LoraSpec lora;
  std::filesystem::path
      pissa_from;  ///< PiSSA's initial A and B of a checkpoint; empty: compute them
  std::vector<std::string> trainable;  ///< kPartial: regular expressions over parameter names,
                                       ///< matched as by Python's re.search
  BaseForm base;
  /// Loads the tower and the mergers of a model that takes images, too.
  bool with_vision = false;
  /// Units that are loaded, for the stage of a pipeline, counted from the embedding; a stage with the
  /// embedding has the tower, too. A tied head needs the embedding, too.
  layers::UnitRange held = {};
  layers::BufferLayout buffers;  ///< its `held` and `borrowed` follow from `held`
  /// Called when the weights of a unit are complete, if buffers are per unit. It may release their
  /// memory, so that loading needs the memory of one unit beside what is kept of the others.
  std::function<void(int64_t index, layers::Unit& unit, layers::FlatValues* trained)>
      on_unit_loaded;
  /// Called before each part of the loading. It may throw, to end it.
  std::function<void()> stop_point = interruption_point;
  /// Tensor parallelism: the part of each matrix that is loaded.
  spec::TensorParallel tensor;
  const layers::TensorRanks* tensor_ranks = nullptr;      ///< null: tensor.size is 1
  const layers::SequenceRanks* sequence_ranks = nullptr;  ///< context parallelism; null: none
  bool gradient_checkpointing = false;                    ///< of whole layers
  layers::Recomputed recomputed = layers::Recomputed::kNothing;  ///< of parts of layers
  /// `on_unit_loaded` reads frozen weights itself, as much of them as it keeps (`unit.frozen.read`).
  bool leaves_frozen_unread = false;
  bool inputs_on_host = false;  ///< with gradient checkpointing on a GPU: see `SavedInputs`
  kernels::CudaAttention attention = kernels::CudaAttention::kFlash;  ///< on CUDA
  /// null: the decoder's own. Shared weights are not joined, because joining moves them, and PiSSA,
  /// which changes them, needs its own.
  std::shared_ptr<SharedWeights> shared_weights;
  double neftune_noise_alpha = 0;  ///< NEFTune; 0: off
  uint64_t seed = 42;              ///< for the initialisation of adapters
};

using layers::Layer;

/// Reads a frozen or initial weight: contiguous, on CPU or already on the device.
/// @param stays the tensor is used in place, so it may be a view of the mapped file; false: it is
/// copied afterwards, and reading is preferred to mapping
using WeightSource = std::function<at::Tensor(
    const std::string& name, const std::vector<int64_t>& shape, at::ScalarType dtype, bool stays)>;

class Decoder {
 public:
  /// The decoder shares ownership of the checkpoint, whose file mapping it may use in place.
  /// @throws ConfigError if target_modules or trainable match nothing; lists the valid names
  static std::unique_ptr<Decoder> load(std::shared_ptr<const weights::Checkpoint> checkpoint,
                                       const DecoderOptions& options);
  /// Random weights (benchmarks): uniform with standard deviation 0.02.
  static std::unique_ptr<Decoder> random(const spec::ArchSpec& arch, const DecoderOptions& options);

  /// The units in order of use: those of the tower, the projectors of features, the embedding, each
  /// layer, the final norm with the head.
  std::vector<layers::Unit>& units() { return units_; }
  const std::vector<layers::Unit>& units() const { return units_; }
  int64_t embedding_unit() const { return num_tower_units() + std::ssize(projectors_); }
  int64_t num_tower_units() const { return tower_.is_defined() ? tower_.num_units() : 0; }
  int64_t layer_unit(int64_t layer) const { return layers_[static_cast<size_t>(layer)].unit; }
  int64_t head_unit() const { return static_cast<int64_t>(units_.size()) - 1; }
  /// Whether a parameter of this unit or of one before it trains.
  bool trains_at_or_below(int64_t unit) const {
    return !store_.empty() && store_.parameters().front().unit <= unit;
  }
  /// Whether a parameter of a unit before this one trains.
  bool trains_below(int64_t unit) const { return trains_at_or_below(unit - 1); }
  /// The units of this process: all, or a stage of a pipeline.
  layers::UnitRange held_units() const {
    return {options_.held.first, std::min(options_.held.end, head_unit() + 1)};
  }
  /// Whether layers share state beside the hidden states: keys of other layers, per-layer inputs.
  bool shares_state_between_layers() const { return shares_keys_ || per_layer_.defined(); }

  layers::ParameterStore& parameters() { return store_; }
  /// Of the whole model.
  const spec::ArchSpec& arch() const { return arch_; }
  const DecoderOptions& options() const { return options_; }
  RopeCache& rope() { return rope_; }
  /// Device and copy stream for `prepare_batch`.
  const BatchTarget& batch_target() const { return batch_target_; }
  /// Where micro-batches get their images from.   @pre options().with_vision
  void read_images_from(std::shared_ptr<ImageSource> source) {
    batch_target_.images = std::move(source);
  }
  /// Of micro-batches from now on (BatchTarget::faults).
  void note_media_faults_in(data::MediaFaults* faults) { batch_target_.faults = faults; }
  const layers::Backend& backend() const { return backend_; }
  std::vector<Layer>& layers() { return layers_; }
  const layers::PerLayerInputs& per_layer() const { return per_layer_; }
  const layers::Head& head() const { return head_; }
  layers::Head& head() { return head_; }
  layers::Embedding& embedding() { return embedding_; }
  const layers::Tower& tower() const { return tower_; }
  /// Of features that other encoders computed, in the order of `ArchSpec::projectors`.
  const std::vector<layers::Projector>& projectors() const { return projectors_; }
  /// Products of several linears that are computed as one.
  DecoderJoints& joints() { return joints_; }
  /// @param adapters false: without the embedding's adapter
  at::Tensor embed(const at::Tensor& tokens, bool adapters = true) const;
  /// Embeddings, with NEFTune noise if enabled.
  at::Tensor embed_for_training(const PackedBatch& batch) const;
  /// Creates `context.shared_state` for this batch if layers share state.
  /// @param hidden output of `embed`   @param keep receives what the backward pass needs
  void open_shared_state(layers::BatchContext& context, const at::Tensor& tokens,
                         const at::Tensor& hidden, layers::PerLayerRun* keep = nullptr) const;
  /// Makes the layers of this batch count their routers' choices.
  static void count_router_choices(layers::BatchContext& context);
  /// PiSSA: initial A and B by parameter name, of the adapters of this process's units; empty for
  /// other adapters.
  const std::map<std::string, at::Tensor>& principal_parts() const { return principal_parts_; }
  /// Completes them by those of other processes.
  void set_principal_parts(std::map<std::string, at::Tensor> parts) {
    principal_parts_ = std::move(parts);
  }
  /// All linear modules except the head, in tensor order: those of the tower, then the text model's.
  std::vector<layers::Linear*> linears();
  /// Linear modules with an adapter, including the head.
  std::vector<layers::Linear*> adapted_linears();
  /// For adapters that no longer change: computes DoRA's row norms once instead of in every pass.
  void freeze_adapters();
  /// Bytes of frozen weights on the device.
  uint64_t base_bytes() const { return base_bytes_; }
  /// Bytes of the model's files that this process read or uses in place.
  uint64_t file_bytes() const { return *file_bytes_; }

 private:
  Decoder(spec::ArchSpec arch, DecoderOptions options);
  void add_tower();
  void build(const WeightSource& source);
  /// Rounds to the compute dtype, as Gemma does with the scale of embeddings.
  double rounded(double scale) const;

  spec::ArchSpec arch_;
  DecoderOptions options_;
  const layers::Backend& backend_;
  RopeCache rope_;
  BatchTarget batch_target_;
  layers::ParameterStore store_;
  std::vector<layers::Unit> units_;
  std::shared_ptr<const weights::Checkpoint> checkpoint_;
  layers::Tower tower_;
  std::vector<layers::Projector> projectors_;
  layers::Embedding embedding_;
  layers::PerLayerInputs per_layer_;
  bool shares_keys_ = false;
  std::map<std::string, at::Tensor> principal_parts_;
  std::vector<Layer> layers_;
  DecoderJoints joints_{options_, store_, layers_};
  layers::Head head_;
  uint64_t base_bytes_ = 0;
  std::shared_ptr<uint64_t> file_bytes_ = std::make_shared<uint64_t>(0);  // readers add to it

  friend class DecoderBuilder;
  friend class TensorDeclarer;
};

}  // namespace sftrun::model
