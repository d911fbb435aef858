#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "sftrun/core/error.h"
#include "sftrun/kernels/functions.h"

namespace sftrun::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// Pointers to objects that outlive the backward pass travel through the context as integers.
template <typename T>
int64_t pack(const T& object) {
  return reinterpret_cast<int64_t>(&object);
}
template <typename T>
const T& unpack(AutogradContext* ctx, const char* key) {
  return *reinterpret_cast<const T*>(ctx->saved_data[key].toInt());
}

/// A leaf that makes outputs require a gradient when only parameters do: they are not in the graph,
/// their gradients go straight into the flat buffer.
at::Tensor anchor() {
  static const at::Tensor leaf = at::zeros({0}).requires_grad_();
  return leaf;
}

struct RmsNormFunction : Function<RmsNormFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& /*anchor*/,
                            int64_t norm_address) {
    const Norm& norm = *reinterpret_cast<const Norm*>(norm_address);
    auto [y, rstd] = rms_norm_forward(x, norm.weight, norm.eps);
    ctx->save_for_backward({x, rstd});
    ctx->saved_data["norm"] = norm_address;
    return y;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const Norm& norm = unpack<Norm>(ctx, "norm");
    const auto saved = ctx->get_saved_variables();
    const at::Tensor dy = grads[0].contiguous();
    if (norm.parameter) norm.parameter->grad.add_(rms_norm_weight_grad(dy, saved[0], saved[1]));
    at::Tensor dx;
    if (ctx->needs_input_grad(0)) dx = rms_norm_backward(dy, saved[0], norm.weight, saved[1]);
    return {dx, at::Tensor(), at::Tensor()};
  }
};

at::Tensor rms_norm(const at::Tensor& x, const Norm& norm) {
  return RmsNormFunction::apply(x, norm.parameter ? anchor() : at::empty({0}), pack(norm));
}

using Group = std::vector<const Linear*>;

/// y += scale * dropout(x) A^T B^T; returns dropout(x) A^T [T, r], which the gradient of B needs.
at::Tensor add_lora(at::Tensor& y, const at::Tensor& x, const LoraAdapter& lora,
                    const BatchContext& batch) {
  const bool drops = batch.training && lora.dropout > 0;
  const at::Tensor kept = drops ? dropout(x, batch, lora.dropout, lora.module_number) : x;
  at::Tensor low = matmul_nt(kept, lora.a->compute);
  y.addmm_(low, lora.b->compute.t(), 1, lora.scale);
  return low;
}

/// Gradients of A and B, and the adapter's share of dx.
void lora_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& low,
                   const LoraAdapter& lora, const BatchContext& batch, at::Tensor& dx) {
  const bool drops = batch.training && lora.dropout > 0;
  const at::Tensor d_low = at::mm(dy, lora.b->compute).mul_(lora.scale);  // [T, r]
  lora.b->grad.add_(at::mm(dy.t(), low), lora.scale);
  const at::Tensor kept = drops ? dropout(x, batch, lora.dropout, lora.module_number) : x;
  lora.a->grad.add_(at::mm(d_low.t(), kept));
  if (!dx.defined()) return;
  if (drops) {
    dx.add_(dropout(at::mm(d_low, lora.a->compute), batch, lora.dropout, lora.module_number));
  } else {
    dx.addmm_(d_low, lora.a->compute);
  }
}

