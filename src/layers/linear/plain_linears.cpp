#include "linear/plain_linears.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

namespace sftrun::layers {
namespace {

bool uses_dropout(const LoraAdapter& lora, const BatchContext& batch) {
  return batch.training && lora.dropout > 0;
}

at::Tensor masked_by_dropout(const at::Tensor& x, const LoraAdapter& lora,
                             const BatchContext& batch) {
  if (!uses_dropout(lora, batch)) return x;
  at::Tensor mask;
  {
    const at::NoGradGuard no_grad;
    mask = kernels::dropout(at::ones_like(x), batch, lora.dropout, lora.module_number);
  }
  return x * mask;
}

at::Tensor lora_update(const at::Tensor& x, const LoraAdapter& lora, const BatchContext& batch) {
  // peft casts the input to the adapter's dtype
  const at::Tensor input = masked_by_dropout(x.to(at::kFloat), lora, batch);
  return at::linear(at::linear(input, lora.a->master), lora.b->master) * lora.scale;
}

/// x rounded to e4m3, dequantised to fp32.
at::Tensor rounded(const at::Tensor& x, const at::Tensor& gains = {}) {
  const kernels::RoundedRows rows = kernels::round_to_e4m3(x, gains);
  return rows.codes.to(at::kFloat) * rows.scales;
}

/// x w^T; for an FP8 w, x is rounded to e4m3, too.
at::Tensor product(const at::Tensor& x, const kernels::QuantizedMatrix& w) {
  if (!w.info().rounds_activations) return at::linear(x, kernels::dequantize(w, x.scalar_type()));
  return at::linear(rounded(x), kernels::dequantize(w, at::kFloat)).to(x.scalar_type());
}

/// g w; for an FP8 w, g is multiplied by the scales of w's rows and then rounded.
at::Tensor product_back(const at::Tensor& g, const kernels::QuantizedMatrix& w) {
  if (!w.info().rounds_activations) return at::mm(g, kernels::dequantize(w, g.scalar_type()));
  return at::mm(rounded(g, w.absmax), kernels::dequantize(w.without_scales(), at::kFloat))
      .to(g.scalar_type());
}

/// x w^T + bias with a quantised w, which has no gradient and is not saved dequantised
/// (bitsandbytes' MatMul4Bit).
struct QuantizedLinear : torch::autograd::Function<QuantizedLinear> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const kernels::QuantizedMatrix* matrix,
                            const std::optional<at::Tensor>& bias) {
    context->saved_data["matrix"] = reinterpret_cast<int64_t>(matrix);
    context->saved_data["bias"] = bias.has_value() && bias->requires_grad();
    const at::Tensor y = product(x, *matrix);
    return bias ? y + *bias : y;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& grads) {
    const at::Tensor& grad = grads.at(0);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): saved by forward; the layer outlives its run
    const auto* matrix =
        reinterpret_cast<const kernels::QuantizedMatrix*>(context->saved_data["matrix"].toInt());
    const at::Tensor grad_bias = context->saved_data["bias"].toBool() ? grad.sum(0) : at::Tensor();
    return {product_back(grad, *matrix), at::Tensor(), grad_bias};
  }
};

}  // namespace

at::Tensor base_product(const at::Tensor& x, const Linear& linear,
                        const std::optional<at::Tensor>& bias) {
  if (linear.quantized) return QuantizedLinear::apply(x, &*linear.quantized, bias);
  return at::linear(x, value_of(linear.weight_parameter, linear.weight), bias);
}

namespace {

/// peft's lora/dora.py, DoraLinearLayer.forward: the term added to the base's result.
/// @param y the base's result, including its bias
at::Tensor dora_update(const at::Tensor& x, const at::Tensor& y, const Linear& linear,
                       const std::optional<at::Tensor>& bias, const BatchContext& batch) {
  const LoraAdapter& lora = *linear.lora;
  const at::Tensor input = masked_by_dropout(x.to(at::kFloat), lora, batch);
  at::Tensor lengths;
  {
    const at::NoGradGuard no_grad;
    const at::Tensor update = at::mm(lora.b->master, lora.a->master).to(x.scalar_type());
    const at::Tensor weight = linear.matrix().values(x.scalar_type()) + lora.scale * update;
    lengths = at::linalg_vector_norm(weight, 2, at::IntArrayRef({1}));
  }
  const at::Tensor gains = lora.magnitude->master / lengths;
  at::Tensor base = y;
  if (uses_dropout(lora, batch))
    base = base_product(input.to(x.scalar_type()), linear, std::nullopt);
  else if (bias)
    base = y - *bias;
  const at::Tensor low = at::linear(at::linear(input, lora.a->master), lora.b->master);
  return (gains - 1) * base + gains * low * lora.scale;
}

}  // namespace

at::Tensor value_of(const Parameter* parameter, const at::Tensor& frozen) {
  return parameter ? parameter->master.to(parameter->compute.scalar_type()) : frozen;
}

std::vector<at::Tensor> linears(const at::Tensor& x, const LinearGroup& group,
                                const BatchContext& batch) {
  std::vector<at::Tensor> outputs;
  for (const Linear* linear : group) {
    std::optional<at::Tensor> bias;
    if (linear->bias.defined()) bias = value_of(linear->bias_parameter, linear->bias);
    at::Tensor y = base_product(x, *linear, bias);
    if (const LoraAdapter* lora = active_adapter(*linear, batch)) {
      const at::Tensor update =
          lora->magnitude ? dora_update(x, y, *linear, bias, batch) : lora_update(x, *lora, batch);
      y = (y + update).to(x.scalar_type());
    }
    outputs.push_back(y);
  }
  return outputs;
}

/// Over the last dimension; x itself without a norm.
at::Tensor rms_norm(const at::Tensor& x, const Norm& norm) {
  if (!norm.defined()) return x;
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor variance = wide.pow(2).mean(-1, /*keepdim=*/true);
  const at::Tensor normed = wide * at::rsqrt(variance + norm.eps);
  const at::Tensor weight = value_of(norm.parameter, norm.weight);
  if (norm.offset == 0) return weight * normed.to(x.scalar_type());
  return (normed * (norm.offset + weight.to(at::kFloat))).to(x.scalar_type());
}

}  // namespace sftrun::layers
