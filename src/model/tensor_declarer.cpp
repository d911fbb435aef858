#include "tensor_declarer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "describe_layer.h"
#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"
#include "sftrun/plan/tower.h"

namespace sftrun::model {
namespace {

bool decays(const spec::TensorSpec& tensor) {
  return tensor.role != spec::TensorRole::kNorm && tensor.role != spec::TensorRole::kBias;
}

/// Module numbers for random streams. Linear layers count from 0; the noise uses 0xFFFFFFFF.
constexpr uint32_t kEmbeddingNumber = 0xFFFFFFFE, kHeadNumber = 0xFFFFFFFD;
/// The tower's linears: those of the text model have the same numbers with a tower and without.
constexpr uint32_t kFirstOfTower = 0x80000000;

}  // namespace

TensorDeclarer::TensorDeclarer(Decoder& decoder, const ModelTensors& tensors)
    : d_(decoder),
      tensors_(tensors),
      part_(spec::part_of(decoder.arch_, decoder.options_.tensor)),
      selection_(decoder.options_, tensors.all()),
      lora_(decoder.options_.lora),
      adapters_(decoder.store_, decoder.arch_, decoder.options_.lora) {}

int64_t TensorDeclarer::unit_of(int64_t layer) const {
  return d_.layer_unit(layer);
}

void TensorDeclarer::allow_quantized(const std::string& module,
                                     std::optional<kernels::QuantizedMatrix>& quantized) {
  bool is_skipped = false;
  for (const std::string& name : d_.options_.base.skip_modules) {
    if (!has_path_part(module, name)) continue;
    is_skipped = true;
    skips_used_.insert(name);
  }
  if (!is_skipped && *slots_.back().parameter == nullptr) slots_.back().quantized = &quantized;
}

void TensorDeclarer::declare_tensor(const std::string& name, int64_t unit, at::Tensor* weight,
                                    layers::Parameter** parameter, bool in_fp32) {
  const spec::TensorSpec& tensor = tensors_.spec(name);
  if (tensor.role != spec::TensorRole::kBuffer && d_.options_.parts.has(tensor.part) &&
      selection_.trains(name)) {
    *parameter = adapters_.add(selection_.parameter_name(name), tensor.shape,
                               tensors_.slice_of(name), unit, decays(tensor));
    (*parameter)->role = tensor.role;
    (*parameter)->part = tensor.part;
    (*parameter)->layout = tensor.layout;
    (*parameter)->in_fp32 = in_fp32;
  }
  slots_.push_back({name, weight, parameter, in_fp32 ? at::kFloat : d_.options_.dtype, unit});
}

bool TensorDeclarer::is_of_unloaded_tower(const std::string& module) const {
  if (!d_.arch_.vision || d_.options_.with_vision) return false;
  return std::ranges::any_of(plan::tower_tensors(d_.arch_), [&](const spec::TensorSpec& tensor) {
    return has_path_part(tensor.name, module);
  });
}

void TensorDeclarer::require_skips_used() const {
  for (const std::string& name : d_.options_.base.skip_modules) {
    if (skips_used_.contains(name) || is_of_unloaded_tower(name)) continue;
    throw ConfigError(fmt::format("no module of the model is named `{}`", name),
                      "tuning.skip_modules",
                      "name modules as the model does: down_proj or layers.0.mlp");
  }
}

void TensorDeclarer::declare_linear(layers::Linear& linear, const spec::LinearSpec& spec,
                                    int64_t layer, uint32_t number) {
  declare_linear(linear, spec::name_in_layer(d_.arch_, layer, spec.module), spec, unit_of(layer),
                 number);
}

void TensorDeclarer::declare_linear(layers::Linear& linear, const std::string& name,
                                    const spec::LinearSpec& spec, int64_t unit, uint32_t number) {
  // fp32, so that rounding does not change which experts are chosen.
  const bool in_fp32 = spec.is_router;
  linear.name = name;
  if (tensors_.slice_of(name + ".weight") != nullptr) divide(linear, spec.division);
  declare_tensor(name + ".weight", unit, &linear.weight, &linear.weight_parameter, in_fp32);
  if (!in_fp32) allow_quantized(name, linear.quantized);
  if (spec.bias)
    declare_tensor(name + ".bias", unit, &linear.bias, &linear.bias_parameter, in_fp32);
  if (d_.options_.trains != Trains::kLora ||
      !d_.options_.parts.has(tensors_.spec(name + ".weight").part) ||
      !spec::is_target(lora_, linear.name, spec, d_.arch_))
    return;
  linear.lora = adapters_.lora({.module = name,
                                .pattern_name = spec::update_name(lora_, name),
                                .in = spec.in_features,
                                .out = spec.out_features,
                                .unit = unit,
                                .number = number,
                                .part = tensors_.spec(name + ".weight").part,
                                .division = linear.division,
                                .slice = tensors_.slice_of(name + ".weight")});
  linear.lora->a->in_fp32 = linear.lora->b->in_fp32 = in_fp32;
  linear.lora->dropout = lora_.dropout;
}

void TensorDeclarer::divide(layers::Linear& linear, Division division) const {
  if (d_.options_.tensor_ranks == nullptr) return;
  linear.division = division;
  linear.ranks = d_.options_.tensor_ranks;
}

bool TensorDeclarer::adapts_embedding_or_head(const std::string& module) const {
  return d_.options_.trains == Trains::kLora && d_.options_.parts.language &&
         spec::is_end_target(lora_, module);
}

void TensorDeclarer::declare_embedding() {
  layers::Embedding& embedding = d_.embedding_;
  embedding.name = spec::embedding_module(d_.arch_);
  embedding.scale = d_.rounded(d_.arch_.embedding_scale);
  embedding.ranks = d_.options_.tensor_ranks;
  embedding.first_token = first_token();
  declare_tensor(embedding_name(), d_.embedding_unit(), &embedding.weight, &embedding.parameter);
  if (may_quantise_embeddings()) allow_quantized(embedding.name, embedding.quantized);
  if (!adapts_embedding_or_head(embedding.name)) return;
  embedding.lora = adapters_.lora({.module = embedding.name,
                                   .pattern_name = embedding.name,
                                   .in = d_.arch_.vocab_size,
                                   .out = d_.arch_.hidden_size,
                                   .unit = d_.embedding_unit(),
                                   .number = kEmbeddingNumber,
                                   .of_embedding = true,
                                   .division = division_of_vocabulary(Division::kInputs),
                                   .slice = tensors_.slice_of(embedding_name())});
}

int64_t TensorDeclarer::first_token() const {
  return spec::vocabulary_of(d_.arch_, d_.options_.tensor).begin;
}

Division TensorDeclarer::division_of_vocabulary(Division division) const {
  return d_.options_.tensor_ranks == nullptr ? Division::kNone : division;
}

void TensorDeclarer::declare_head(int64_t unit) {
  layers::Linear& head = d_.head_.linear;
  if (d_.arch_.score) {
    head.name = spec::kScoreModule;
    declare_tensor(spec::kScoreTensor, unit, &head.weight, &head.weight_parameter,
                   /*in_fp32=*/true);
    return;
  }
  head.name = spec::kHeadModule;
  divide(head, Division::kOutputs);
  d_.head_.first_token = first_token();
  d_.head_.vocab_size = d_.arch_.vocab_size;
  if (!d_.arch_.tie_word_embeddings) {
    declare_tensor("lm_head.weight", unit, &head.weight, &head.weight_parameter);
    if (may_quantise_embeddings()) allow_quantized(head.name, head.quantized);
  } else if (unties_head()) {
    declare_untied_head(unit);
  }
  if (!adapts_embedding_or_head(head.name)) return;
  head.lora = adapters_.lora({.module = head.name,
                              .pattern_name = head.name,
                              .in = d_.arch_.hidden_size,
                              .out = d_.arch_.vocab_size,
                              .unit = unit,
                              .number = kHeadNumber,
                              .division = division_of_vocabulary(Division::kOutputs),
                              .slice = tensors_.slice_of(embedding_name())});
  head.lora->dropout = lora_.dropout;
}

bool TensorDeclarer::may_quantise_embeddings() const {
  return d_.options_.base.embeddings.value_or(true);
}

void TensorDeclarer::declare_experts(layers::ExpertMatrix& matrix, const spec::ExpertSpec& spec,
                                     int64_t layer, uint32_t number) {
  matrix.name = spec::name_in_layer(d_.arch_, layer, spec.module);
  declare_tensor(matrix.name, unit_of(layer), &matrix.weight, &matrix.parameter);
  allow_quantized(matrix.name, matrix.quantized);
  if (spec.bias) declare_expert_bias(matrix, spec, layer);
  if (d_.options_.trains != Trains::kLora || !d_.options_.parts.language ||
      !spec::is_target(lora_, matrix.name))
    return;
  matrix.lora =
      adapters_.experts(matrix.name, spec, tensors_.slice_of(matrix.name), unit_of(layer), number);
}

void TensorDeclarer::declare_expert_bias(layers::ExpertMatrix& matrix, const spec::ExpertSpec& spec,
                                         int64_t layer) {
  const bool is_summed = spec.division == Division::kInputs && d_.options_.tensor_ranks != nullptr;
  const bool is_here = !is_summed || d_.options_.tensor.rank == 0;
  unused_biases_.emplace_back();  // of the other ranks, which know the parameter but do not use it
  layers::Weight& bias = is_here ? matrix.bias : unused_biases_.back();
  declare_tensor(matrix.name + "_bias", unit_of(layer), &bias.weight, &bias.parameter);
  if (bias.parameter != nullptr) bias.parameter->has_partial_gradient = is_summed;
}

void TensorDeclarer::declare_norm(layers::Norm& norm, const spec::NormSpec& spec,
                                  const std::string& name, int64_t unit) {
  norm.eps = d_.arch_.rms_norm_eps;
  norm.offset = d_.arch_.norm_adds_one && spec.adds_one ? 1 : 0;
  declare_tensor(name + ".weight", unit, &norm.weight, &norm.parameter);
  if (norm.parameter != nullptr)
    norm.parameter->has_partial_gradient = spec.per_head && d_.options_.tensor_ranks != nullptr;
}

void TensorDeclarer::declare_per_layer_inputs(uint32_t number) {
  const spec::ArchSpec& arch = d_.arch_;
  layers::PerLayerInputs& inputs = d_.per_layer_;
  const std::string& prefix = arch.prefix;
  inputs.table_scale = d_.rounded(std::sqrt(static_cast<double>(arch.per_layer_size)));
  inputs.projection_scale = 1 / std::sqrt(static_cast<double>(arch.hidden_size));
  declare_tensor(prefix + "embed_tokens_per_layer.weight", d_.embedding_unit(),
                 &inputs.table.weight, &inputs.table.parameter);
  declare_linear(
      inputs.projection, prefix + "per_layer_model_projection",
      {.in_features = arch.hidden_size, .out_features = arch.num_layers * arch.per_layer_size},
      d_.embedding_unit(), number);
  declare_norm(inputs.norm, {}, prefix + "per_layer_projection_norm", d_.embedding_unit());
}

void TensorDeclarer::declare_layer(int64_t l, uint32_t& number) {
  Layer& layer = d_.layers_[static_cast<size_t>(l)];
  const std::vector<spec::BlockTensors> blocks = spec::layer_blocks(d_.arch_, l);
  std::vector<layers::BlockMembers> members;
  for (const spec::BlockTensors& block : blocks) members.push_back(layer.members(block.block));
  const auto name = [&](const std::string& module) {
    return spec::name_in_layer(d_.arch_, l, module);
  };
  for (size_t b = 0; b < blocks.size(); ++b)
    for (const spec::NormSpec& norm : blocks[b].norms)
      declare_norm(*layers::find(members[b].norms, norm.role), norm, name(norm.module), layer.unit);
  for (size_t b = 0; b < blocks.size(); ++b) {
    for (const spec::WeightSpec& weight : blocks[b].weights) {
      const layers::Place place = layers::find(members[b].weights, weight.role);
      declare_tensor(name(weight.name), layer.unit, place.weight, place.parameter);
    }
  }
  for (size_t b = 0; b < blocks.size(); ++b)
    for (const spec::LinearSpec& linear : blocks[b].linears)
      declare_linear(*layers::find(members[b].linears, linear.role), linear, l, number++);
  for (size_t b = 0; b < blocks.size(); ++b)
    for (const spec::ExpertSpec& experts : blocks[b].experts)
      declare_experts(*layers::find(members[b].experts, experts.role), experts, l, number++);
}

void TensorDeclarer::declare_tower() {
  layers::Tower& tower = d_.tower_;
  if (!tower.is_defined()) return;
  d_.units_.push_back({.name = "vision patches"});
  for (size_t layer = 0; layer < tower.blocks.size(); ++layer)
    d_.units_.push_back({.name = fmt::format("vision layer {}", layer)});
  d_.units_.push_back({.name = "projector"});
  uint32_t number = kFirstOfTower;
  int64_t unit = 0;
  for (const layers::TowerMembers& members : layers::members_of(tower)) {
    for (const auto& [name, place] : members.weights)
      declare_tensor(name, unit, place.weight, place.parameter);
    for (const auto& [linear, in_features, out_features, bias] : members.linears) {
      declare_linear(*linear, linear->name,
                     {.in_features = in_features, .out_features = out_features, .bias = bias}, unit,
                     number++);
    }
    ++unit;
  }
}

void TensorDeclarer::declare_projectors() {
  for (layers::Projector& projector : d_.projectors_) {
    const auto unit = static_cast<int64_t>(d_.units_.size());
    d_.units_.push_back({.name = "projector " + projector.spec.name});
    for (const auto& [name, place] : layers::members_of(projector))
      declare_tensor(name, unit, place.weight, place.parameter);
  }
}

void TensorDeclarer::declare() {
  declare_tower();
  declare_projectors();
  d_.units_.push_back({.name = "embedding"});
  declare_embedding();
  uint32_t number = 0;
  if (d_.arch_.per_layer_size > 0) declare_per_layer_inputs(number++);
  for (int64_t l = 0; l < d_.arch_.num_layers; ++l) {
    Layer& layer = d_.layers_.emplace_back(describe_layer(part_, l, d_.options_));
    layer.unit = static_cast<int64_t>(d_.units_.size());
    d_.shares_keys_ |= layer.mixer->shares_kv;
    d_.units_.push_back({.name = fmt::format("layer {}", l)});
  }
  for (int64_t l = 0; l < d_.arch_.num_layers; ++l) declare_layer(l, number);
  d_.units_.push_back({.name = "head"});
  declare_norm(d_.head_.norm, {}, d_.arch_.prefix + "norm", d_.head_unit());
  d_.head_.logit_scale = d_.arch_.logit_scale;
  d_.head_.softcap = d_.arch_.final_softcap;
  declare_head(d_.head_unit());
  require_skips_used();
}

bool TensorDeclarer::unties_head() const {
  return d_.options_.trains == Trains::kLora && d_.options_.parts.language &&
         (selection_.trains("lm_head.weight") || selection_.trains(embedding_name()));
}

bool TensorDeclarer::ties_head() const {
  return d_.arch_.tie_word_embeddings && !unties_head();
}

void TensorDeclarer::declare_untied_head(int64_t unit) {
  const spec::TensorSpec& embedding = tensors_.spec(embedding_name());
  layers::Linear& head = d_.head_.linear;
  if (selection_.trains("lm_head.weight")) {
    head.weight_parameter =
        adapters_.add(selection_.parameter_name("lm_head.weight"), embedding.shape,
                      tensors_.slice_of(embedding.name), unit, true);
    head.weight_parameter->role = TensorRole::kHead;
  }
  slots_.push_back({embedding.name, &head.weight, &head.weight_parameter, d_.options_.dtype, unit});
  slots_.back().may_be_shared = false;  // its form may be another than the embedding's
}

std::string TensorDeclarer::embedding_name() const {
  return spec::embedding_module(d_.arch_) + ".weight";
}

}  // namespace sftrun::model
