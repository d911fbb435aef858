#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/kernels/backend.h"
#include "sftrun/kernels/embedding.h"
#include "sftrun/kernels/layer.h"
#include "sftrun/kernels/parameter.h"
#include "sftrun/kernels/per_layer_inputs.h"
#include "sftrun/model/packed_batch.h"
#include "sftrun/spec/arch_spec.h"
#include "sftrun/spec/trained_names.h"
#include "sftrun/weights/checkpoint.h"

/// One decoder for every model family: what it computes is in the `ArchSpec`.
namespace sftrun::model {

struct LoraOptions {
  int64_t r = 16;
  double alpha = 32, dropout = 0;
  bool rslora = false;
  std::vector<std::string> target_modules = {
      "all-linear"};  ///< name endings, as peft matches them, or "all-linear", which is all linear
                      ///< layers but the head
  /// Experts' tensors and routers by name endings, as peft matches them: "mlp.experts.down_proj".
  std::vector<std::string> target_parameters;
  bool target_is_pattern =
      false;  ///< target_modules holds one regular expression over whole module names

  spec::NamePattern rank_pattern, alpha_pattern;  ///< of single updates
  bool dora = false;
  bool pissa = false;  ///< the base is what the principal parts leave
  std::filesystem::path
      pissa_from;  ///< principal parts as a checkpoint has them; empty: found anew
  /// Modules that train whole, by the ends of their names. A head that is tied to the embedding
  /// parts from it when either is named, as in peft.
  std::vector<std::string> modules_to_save;

  spec::LoraTargets targets() const;
  spec::LoraSizes sizes() const { return {r, alpha, rslora, rank_pattern, alpha_pattern, dora}; }
};

/// How frozen linear layers are held, but routers.
struct BaseForm {
  /// Those that the checkpoint holds in fewer bits stay as they are; with `quant` only those in its
  /// very format, and the experts' tensors.
  bool keep_stored = false;
  /// The others are quantised when they are loaded.
  std::optional<kernels::QuantOptions> quant;
  /// Whether that goes for embedding and head, too; nullopt: they stay as the checkpoint has them.
  std::optional<bool> embeddings;
  /// In the compute dtype whatever they were: names or parts of names ("lm_head", "layers.0.mlp").
  std::vector<std::string> skip_modules;
};

enum class Trains { kNothing, kLora, kFull, kPartial };

struct DecoderOptions {
  at::ScalarType dtype = at::kFloat;  ///< of weights and activations
  at::Device device = at::kCPU;
  const kernels::Backend* backend = nullptr;  ///< null: fused
  Trains trains = Trains::kNothing;
  LoraOptions lora;
  std::vector<std::string> trainable;  ///< regular expressions over parameter names (kPartial),
                                       ///< searched as in Python's re.search
  BaseForm base;
  bool gradient_checkpointing = false;
  kernels::CudaAttention attention = kernels::CudaAttention::kFlash;  ///< on CUDA
  double neftune_noise_alpha = 0;  ///< of the noise on embeddings while training; 0: none
  uint64_t seed = 42;              ///< of freshly initialised adapters
};

using kernels::Layer;

/// Where frozen and initial weights come from: contiguous, on CPU. What is to stay may be used
/// where it lies in a file; what is copied anyway is better read.
using WeightSource = std::function<at::Tensor(
    const std::string& name, const std::vector<int64_t>& shape, at::ScalarType dtype, bool stays)>;

class Decoder {
 public:
  /// Keeps the checkpoint's mapping alive where weights are used in place.
  /// @throws ConfigError when target_modules or trainable match nothing, naming what there is.
  static std::unique_ptr<Decoder> load(std::shared_ptr<const weights::Checkpoint> checkpoint,
                                       const DecoderOptions& options);
  /// Random weights of the right shapes (benchmarks): uniform with standard deviation 0.02.
  static std::unique_ptr<Decoder> random(const spec::ArchSpec& arch, const DecoderOptions& options);

  /// Called when all gradients of a parameter group are complete for this micro-batch, in backward
  /// order.
  using GroupDone = std::function<void(int64_t group)>;

