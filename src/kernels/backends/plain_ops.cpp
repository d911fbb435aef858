#include "plain_ops.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace sftrun::kernels {
namespace {

at::Tensor lora_update(const at::Tensor& x, const LoraAdapter& lora, const BatchContext& batch) {
  at::Tensor input = x.to(at::kFloat);  // peft casts the input to the adapter's dtype
  if (batch.training && lora.dropout > 0) {
    at::Tensor mask;
    {
      const at::NoGradGuard no_grad;
      mask = dropout(at::ones_like(input), batch, lora.dropout, lora.module_number);
    }
    input = input * mask;
  }
  return at::linear(at::linear(input, lora.a->master), lora.b->master) * lora.scale;
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
    at::Tensor y = at::linear(x, value_of(linear->weight_parameter, linear->weight), bias);
    if (linear->lora) y = (y + lora_update(x, *linear->lora, batch)).to(x.scalar_type());
    outputs.push_back(y);
  }
  return outputs;
}

}  // namespace sftrun::kernels
