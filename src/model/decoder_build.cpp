#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "adapter_start.h"
#include "describe_layer.h"
#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"
#include "sftrun/model/decoder.h"
#include "sftrun/model/stored_matrix.h"
#include "sftrun/spec/blocks.h"
#include "sftrun/spec/quantised_modules.h"
#include "sftrun/spec/trained_names.h"
#include "sftrun/weights/peft.h"
#include "to_dtype.h"

/// Builds a decoder: selects what trains, allocates the flat buffers, loads the weights.
namespace sftrun::model {
namespace {

bool decays(const spec::TensorSpec& tensor) {
  return tensor.role != spec::TensorRole::kNorm && tensor.role != spec::TensorRole::kBias;
}

/// Module numbers for random streams. Linear layers count from 0; the noise uses 0xFFFFFFFF.
constexpr uint32_t kEmbeddingNumber = 0xFFFFFFFE, kHeadNumber = 0xFFFFFFFD;

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

}  // namespace

class DecoderBuilder {
 public:
  DecoderBuilder(Decoder& decoder, const WeightSource& source)
      : d_(decoder),
        source_(source),
        part_(spec::part_of(decoder.arch_, decoder.options_.tensor)),
        slices_(spec::slices_of(decoder.arch_, decoder.options_.tensor)),
        tensors_(spec::tensor_specs(decoder.arch_)),
        selection_(decoder.options_, tensors_),
        lora_(decoder.options_.lora) {
    for (const spec::TensorSpec& tensor : tensors_) by_name_[tensor.name] = &tensor;
  }

  void run() {
    SFTRUN_CHECK(!d_.options_.shared_weights || !lora_.pissa);
    if (d_.options_.trains == Trains::kLora) {
      spec::require_targets_exist(lora_, d_.arch_);
      if (lora_.pissa) spec::require_pissa_fits(lora_, d_.arch_);
    }
    declare();
    require_skips_used();
    const layers::BufferLayout buffers = buffer_layout();
    d_.store_.allocate(d_.options_.dtype, d_.options_.device, buffers);
    const auto num_units = static_cast<int64_t>(d_.units_.size());
    AdapterStart adapters(d_.options_, source_);
    for (int64_t unit = 0; unit < num_units; ++unit) {
      if (!buffers.holds(unit)) continue;
      if (buffers.is_per_unit && !leaves_masters_unread(unit)) d_.store_.reserve_unit(unit);
      fill(unit);
      start_adapters(adapters, unit);
      if (buffers.is_per_unit && !(unit == d_.embedding_unit() && ties_head())) complete(unit);
    }
    if (buffers.is_per_unit && ties_head() && buffers.holds(d_.embedding_unit()))
      complete(d_.embedding_unit());  // the head read it
    d_.principal_parts_ = adapters.principal_parts();
    if (buffers.is_per_unit) return;
    d_.store_.refresh_compute();
    for (int64_t unit = 0; unit < num_units; ++unit) register_frozen(unit);
  }

 private:
  struct Slot {
    std::string name;
    at::Tensor* weight;
    layers::Parameter** parameter;
    at::ScalarType dtype;
    int64_t unit;
    std::optional<kernels::QuantizedMatrix>* quantized =
        nullptr;  ///< set instead of `weight` if quantised
  };

  /// The layout of the options, for the units that this process holds.
  layers::BufferLayout buffer_layout() const {
    layers::BufferLayout buffers = d_.options_.buffers;
    buffers.held = d_.options_.held;
    if (buffers.held.contains(d_.head_unit()) && ties_head() &&
        !buffers.held.contains(d_.embedding_unit()))
      buffers.borrowed = d_.embedding_unit();
    return buffers;
  }

  int64_t unit_of(int64_t layer) const { return d_.layer_unit(layer); }

  /// Marks the tensor declared last as one that may be quantised.
  void allow_quantized(const std::string& module,
                       std::optional<kernels::QuantizedMatrix>& quantized) {
    bool is_skipped = false;
    for (const std::string& name : d_.options_.base.skip_modules) {
      if (!has_path_part(module, name)) continue;
      is_skipped = true;
      skips_used_.insert(name);
    }
    if (!is_skipped && *slots_.back().parameter == nullptr) slots_.back().quantized = &quantized;
  }

