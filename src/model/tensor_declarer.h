#pragma once

#include <deque>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "adapter_parameters.h"
#include "model_tensors.h"
#include "sftrun/model/decoder.h"
#include "sftrun/spec/trained_names.h"
#include "sftrun/weights/peft.h"
#include "tensor_slot.h"

namespace sftrun::model {

/// Which base tensors train.
class Selection {
 public:
  Selection(const DecoderOptions& options, const std::vector<spec::TensorSpec>& tensors)
      : trains_(options.trains) {
    if (options.trains == Trains::kPartial) names_.emplace(options.trainable, tensors);
    if (options.trains == Trains::kLora) saved_ = options.lora.modules_to_save;
  }

  bool trains(const std::string& name) const {
    return trains_ == Trains::kFull || (names_ && names_->match(name)) ||
           spec::is_saved(saved_, name);
  }
  /// Name of the parameter in files.
  std::string parameter_name(const std::string& name) const {
    return trains_ == Trains::kLora ? weights::saved_name(name) : name;
  }

 private:
  Trains trains_;
  std::optional<spec::TrainableNames> names_;
  std::vector<std::string> saved_;
};

/// Makes the units and layers of a decoder, the parameters of what trains, and the list of places for the
/// model's tensors. Nothing has values yet.
class TensorDeclarer {
 public:
  TensorDeclarer(Decoder& decoder, const ModelTensors& tensors);

  /// @throws ConfigError for names in `skip_modules` that no module has
  void declare();
  const std::vector<TensorSlot>& slots() const { return slots_; }
  /// Whether the head uses the weight of the embedding.
  bool ties_head() const;

 private:
  int64_t unit_of(int64_t layer) const;
  /// Marks the tensor declared last as one that may be quantised.
  void allow_quantized(const std::string& module,
                       std::optional<kernels::QuantizedMatrix>& quantized);
  void declare_tensor(const std::string& name, int64_t unit, at::Tensor* weight,
                      layers::Parameter** parameter, bool in_fp32 = false);
  /// Whether it names modules of the image side, which this decoder does not have.
  bool is_of_unloaded_tower(const std::string& module) const;
  void require_skips_used() const;
  void declare_linear(layers::Linear& linear, const spec::LinearSpec& spec, int64_t layer,
                      uint32_t number);
  void declare_linear(layers::Linear& linear, const std::string& name, const spec::LinearSpec& spec,
                      int64_t unit, uint32_t number);
  void divide(layers::Linear& linear, Division division) const;
  bool adapts_embedding_or_head(const std::string& module) const;
  void declare_tower();
  void declare_projectors();
  void declare_embedding();
  int64_t first_token() const;
  /// The tokens are the inputs of the embedding and the outputs of the head.
  Division division_of_vocabulary(Division division) const;
  void declare_head(int64_t unit);
  bool may_quantise_embeddings() const;
  void declare_experts(layers::ExpertMatrix& matrix, const spec::ExpertSpec& spec, int64_t layer,
                       uint32_t number);
  /// The bias of down_proj is added to the sum over the ranks' inner channels: by the first rank.
  void declare_expert_bias(layers::ExpertMatrix& matrix, const spec::ExpertSpec& spec,
                           int64_t layer);
  void declare_norm(layers::Norm& norm, const spec::NormSpec& spec, const std::string& name,
                    int64_t unit);
  void declare_per_layer_inputs(uint32_t number);
  /// Norms, weights, linears and experts, each kind of all blocks: parameters are numbered in this
  /// order.   @param number of the next linear or expert matrix
  void declare_layer(int64_t l, uint32_t& number);
  /// Whether a tied head becomes a separate tensor, because it or the embedding is trained in full.
  bool unties_head() const;
  /// The separate head starts with the values of the embedding.
  void declare_untied_head(int64_t unit);
  std::string embedding_name() const;

  Decoder& d_;
  const ModelTensors& tensors_;
  const spec::ArchSpec part_;  // sizes of what this rank has of each layer
  Selection selection_;
  const spec::LoraSpec& lora_;
  AdapterParameters adapters_;
  std::vector<TensorSlot> slots_;
  std::deque<layers::Weight> unused_biases_;
  std::set<std::string> skips_used_;
};

}  // namespace sftrun::model