struct LinearsFunction : Function<LinearsFunction> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x,
                               const at::Tensor& /*anchor*/, Group group, int64_t batch_address) {
    const BatchContext& batch = *reinterpret_cast<const BatchContext*>(batch_address);
    variable_list outputs, saved = {x};
    c10::List<int64_t> addresses;
    for (const Linear* linear : group) {
      at::Tensor y = matmul_nt(x, linear->weight);
      if (linear->bias.defined()) y.add_(linear->bias);
      saved.push_back(linear->lora ? add_lora(y, x, *linear->lora, batch) : at::Tensor());
      outputs.push_back(y);
      addresses.push_back(pack(*linear));
    }
    ctx->save_for_backward(saved);
    ctx->saved_data["linears"] = addresses;
    ctx->saved_data["batch"] = batch_address;
    return outputs;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const BatchContext& batch = unpack<BatchContext>(ctx, "batch");
    const auto addresses = ctx->saved_data["linears"].toIntVector();
    const auto saved = ctx->get_saved_variables();
    const at::Tensor& x = saved[0];
    const bool needs_dx = ctx->needs_input_grad(0);
    at::Tensor dx;
    for (size_t i = 0; i < addresses.size(); ++i) {
      if (!grads[i].defined()) continue;
      const auto& linear = *reinterpret_cast<const Linear*>(addresses[i]);
      const at::Tensor dy = grads[i].contiguous();
      if (needs_dx) {
        at::Tensor part = matmul_nn(dy, linear.weight);
        if (dx.defined())
          dx.add_(part);
        else
          dx = std::move(part);
      }
      if (linear.weight_parameter) linear.weight_parameter->grad.add_(matmul_tn(dy, x));
      if (linear.bias_parameter) linear.bias_parameter->grad.add_(dy.sum(0, false, at::kFloat));
      if (linear.lora) lora_backward(dy, x, saved[i + 1], *linear.lora, batch, dx);
    }
    return {dx, at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

std::vector<at::Tensor> linears(const at::Tensor& x, const Group& group,
                                const BatchContext& batch) {
  bool trains = false;
  for (const Linear* linear : group) trains = trains || linear->trains();
  return LinearsFunction::apply(x, trains ? anchor() : at::empty({0}), group, pack(batch));
}

struct AttentionFunction : Function<AttentionFunction> {
  static at::Tensor forward(AutogradContext* ctx, at::Tensor q, at::Tensor k, at::Tensor v,
                            int64_t batch_address, AttentionShape shape) {
    const BatchContext& batch = *reinterpret_cast<const BatchContext*>(batch_address);
    rope_(q, batch, shape.head_dim,
          1);  // q and k are this layer's own products and nobody else saved them
    rope_(k, batch, shape.head_dim, 1);
    AttentionOutput result = attention_forward(q, k, v, batch, shape);
    variable_list saved = {q, k, v, result.out};
    saved.insert(saved.end(), result.lse.begin(), result.lse.end());
    ctx->save_for_backward(saved);
    ctx->saved_data["batch"] = batch_address;
    ctx->saved_data["heads"] = shape.num_heads;
    ctx->saved_data["kv_heads"] = shape.num_kv_heads;
    ctx->saved_data["head_dim"] = shape.head_dim;
    ctx->saved_data["scale"] = shape.scale;
    return result.out;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const BatchContext& batch = unpack<BatchContext>(ctx, "batch");
    const AttentionShape shape{
        ctx->saved_data["heads"].toInt(), ctx->saved_data["kv_heads"].toInt(),
        ctx->saved_data["head_dim"].toInt(), ctx->saved_data["scale"].toDouble()};
    const auto saved = ctx->get_saved_variables();
    const AttentionOutput output{saved[3], {saved.begin() + 4, saved.end()}};
    AttentionGrads d = attention_backward(grads[0].contiguous(), saved[0], saved[1], saved[2],
                                          output, batch, shape);
    rope_(d.dq, batch, shape.head_dim, -1);
    rope_(d.dk, batch, shape.head_dim, -1);
    return {d.dq, d.dk, d.dv, at::Tensor(), at::Tensor()};
  }
};

at::Tensor attention(at::Tensor q, at::Tensor k, at::Tensor v, const BatchContext& batch,
                     const AttentionShape& shape) {
  return AttentionFunction::apply(std::move(q), std::move(k), std::move(v), pack(batch), shape);
}

struct SwigluFunction : Function<SwigluFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& gate, const at::Tensor& up) {
    ctx->save_for_backward({gate, up});
    return swiglu_forward(gate, up);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto saved = ctx->get_saved_variables();
    swiglu_backward_(grads[0].contiguous(), saved[0],
                     saved[1]);  // gate and up are needed no more: reuse them
    return {saved[0], saved[1]};
  }
};

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  return SwigluFunction::apply(gate, up);
}

}  // namespace

const BlockOps& fused_ops() {
  static const BlockOps ops{"fused", rms_norm, linears, attention, swiglu};
  return ops;
}

}  // namespace sftrun::kernels
