#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "adapter_start.h"
#include "model_tensors.h"
#include "sftrun/core/error.h"
#include "sftrun/model/decoder.h"
#include "sftrun/spec/blocks.h"
#include "sftrun/spec/trained_names.h"
#include "tensor_declarer.h"
#include "weight_reader.h"

/// Builds a decoder: selects what trains, allocates the flat buffers, loads the weights.
namespace sftrun::model {

class DecoderBuilder {
 public:
  DecoderBuilder(Decoder& decoder, const WeightSource& source)
      : d_(decoder),
        source_(source),
        tensors_(decoder.arch_, decoder.options_.tensor, decoder.options_.with_vision),
        declarer_(decoder, tensors_),
        lora_(decoder.options_.lora),
        reader_(tensors_, decoder.options_, decoder.checkpoint_, source, decoder.file_bytes_) {}

  void run() {
    SFTRUN_CHECK(!d_.options_.shared_weights || !lora_.pissa);
    if (d_.options_.trains == Trains::kLora) {
      spec::require_targets_exist(lora_, d_.arch_);
      if (lora_.pissa) spec::require_pissa_fits(lora_, d_.arch_);
    }
    declarer_.declare();
    const layers::BufferLayout buffers = buffer_layout();
    d_.store_.allocate(d_.options_.dtype, d_.options_.device, buffers);
    const auto num_units = static_cast<int64_t>(d_.units_.size());
    AdapterStart adapters(d_.options_, source_);
    for (int64_t unit = 0; unit < num_units; ++unit) {
      if (!buffers.holds(unit)) continue;
      if (buffers.is_per_unit && !leaves_masters_unread(unit)) d_.store_.reserve_unit(unit);
      fill(unit);
      start_adapters(adapters, unit);
      if (buffers.is_per_unit && !(unit == d_.embedding_unit() && declarer_.ties_head()))
        complete(unit);
    }
    if (buffers.is_per_unit && declarer_.ties_head() && buffers.holds(d_.embedding_unit()))
      complete(d_.embedding_unit());  // the head read it
    d_.principal_parts_ = adapters.principal_parts();
    d_.base_bytes_ = reader_.base_bytes();
    if (buffers.is_per_unit) return;
    d_.store_.refresh_compute();
    for (int64_t unit = 0; unit < num_units; ++unit) register_frozen(unit);
  }

 private:
  /// The layout of the options, for the units that this process holds.
  layers::BufferLayout buffer_layout() const {
    layers::BufferLayout buffers = d_.options_.buffers;
    buffers.held = d_.options_.held;
    if (buffers.held.contains(d_.head_unit()) && declarer_.ties_head() &&
        !buffers.held.contains(d_.embedding_unit()))
      buffers.borrowed = d_.embedding_unit();
    return buffers;
  }

  /// Whether the masters of a unit are read by `on_unit_loaded`: all of them are in the model's
  /// files, and it keeps a part.
  bool leaves_masters_unread(int64_t unit) const {
    if (!d_.options_.on_unit_loaded || !reader_.has_checkpoint()) return false;
    int64_t num_trained = 0, num_in_files = 0;
    for (const layers::Parameter& parameter : d_.store_.parameters())
      num_trained += parameter.unit == unit ? 1 : 0;
    for (const TensorSlot& slot : declarer_.slots()) {
      const bool is_whole = tensors_.slice_of(slot.name) == nullptr;
      num_in_files += slot.unit == unit && *slot.parameter != nullptr && is_whole ? 1 : 0;
    }
    return num_trained == num_in_files;
  }

  void fill_master(const TensorSlot& slot, layers::Parameter& parameter) {
    *slot.weight = parameter.compute;
    if (leaves_masters_unread(slot.unit)) {
      d_.units_[static_cast<size_t>(slot.unit)].unread.push_back(
          {parameter.offset, parameter.numel, reader_.reader_of(slot.name, at::kFloat)});
    } else {
      parameter.master.copy_(reader_.master_values(slot.name));
    }
  }

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
    for (const TensorSlot& slot : declarer_.slots()) {
      if (slot.unit != unit) continue;
      d_.options_.stop_point();
      if (layers::Parameter* parameter = *slot.parameter) {
        fill_master(slot, *parameter);
        continue;
      }
      reader_.fill_frozen(slot, stays);
    }
    if (unit == d_.head_unit() && declarer_.ties_head()) {
      d_.head_.linear.weight = d_.embedding_.weight;
      d_.head_.linear.weight_parameter = d_.embedding_.parameter;
      d_.head_.linear.quantized = d_.embedding_.quantized;
      d_.units_.back().also_reads.push_back(d_.embedding_unit());
    }
  }

  /// Joins linears, which replaces their weights, and lists the frozen tensors of a unit.
  void register_frozen(int64_t unit) {
    d_.joints_.join_unit(unit, reader_.unread());
    layers::FrozenStorage& frozen = d_.units_[static_cast<size_t>(unit)].frozen;
    const auto add = [&](const at::Tensor& tensor) {
      if (!tensor.defined()) return;
      const auto unread = reader_.unread().extract(tensor.storage().unsafeGetStorageImpl());
      unread.empty() ? frozen.add(tensor) : frozen.add_unread(tensor, unread.mapped());
    };
    for (const TensorSlot& slot : declarer_.slots()) {
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
  const ModelTensors tensors_;
  TensorDeclarer declarer_;
  const spec::LoraSpec& lora_;
  WeightReader reader_;
};

Decoder::Decoder(spec::ArchSpec arch, DecoderOptions options)
    : arch_(std::move(arch)),
      options_(std::move(options)),
      backend_(options_.backend ? *options_.backend : layers::fused_backend()),
      rope_(arch_.ropes),
      batch_target_(options_.device) {
  batch_target_.cuts_chunks = spec::any_has_state(arch_);
  batch_target_.is_before_embedding = options_.held.first == 0;
  batch_target_.has_scores = arch_.score.has_value();
  batch_target_.sequence_ranks = options_.sequence_ranks;
  batch_target_.pad_token = arch_.pad_token_id;
  for (const FeatureProjector& projector : arch_.projectors)
    projectors_.push_back(layers::make_projector(projector));
  batch_target_.projectors = &arch_.projectors;
  batch_target_.features_dtype = options_.dtype;
  if (options_.with_vision) add_tower();
  layers::UnitRange& held = options_.held;
  if (held.first > 0) held.first += embedding_unit();
  if (held.end < layers::UnitRange{}.end) held.end += embedding_unit();
}

void Decoder::add_tower() {
  SFTRUN_CHECK(arch_.vision.has_value());
  tower_ = layers::make_tower(*arch_.vision);
  layers::complete(tower_, options_.dtype, options_.device);
  batch_target_.vision = &tower_.spec;
  batch_target_.has_rope_axes =
      std::any_of(arch_.ropes.begin(), arch_.ropes.end(),
                  [](const spec::RopeSpec& of) { return !of.sections.empty(); });
  const layers::UnitRange& held = options_.held;
  const int64_t deepstack = std::ssize(tower_.deepstack);
  if (held.first == 0 && held.end < 1 + deepstack) {
    throw ConfigError(
        fmt::format("the first {} layers of this model read features of images, so they cannot be "
                    "divided into stages",
                    deepstack),
        "parallel", "use fewer stages");
  }
}

void Decoder::build(const WeightSource& source) {
  DecoderBuilder(*this, source).run();
}

}  // namespace sftrun::model