  void declare_tensor(const std::string& name, int64_t unit, at::Tensor* weight,
                      layers::Parameter** parameter, bool in_fp32 = false) {
    const spec::TensorSpec& tensor = *by_name_.at(name);
    if (tensor.role != spec::TensorRole::kBuffer && selection_.trains(name)) {
      *parameter = add_parameter(selection_.parameter_name(name), tensor.shape, slice_of(name),
                                 unit, decays(tensor));
      (*parameter)->role = tensor.role;
      (*parameter)->layout = tensor.layout;
      (*parameter)->in_fp32 = in_fp32;
    }
    slots_.push_back({name, weight, parameter, in_fp32 ? at::kFloat : d_.options_.dtype, unit});
  }

  /// null: this rank has the whole tensor
  const TensorSlice* slice_of(const std::string& name) const {
    const auto found = slices_.find(name);
    return found == slices_.end() ? nullptr : &found->second;
  }

  /// @param shape of the whole tensor   @param slice what this rank has of it; null: all
  layers::Parameter* add_parameter(const std::string& name, std::vector<int64_t> shape,
                                   const TensorSlice* slice, int64_t unit, bool decays) {
    if (slice != nullptr) shape[static_cast<size_t>(slice->dim)] = slice->size();
    layers::Parameter* parameter = d_.store_.add(name, std::move(shape), unit, decays);
    if (slice != nullptr) parameter->slice = *slice;
    return parameter;
  }

  /// The part of a tensor that this rank has. A view would keep the whole tensor in memory, unless
  /// it is a mapped file, whose memory cannot be resized.
  at::Tensor part_of(const std::string& name, const at::Tensor& whole) const {
    const TensorSlice* slice = slice_of(name);
    if (slice == nullptr) return whole;
    const at::Tensor part = layers::part_of(whole, *slice);
    const bool keeps_whole = part.is_alias_of(whole) && whole.storage().resizable();
    return keeps_whole ? part.clone(at::MemoryFormat::Contiguous) : part.contiguous();
  }

  /// @param shape of the whole tensor, whose last dimension are the matrix' columns
  kernels::QuantizedMatrix part_of(const std::string& name, const kernels::QuantizedMatrix& whole,
                                   const std::vector<int64_t>& shape) const {
    const TensorSlice* slice = slice_of(name);
    if (slice == nullptr) return whole;
    const TensorSlice flat = slice_of_rows_or_columns(*slice, shape);
    if (!whole.has_part(flat)) {
      throw ConfigError(
          fmt::format("tensor parallelism cannot divide {}: its format stores blocks of {} values",
                      name, whole.values_per_block()),
          "parallel.tp",
          "set parallel.tp to another number, or use, without parallel.tp, parallel.strategy fsdp");
    }
    return whole.part(flat);
  }

  /// A slice of a tensor in the dimensions of [rows, columns], rows being all dimensions but the last.
  static TensorSlice slice_of_rows_or_columns(const TensorSlice& slice,
                                              const std::vector<int64_t>& shape) {
    const auto last = static_cast<int64_t>(shape.size()) - 1;
    if (slice.dim == last) return moved_to(1, slice);
    const int64_t times = slice.dim == 0 ? 1 : shape[0];
    SFTRUN_CHECK(last == 1 || slice.dim == 1);  // [rows, columns] or [experts, rows, columns]
    TensorSlice rows{.dim = 0, .whole_size = times * slice.whole_size, .ranges = {}};
    for (int64_t i = 0; i < times; ++i)
      for (const IndexRange& range : slice.ranges)
        rows.ranges.push_back({i * slice.whole_size + range.begin, range.count});
    return rows;
  }

  void require_skips_used() const {
    for (const std::string& name : d_.options_.base.skip_modules) {
      if (skips_used_.contains(name)) continue;
      throw ConfigError(fmt::format("no module of the model is named `{}`", name),
                        "tuning.skip_modules",
                        "name modules as the model does: down_proj or layers.0.mlp");
    }
  }

  void declare_linear(layers::Linear& linear, const spec::LinearSpec& spec, int64_t layer,
                      uint32_t number) {
    declare_linear(linear, spec::name_in_layer(d_.arch_, layer, spec.module), spec, unit_of(layer),
                   number);
  }