  /// The routers' load-balancing loss of one batch (`kernels::RouterBalance`).
  struct AuxLoss {
    double grad_scale = 0;  ///< of its gradient
    at::Tensor value;       ///< set: a scalar in fp64, unscaled
  };
  /// Adds the gradient of grad_scale * (sum of token losses) to the parameters' gradients.
  /// @param aux likewise; null: none
  /// @return the sum of token losses, unscaled: a scalar in fp64 on the device, which nobody has
  /// waited for. An empty batch only reports its groups.
  at::Tensor forward_backward(const PackedBatch& batch, double grad_scale, const GroupDone& done,
                              AuxLoss* aux = nullptr);
  /// Sum of token losses, without gradients: a scalar in fp64 on the device.
  at::Tensor loss(const PackedBatch& batch);
  /// -log p of each labelled row [N] fp32, without gradients.
  at::Tensor token_losses(const PackedBatch& batch);
  /// Logits of chosen rows [N, vocab] in the compute dtype, without gradients.
  at::Tensor logits(const PackedBatch& batch, const at::Tensor& rows);

  kernels::ParameterStore& parameters() { return store_; }
  const spec::ArchSpec& arch() const { return arch_; }
  const DecoderOptions& options() const { return options_; }
  RopeCache& rope() { return rope_; }
  /// Where `prepare_batch` sends the batches of this model.
  const BatchTarget& batch_target() const { return batch_target_; }
  std::vector<Layer>& layers() { return layers_; }
  const kernels::Head& head() const { return head_; }
  kernels::Head& head() { return head_; }
  kernels::Embedding& embedding() { return embedding_; }
  /// Before layers run one by one (generation): what is made of the adapters' matrices is made
  /// again, where they have changed.
  void prepare_joints(kernels::UnpackAhead::Pass pass = kernels::UnpackAhead::Pass::kForward);
  /// The first half of it, which a captured pass leaves out.
  void refresh_joints();
  /// The current stream waits for whatever is unpacked ahead: before a captured pass, and at its
  /// end.
  void join_unpacking();
  /// Where the capture of a pass has failed.
  void forget_unpacking();
  at::Tensor embed(const at::Tensor& tokens) const;
  /// With the noise that training asks for.
  at::Tensor embed_for_training(const PackedBatch& batch) const;
  /// What layers have of one another in this batch, where they have anything: fills
  /// `context.exchange`. @param hidden what `embed` gave
  void open_exchange(kernels::BatchContext& context, const at::Tensor& tokens,
                     const at::Tensor& hidden, kernels::PerLayerRun* keep = nullptr) const;
  /// PiSSA: what left the base, by the names of the updates' parameters; else empty.
  const std::map<std::string, at::Tensor>& principal_parts() const { return principal_parts_; }
  /// Every linear module but the head, in the order of the tensors.
  std::vector<kernels::Linear*> linears();
  /// Those with an update, the head among them.
  std::vector<kernels::Linear*> adapted_linears();
  /// For adapters that no longer change: DoRA's lengths are computed once instead of at every pass.
  void settle_adapters();
  /// Bytes of frozen weights on the device.
  uint64_t base_bytes() const { return base_bytes_; }

 private:
  Decoder(spec::ArchSpec arch, DecoderOptions options);
  void build(const WeightSource& source);
  at::Tensor hidden_without_grad(const PackedBatch& batch);
  /// Returns the loss and writes the gradient of `hidden` where anything below trains.
  at::Tensor head_forward_backward(const PackedBatch& batch, const at::Tensor& hidden,
                                   double grad_scale, at::Tensor& grad);
  static void count_router_choices(kernels::BatchContext& context);
  at::Tensor no_loss() const;
  bool trains_below(int64_t group) const;
  kernels::BatchContext head_rows(const PackedBatch& batch) const;
  /// To the compute dtype, as Gemma does with what embeddings are multiplied by.
  double rounded(double scale) const;

  spec::ArchSpec arch_;
  DecoderOptions options_;
  const kernels::Backend& backend_;
  RopeCache rope_;
  BatchTarget batch_target_;
  kernels::ParameterStore store_;
  std::shared_ptr<const weights::Checkpoint> checkpoint_;
  kernels::Embedding embedding_;
  kernels::PerLayerInputs per_layer_;
  bool shares_keys_ = false;
  std::map<std::string, at::Tensor> principal_parts_;
  std::vector<Layer> layers_;
  kernels::JointAdapters joint_adapters_;
  std::unique_ptr<kernels::UnpackAhead> unpacking_;  // null: no joint linears are quantised
  uint64_t joints_version_ = 0;                      // of the store's compute copies
  kernels::Head head_;
  int64_t first_trained_group_ = 0;
  uint64_t base_bytes_ = 0;

  friend class DecoderBuilder;
};

}  // namespace sftrun::model
