#include "adapter_start.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sftrun/core/error.h"
#include "sftrun/core/rng.h"
#include "sftrun/layers/dora.h"

namespace sftrun::model {
namespace {

constexpr uint64_t kStreams = 0x4c6f5241ULL << 32;  // random streams of adapters, by module number

/// Quantises what PiSSA leaves of a matrix in the format that the whole matrix had.
QuantOptions own_form(const layers::Linear& linear) {
  const kernels::QuantizedMatrix& matrix = *linear.quantized;
  if (!matrix.info().is_made) {
    throw ConfigError(fmt::format("PiSSA changes the base weights of {}, and a run cannot write {}",
                                  linear.name, matrix.info().kept_name),
                      "tuning.lora.init",
                      "set tuning.quant to nf4 or none, or tuning.lora.init to default");
  }
  return {.format = matrix.format, .block_size = matrix.block_size, .nested = matrix.is_nested()};
}

/// Magnitudes start as the row norms of base plus adapter; stores the squared norms of the base.
void initialise_magnitude(layers::Linear& linear) {
  layers::LoraAdapter& lora = *linear.lora;
  lora.squares = layers::row_squares(linear);
  lora.a->compute.copy_(lora.a->master);
  lora.magnitude->master.copy_(layers::row_lengths(linear));
}

}  // namespace

AdapterStart::AdapterStart(const DecoderOptions& options, const WeightSource& source)
    : options_(options), source_(source) {
  if (!options.pissa_from.empty()) stored_parts_.emplace(options.pissa_from);
}

void AdapterStart::start(layers::Linear& linear) {
  const at::NoGradGuard no_grad;
  layers::LoraAdapter& lora = *linear.lora;
  if (options_.lora.pissa)
    take_principal_part(linear);
  else
    initialise(*lora.a, *lora.b, lora.module_number);
  if (lora.magnitude) initialise_magnitude(linear);
}

/// As in peft: A zero, B normal, the initialisation of embedding tables.
void AdapterStart::start(layers::Embedding& embedding) const {
  const at::NoGradGuard no_grad;
  layers::LoraAdapter& lora = *embedding.lora;
  RandomStream stream(options_.seed, kStreams | lora.module_number);
  at::Tensor values = at::empty(lora.b->whole_shape(), at::kFloat);
  float* data = values.data_ptr<float>();
  for (int64_t i = 0; i < values.numel(); ++i) data[i] = static_cast<float>(stream.next_normal());
  lora.a->master.zero_();
  lora.b->master.copy_(lora.b->part_of(values));
  if (!lora.magnitude) return;
  lora.squares = layers::column_squares(embedding);
  lora.a->compute.copy_(lora.a->master);
  lora.magnitude->master.copy_(layers::column_lengths(embedding));
}

void AdapterStart::start(layers::ExpertLora& lora) const {
  const at::NoGradGuard no_grad;
  initialise(*lora.a, *lora.b, lora.module_number);
}

/// As in peft: A uniform in +-1/sqrt(in_features) (Kaiming with a = sqrt(5)), B zero.
void AdapterStart::initialise(layers::Parameter& a, layers::Parameter& b,
                              uint32_t module_number) const {
  RandomStream stream(options_.seed, kStreams | module_number);
  const double bound = 1.0 / std::sqrt(static_cast<double>(a.whole_shape().back()));
  at::Tensor values = at::empty(a.whole_shape(), at::kFloat);
  float* data = values.data_ptr<float>();
  for (int64_t i = 0; i < values.numel(); ++i)
    data[i] = static_cast<float>((2 * stream.next_unit() - 1) * bound);
  a.master.copy_(a.part_of(values));
  b.master.zero_();
}

/// PiSSA: initialises A and B with the principal part and subtracts it from the base.
void AdapterStart::take_principal_part(layers::Linear& linear) {
  layers::LoraAdapter& lora = *linear.lora;
  const int64_t r = lora.a->shape[0], rows = lora.b->shape[0], columns = lora.a->shape[1];
  if (r > std::min(rows, columns)) {
    throw ConfigError(fmt::format("{} has fewer than {} singular values: it is {} x {}",
                                  linear.name + ".weight", r, rows, columns),
                      "tuning.lora.r", "give it a smaller rank (tuning.lora.rank_pattern)");
  }
  at::Tensor weight =
      source_(linear.name + ".weight", {rows, columns}, at::kFloat, /*stays=*/false);
  if (!linear.quantized) weight = weight.to(linear.weight.scalar_type()).to(at::kFloat);
  const PrincipalPart part =
      stored_parts_ ? stored_part(lora) : principal_part(weight, r, lora.scale);
  weight.sub_(at::mm(part.b, part.a).mul_(lora.scale));
  if (linear.quantized) {
    linear.quantized =
        kernels::quantize(weight, own_form(linear), linear.name + ".weight").to(options_.device);
  } else {
    linear.weight = weight.to(linear.weight.scalar_type()).to(options_.device);
  }
  lora.a->master.copy_(part.a);
  lora.b->master.copy_(part.b);
  principal_parts_[lora.a->name] = part.a;
  principal_parts_[lora.b->name] = part.b;
}

PrincipalPart AdapterStart::stored_part(const layers::LoraAdapter& lora) const {
  const auto read = [&](const layers::Parameter& parameter) {
    const weights::SafetensorsEntry* entry = stored_parts_->find(parameter.name);
    if (entry == nullptr || entry->dtype != "F32" || entry->shape != parameter.shape) {
      throw DataError(fmt::format("{} is missing or of another size", parameter.name),
                      options_.pissa_from.string(),
                      "it was written by a run with another configuration; use another output.dir");
    }
    at::Tensor values = at::empty(parameter.shape, at::kFloat);
    std::copy_n(entry->bytes.data(), entry->bytes.size(),
                static_cast<std::byte*>(values.data_ptr()));
    return values;
  };
  return {read(*lora.a), read(*lora.b)};
}

}  // namespace sftrun::model