  void declare_linear(layers::Linear& linear, const std::string& name, const spec::LinearSpec& spec,
                      int64_t unit, uint32_t number) {
    // fp32, so that rounding does not change which experts are chosen.
    const bool in_fp32 = spec.is_router;
    linear.name = name;
    if (slice_of(name + ".weight") != nullptr) divide(linear, spec.division);
    declare_tensor(name + ".weight", unit, &linear.weight, &linear.weight_parameter, in_fp32);
    if (!in_fp32) allow_quantized(name, linear.quantized);
    if (spec.bias)
      declare_tensor(name + ".bias", unit, &linear.bias, &linear.bias_parameter, in_fp32);
    if (d_.options_.trains != Trains::kLora || !spec::is_target(lora_, linear.name, spec, d_.arch_))
      return;
    linear.lora = declare_update({.module = name,
                                  .pattern_name = spec::update_name(lora_, name),
                                  .in = spec.in_features,
                                  .out = spec.out_features,
                                  .unit = unit,
                                  .number = number,
                                  .division = linear.division,
                                  .slice = slice_of(name + ".weight")});
    linear.lora->a->in_fp32 = linear.lora->b->in_fp32 = in_fp32;
    linear.lora->dropout = lora_.dropout;
  }

  struct Update {
    std::string module, pattern_name;
    int64_t in = 0, out = 0, unit = 0;
    uint32_t number = 0;
    bool of_embedding = false;
    Division division = Division::kNone;
    const TensorSlice* slice = nullptr;  ///< of the weight; null: it is not divided
  };

  /// The slice in dimension `dim` of what belongs to the same rows or columns as a divided weight.
  static TensorSlice moved_to(int64_t dim, const TensorSlice& slice) {
    return {.dim = dim, .whole_size = slice.whole_size, .ranges = slice.ranges};
  }

  void divide(layers::Linear& linear, Division division) const {
    if (d_.options_.tensor_ranks == nullptr) return;
    linear.division = division;
    linear.ranks = d_.options_.tensor_ranks;
  }

  layers::LoraAdapter declare_update(const Update& update) {
    const int64_t r = lora_.r_of(update.pattern_name), unit = update.unit;
    const auto [a_name, b_name] = update.of_embedding ? weights::embedding_lora_names(update.module)
                                                      : weights::lora_names(update.module);
    const bool by_outputs = update.division == Division::kOutputs,
               by_inputs = update.division == Division::kInputs;
    std::optional<TensorSlice> inputs, outputs;
    if (by_inputs) inputs = moved_to(1, *update.slice);
    if (by_outputs) outputs = moved_to(0, *update.slice);
    const auto or_null = [](const auto& slice) { return slice ? &*slice : nullptr; };
    layers::LoraAdapter adapter;
    adapter.a = add_parameter(a_name, {r, update.in}, or_null(inputs), unit, true);
    adapter.b = add_parameter(b_name, {update.out, r}, or_null(outputs), unit, true);
    // A whole factor of a divided product has a gradient from each part.
    adapter.a->has_partial_gradient = by_outputs;
    adapter.b->has_partial_gradient = by_inputs;
    adapter.inputs = inputs;
    set_roles(adapter.a, adapter.b, update.of_embedding);
    if (lora_.dora) {
      adapter.magnitude = add_parameter(weights::magnitude_name(update.module), {update.out},
                                        or_null(outputs), unit, true);
      adapter.magnitude->role = TensorRole::kMagnitude;
    }
    adapter.scale = lora_.scale_of(update.pattern_name);
    adapter.module_number = update.number;
    return adapter;
  }

  static void set_roles(layers::Parameter* a, layers::Parameter* b, bool of_embedding) {
    using enum TensorRole;
    a->role = of_embedding ? kEmbeddingLora : kLoraA;
    b->role = of_embedding ? kEmbeddingLora : kLoraB;
  }

  bool adapts_embedding_or_head(const std::string& module) const {
    return d_.options_.trains == Trains::kLora && spec::is_end_target(lora_, module);
  }

  void declare_embedding() {
    layers::Embedding& embedding = d_.embedding_;
    embedding.name = spec::embedding_module(d_.arch_);
    embedding.scale = d_.rounded(d_.arch_.embedding_scale);
    embedding.ranks = d_.options_.tensor_ranks;
    embedding.first_token = first_token();
    declare_tensor(embedding_name(), d_.embedding_unit(), &embedding.weight, &embedding.parameter);
    if (may_quantise_embeddings()) allow_quantized(embedding.name, embedding.quantized);
    if (!adapts_embedding_or_head(embedding.name)) return;
    embedding.lora = declare_update({.module = embedding.name,
                                     .pattern_name = embedding.name,
                                     .in = d_.arch_.vocab_size,
                                     .out = d_.arch_.hidden_size,
                                     .unit = d_.embedding_unit(),
                                     .number = kEmbeddingNumber,
                                     .of_embedding = true,
                                     .division = division_of_vocabulary(Division::kInputs),
                                     .slice = slice_of(embedding_name())});
  }

  int64_t first_token() const { return spec::vocabulary_of(d_.arch_, d_.options_.tensor).begin; }

  /// The tokens are the inputs of the embedding and the outputs of the head.
  Division division_of_vocabulary(Division division) const {
    return d_.options_.tensor_ranks == nullptr ? Division::kNone : division;
  }

  void declare_head(int64_t unit) {
    layers::Linear& head = d_.head_.linear;
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
    head.lora = declare_update({.module = head.name,
                                .pattern_name = head.name,
                                .in = d_.arch_.hidden_size,
                                .out = d_.arch_.vocab_size,
                                .unit = unit,
                                .number = kHeadNumber,
                                .division = division_of_vocabulary(Division::kOutputs),
                                .slice = slice_of(embedding_name())});
    head.lora->dropout = lora_.dropout;
  }

  bool may_quantise_embeddings() const { return d_.options_.base.embeddings.value_or(true); }

  void declare_experts(layers::ExpertMatrix& matrix, const spec::ExpertSpec& spec, int64_t layer,
                       uint32_t number) {
    matrix.name = spec::name_in_layer(d_.arch_, layer, spec.module);
    declare_tensor(matrix.name, unit_of(layer), &matrix.weight, &matrix.parameter);
    allow_quantized(matrix.name, matrix.quantized);
    if (spec.bias) declare_expert_bias(matrix, spec, layer);
    if (d_.options_.trains != Trains::kLora || !spec::is_target(lora_, matrix.name)) return;
    const int64_t r = lora_.r_of(matrix.name);
    const int64_t experts = d_.arch_.mixture.num_experts;
    const std::string module = peft_module(matrix.name);
    layers::ExpertLora adapter;
    // [experts, outputs, inputs] divided by outputs or by inputs, which are at the same places in B
    // [experts, outputs, r] and A [experts, r, inputs].
    const TensorSlice* slice = slice_of(matrix.name);
    const bool by_inputs = slice != nullptr && slice->dim == 2,
               by_outputs = slice != nullptr && slice->dim == 1;
    adapter.a = add_parameter(weights::lora_a_name(module), {experts, r, spec.in_features},
                              by_inputs ? slice : nullptr, unit_of(layer), true);
    adapter.a->layout.shape = {experts * r, spec.in_features};
    adapter.b = add_parameter(weights::lora_b_name(module), {experts, spec.out_features, r},
                              by_outputs ? slice : nullptr, unit_of(layer), true);
    adapter.a->has_partial_gradient = by_outputs;
    adapter.b->has_partial_gradient = by_inputs;
    adapter.b->layout = layout_of_b(spec, r);
    set_roles(adapter.a, adapter.b, /*of_embedding=*/false);
    adapter.scale = lora_.scale_of(matrix.name);
    adapter.module_number = number;
    matrix.lora = adapter;
  }

  /// The bias of down_proj is added to the sum over the ranks' inner channels: by the first rank.
  void declare_expert_bias(layers::ExpertMatrix& matrix, const spec::ExpertSpec& spec,
                           int64_t layer) {
    const bool is_summed =
        spec.division == Division::kInputs && d_.options_.tensor_ranks != nullptr;
    const bool is_here = !is_summed || d_.options_.tensor.rank == 0;
    unused_biases_
        .emplace_back();  // of the other ranks, which know the parameter but do not use it
    layers::Weight& bias = is_here ? matrix.bias : unused_biases_.back();
    declare_tensor(matrix.name + "_bias", unit_of(layer), &bias.weight, &bias.parameter);
    if (bias.parameter != nullptr) bias.parameter->has_partial_gradient = is_summed;
  }

  /// peft's order of B: the expert index varies fastest, and rows follow the files' columns.
  FileLayout layout_of_b(const spec::ExpertSpec& spec, int64_t r) const {
    const int64_t experts = d_.arch_.mixture.num_experts, out = spec.out_features;
    if (spec.rows_alternate) return {{experts, 2, out / 2, r}, {2, 1, 3, 0}, {out, r * experts}};
    return {{experts, out, r}, {1, 2, 0}, {out, r * experts}};
  }

  /// PEFT's module name for the adapter of an expert tensor.
  std::string peft_module(const std::string& name) const {
    const std::string experts = name.substr(0, name.rfind('.'));
    return weights::peft_expert_module(name, spec::is_target(lora_, experts + ".gate_up_proj") &&
                                                 spec::is_target(lora_, experts + ".down_proj"));
  }

  void declare_norm(layers::Norm& norm, const spec::NormSpec& spec, const std::string& name,
                    int64_t unit) {
    norm.eps = d_.arch_.rms_norm_eps;
    norm.offset = d_.arch_.norm_adds_one && spec.adds_one ? 1 : 0;
    declare_tensor(name + ".weight", unit, &norm.weight, &norm.parameter);
    if (norm.parameter != nullptr)
      norm.parameter->has_partial_gradient = spec.per_head && d_.options_.tensor_ranks != nullptr;
  }

  void declare_per_layer_inputs(uint32_t number) {
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

  /// Norms, weights, linears and experts, each kind of all blocks: parameters are numbered in this
  /// order.   @param number of the next linear or expert matrix
  void declare_layer(int64_t l, uint32_t& number) {
    Layer& layer = d_.layers_[static_cast<size_t>(l)];
    const std::vector<spec::BlockTensors> blocks = spec::layer_blocks(d_.arch_, l);
    std::vector<layers::BlockMembers> members;
    for (const spec::BlockTensors& block : blocks) members.push_back(layer.members(block.block));
    const auto name = [&](const std::string& module) {
      return spec::name_in_layer(d_.arch_, l, module);
    };
    for (size_t b = 0; b < blocks.size(); ++b)
      for (const spec::NormSpec& norm : blocks[b].norms)
        declare_norm(*layers::find(members[b].norms, norm.role), norm, name(norm.module),
                     layer.unit);
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

  void declare() {
    d_.units_.push_back({.name = "embedding"});
    declare_embedding();
    uint32_t number = 0;
    if (d_.arch_.per_layer_size > 0) declare_per_layer_inputs(number++);
    for (int64_t l = 0; l < d_.arch_.num_layers; ++l) {
      Layer& layer = d_.layers_.emplace_back(describe_layer(part_, l, d_.options_));
      layer.unit = static_cast<int64_t>(d_.units_.size());
      d_.shares_keys_ |= layer.mixer->lends_keys;
      d_.units_.push_back({.name = fmt::format("layer {}", l)});
    }
    for (int64_t l = 0; l < d_.arch_.num_layers; ++l) declare_layer(l, number);
    d_.units_.push_back({.name = "head"});
    declare_norm(d_.head_.norm, {}, d_.arch_.prefix + "norm", d_.head_unit());
    d_.head_.logit_scale = d_.arch_.logit_scale;
    d_.head_.softcap = d_.arch_.final_softcap;
    declare_head(d_.head_unit());
  }

  /// The matrix in the quantised format of its file; nullopt: it is not kept in one.
  std::optional<kernels::QuantizedMatrix> stored_form(const Slot& slot) const {
    const BaseForm& base = d_.options_.base;
    if (!base.keep_stored || !d_.checkpoint_) return std::nullopt;
    const spec::TensorSpec& tensor = *by_name_.at(slot.name);
    const bool is_experts = tensor.role == spec::TensorRole::kExperts;
    const auto packed = d_.checkpoint_->packed(slot.name);
    if (!packed || (base.quant && !is_experts && !is_stored_as(*packed, base.quant->format)))
      return std::nullopt;
    return stored_matrix(*packed, tensor.shape, slot.name, d_.checkpoint_);
  }

  /// The matrix quantised now; nullopt: it stays dense.
  std::optional<kernels::QuantizedMatrix> quantised(const Slot& slot) const {
    const BaseForm& base = d_.options_.base;
    const spec::TensorSpec& tensor = *by_name_.at(slot.name);
    // Quantised as a whole, so that the values are those of one process.
    const bool is_experts = tensor.role == spec::TensorRole::kExperts;
    const bool is_end =
        tensor.role == spec::TensorRole::kEmbedding || tensor.role == spec::TensorRole::kHead;
    if (!base.quant || (is_end && !base.embeddings.value_or(false))) return std::nullopt;
    const std::vector<int64_t>& shape = tensor.shape;
    if (is_experts &&
        !spec::splits_by_expert(
            shape, quant_info(base.quant->format).has_blocks ? base.quant->block_size : 1))
      return std::nullopt;
    const at::Tensor values = source_(slot.name, shape, at::kFloat, /*stays=*/false);
    return kernels::quantize(values.view({-1, shape.back()}), *base.quant, slot.name);
  }

  /// Whether a frozen tensor is read by `on_unit_loaded`. DoRA and PiSSA need whole ones before, and
  /// what tensor parallelism divides is no range of a file.
  bool leaves_unread(const std::string& name) const {
    return d_.options_.leaves_frozen_unread && d_.checkpoint_ && !lora_.dora && !lora_.pissa &&
           slice_of(name) == nullptr;
  }

  /// Whether the masters of a unit are read by `on_unit_loaded`: all of them are in the model's
  /// files, and it keeps a part.
  bool leaves_masters_unread(int64_t unit) const {
    if (!d_.options_.on_unit_loaded || !d_.checkpoint_) return false;
    int64_t num_trained = 0, num_in_files = 0;
    for (const layers::Parameter& parameter : d_.store_.parameters())
      num_trained += parameter.unit == unit ? 1 : 0;
    for (const Slot& slot : slots_) {
      const bool is_whole = slice_of(slot.name) == nullptr;
      num_in_files += slot.unit == unit && *slot.parameter != nullptr && is_whole ? 1 : 0;
    }
    return num_trained == num_in_files;
  }

  /// Reads a part of a tensor as `dtype`.
  layers::ReadBytes reader_of(const std::string& name, at::ScalarType dtype) const {
    const int64_t numel = c10::multiply_integers(by_name_.at(name)->shape);
    return [checkpoint = d_.checkpoint_, count = d_.file_bytes_, name, numel,
            dtype = to_dtype(dtype)](int64_t begin, std::span<std::byte> to) {
      const int64_t size = size_of(dtype), first = begin / size,
                    values = static_cast<int64_t>(to.size()) / size;
      if (const auto read = checkpoint->read_range(name, dtype, first, values, to.data())) {
        *count += *read;
        return;
      }
      std::vector<std::byte> whole(static_cast<size_t>(numel * size));
      checkpoint->read(name, dtype, whole.data());
      std::memcpy(to.data(), whole.data() + begin, to.size());
      *count += checkpoint->stored_bytes(name);
    };
  }

  /// Reads a part of a stored matrix's tensor: of a view of the mapped file only those pages.
  layers::ReadBytes reader_of(const at::Tensor& stored) const {
    // Copies, made where a file has another order, are resizable; views of files are not.
    const bool is_copy = stored.storage().resizable();
    if (is_copy) *d_.file_bytes_ += stored.nbytes();
    return [stored, is_copy, count = d_.file_bytes_](int64_t begin, std::span<std::byte> to) {
      std::memcpy(to.data(), static_cast<const std::byte*>(stored.const_data_ptr()) + begin,
                  to.size());
      if (!is_copy) *count += to.size();
    };
  }

  void fill_dense(const Slot& slot, bool stays) {
    const std::vector<int64_t>& shape = by_name_.at(slot.name)->shape;
    if (leaves_unread(slot.name)) {
      *slot.weight = layers::without_memory(shape, slot.dtype, d_.options_.device);
      unread_[slot.weight->storage().unsafeGetStorageImpl()] = reader_of(slot.name, slot.dtype);
    } else {
      *slot.weight =
          part_of(slot.name, source_(slot.name, shape, slot.dtype, stays)).to(d_.options_.device);
    }
    d_.base_bytes_ += slot.weight->nbytes();
  }

  /// The same matrix with tensors that have no memory yet.
  kernels::QuantizedMatrix unread_form(kernels::QuantizedMatrix stored) {
    const at::Device device = d_.options_.device;
    for (at::Tensor* part :
         {&stored.packed, &stored.absmax, &stored.codes, &stored.nested_absmax}) {
      if (!part->defined()) continue;
      at::Tensor tensor = layers::without_memory(part->sizes(), part->scalar_type(), device);
      unread_[tensor.storage().unsafeGetStorageImpl()] = reader_of(*part);
      *part = std::move(tensor);
    }
    if (stored.is_nested() && !device.is_cpu())
      stored.nested_values = kernels::nested_map().to(device);
    return stored;
  }

  void fill_quantised(const Slot& slot, const kernels::QuantizedMatrix& matrix, bool is_stored) {
    if (is_stored && leaves_unread(slot.name)) {
      *slot.quantized = unread_form(matrix);
    } else {
      *slot.quantized =
          part_of(slot.name, matrix, by_name_.at(slot.name)->shape).to(d_.options_.device);
      if (is_stored) *d_.file_bytes_ += matrix.nbytes();
    }
    d_.base_bytes_ += (*slot.quantized)->nbytes();
  }

  /// Null for the untied head, which has the embedding's name but may be in another format.
  SharedWeights* shared_for(const Slot& slot) const {
    const bool is_untied_head =
        slot.weight == &d_.head_.linear.weight && slot.name == embedding_name();
    return is_untied_head ? nullptr : d_.options_.shared_weights.get();
  }

  /// Uses what another decoder has read.
  bool takes_shared(const Slot& slot) const {
    const SharedWeights* shared = shared_for(slot);
    if (shared == nullptr) return false;
    if (const auto dense = shared->dense.find(slot.name); dense != shared->dense.end()) {
      *slot.weight = dense->second;
      return true;
    }
    const auto quantized = shared->quantized.find(slot.name);
    if (quantized == shared->quantized.end()) return false;
    *slot.quantized = quantized->second;
    return true;
  }

  void share(const Slot& slot) const {
    SharedWeights* shared = shared_for(slot);
    if (shared == nullptr) return;
    if (slot.quantized != nullptr && slot.quantized->has_value())
      shared->quantized.emplace(slot.name, **slot.quantized);
    else
      shared->dense.emplace(slot.name, *slot.weight);
  }

  void fill_master(const Slot& slot, layers::Parameter& parameter) {
    *slot.weight = parameter.compute;
    if (leaves_masters_unread(slot.unit)) {
      d_.units_[static_cast<size_t>(slot.unit)].unread.push_back(
          {parameter.offset, parameter.numel, reader_of(slot.name, at::kFloat)});
    } else {
      parameter.master.copy_(part_of(slot.name, source_(slot.name, by_name_.at(slot.name)->shape,
                                                        at::kFloat, /*stays=*/false)));
    }
  }

  /// Whether a tied head becomes a separate tensor, because it or the embedding is trained in full.
  bool unties_head() const {
    return d_.options_.trains == Trains::kLora &&
           (selection_.trains("lm_head.weight") || selection_.trains(embedding_name()));
  }

  /// Whether the head uses the weight of the embedding.
  bool ties_head() const { return d_.arch_.tie_word_embeddings && !unties_head(); }

  /// The separate head starts with the values of the embedding.
  void declare_untied_head(int64_t unit) {
    const spec::TensorSpec& embedding = *by_name_.at(embedding_name());
    layers::Linear& head = d_.head_.linear;
    if (selection_.trains("lm_head.weight")) {
      head.weight_parameter = add_parameter(selection_.parameter_name("lm_head.weight"),
                                            embedding.shape, slice_of(embedding.name), unit, true);
      head.weight_parameter->role = TensorRole::kHead;
    }
    slots_.push_back(
        {embedding.name, &head.weight, &head.weight_parameter, d_.options_.dtype, unit});
  }

  std::string embedding_name() const { return spec::embedding_module(d_.arch_) + ".weight"; }

  void complete(int64_t unit) {
    if (!leaves_masters_unread(unit)) d_.store_.refresh_compute(unit);
    register_frozen(unit);
    if (d_.options_.on_unit_loaded)
      d_.options_.on_unit_loaded(unit, d_.units_[static_cast<size_t>(unit)],
                                 d_.store_.buffers_of(unit));
  }

  void fill(int64_t unit) {
    const at::NoGradGuard no_grad;
    // A mapped file is not used in place where the memory of units is released.
    const bool stays = d_.options_.device.is_cpu() && !d_.options_.buffers.is_per_unit;
    for (const Slot& slot : slots_) {
      if (slot.unit != unit) continue;
      d_.options_.stop_point();
      if (layers::Parameter* parameter = *slot.parameter) {
        fill_master(slot, *parameter);
        continue;
      }
      if (takes_shared(slot)) continue;
      const auto stored = slot.quantized == nullptr ? std::nullopt : stored_form(slot);
      if (stored) {
        fill_quantised(slot, *stored, /*is_stored=*/true);
      } else if (const auto made = slot.quantized == nullptr ? std::nullopt : quantised(slot)) {
        fill_quantised(slot, *made, /*is_stored=*/false);
      } else {
        fill_dense(slot, stays);
      }
      share(slot);
    }
    if (unit == d_.head_unit() && ties_head()) {
      d_.head_.linear.weight = d_.embedding_.weight;
      d_.head_.linear.weight_parameter = d_.embedding_.parameter;
      d_.head_.linear.quantized = d_.embedding_.quantized;
      d_.units_.back().also_reads.push_back(d_.embedding_unit());
    }
  }

  /// Joins linears, which replaces their weights, and lists the frozen tensors of a unit.
  void register_frozen(int64_t unit) {
    d_.join_linears(unit, unread_);
    layers::FrozenStorage& frozen = d_.units_[static_cast<size_t>(unit)].frozen;
    const auto add = [&](const at::Tensor& tensor) {
      if (!tensor.defined()) return;
      const auto unread = unread_.extract(tensor.storage().unsafeGetStorageImpl());
      unread.empty() ? frozen.add(tensor) : frozen.add_unread(tensor, unread.mapped());
    };
    for (const Slot& slot : slots_) {
      if (slot.unit != unit || *slot.parameter != nullptr) continue;
      if (slot.quantized != nullptr && slot.quantized->has_value()) {
        for (const at::Tensor& part : (*slot.quantized)->tensors()) add(part);
      } else {
        add(*slot.weight);
      }
    }
    for (Layer& layer : d_.layers_) {
      if (layer.unit != unit) continue;
      for (const layers::Joinable& joinable : layer.joints()) {
        const layers::JointLinears* joint = joinable.joint;
        add(joint->whole);
        add(joint->bias);
        if (joint->whole.defined()) add(joint->a), add(joint->b);
        if (joint->fp8)
          for (const at::Tensor& part : joint->fp8->tensors()) add(part);
      }
    }
  }

  void start_adapters(AdapterStart& adapters, int64_t unit) {
    for (layers::Linear* linear : d_.adapted_linears()) {
      if (linear->lora->a->unit != unit) continue;
      d_.options_.stop_point();
      adapters.start(*linear);
    }
    if (d_.embedding_.lora && unit == d_.embedding_unit()) adapters.start(d_.embedding_);
    for (Layer& layer : d_.layers_) {
      if (layer.unit != unit) continue;
      for (layers::ExpertMatrix* matrix : layer.experts())
        if (matrix->lora) adapters.start(*matrix->lora);
    }
  }

  Decoder& d_;
  const WeightSource& source_;
  const spec::ArchSpec part_;  // sizes of what this rank has of each layer
  const std::map<std::string, TensorSlice> slices_;
  std::vector<spec::TensorSpec> tensors_;  // of the whole model
  Selection selection_;
  const spec::LoraSpec& lora_;
  std::map<std::string, const spec::TensorSpec*> by_name_;
  std::vector<Slot> slots_;
  std::deque<layers::Weight> unused_biases_;
  std::set<std::string> skips_used_;
  layers::UnreadStorages unread_;
};

Decoder::Decoder(spec::ArchSpec arch, DecoderOptions options)
    : arch_(std::move(arch)),
      options_(std::move(options)),
      backend_(options_.backend ? *options_.backend : layers::fused_backend()),
      rope_(arch_.ropes),
      batch_target_(options_.device) {
  batch_target_.cuts_chunks = spec::any_has_state(arch_);
}

void Decoder::build(const WeightSource& source) {
  DecoderBuilder(*this, source).run();
}

}  // namespace sftrun::model
