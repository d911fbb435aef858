#include "sftrun/kernels/ops.h"

#include <ATen/ATen.h>

#include <cmath>

#include "operands.h"
#include "parallel.h"
#include "sftrun/core/error.h"
#include "sftrun/kernels/cuda_registry.h"
#include "sftrun/kernels/profile_range.h"

namespace sftrun::kernels {
namespace {

/// @param weight [channels]
void require_norm_operands(const at::Tensor& x, const at::Tensor& weight) {
  require_rows(x);
  require_operand(weight, x, x.scalar_type());
  require_numel(weight, x.size(1));
}

void require_gated_operands(const at::Tensor& gate, const at::Tensor& up) {
  if (gate.is_contiguous()) return require_same(up, gate);
  require_loose_rows(gate);
  TORCH_CHECK(up.sizes() == gate.sizes() && up.strides() == gate.strides() &&
                  up.device() == gate.device() && up.scalar_type() == gate.scalar_type(),
              "gates of shape ", gate.sizes(), ", strides ", gate.strides(), " and ", up.sizes(),
              ", ", up.strides());
}

void require_losses_operands(const at::Tensor& logits, const at::Tensor& labels) {
  require_rows(logits);
  require_operand(labels, logits, at::kInt);
  require_numel(labels, logits.size(0));
}

/// Checks the range of elements to update.
void require_range(const at::Tensor& flat, int64_t begin, int64_t end) {
  TORCH_CHECK(0 <= begin && begin <= end && end <= flat.numel(), "elements ", begin, " to ", end,
              " of ", flat.numel());
}

void require_map(const DynamicMap& map, const at::Tensor& like) {
  require_operand(map.values, like, at::kFloat);
  require_numel(map.values, 256);
  require_operand(map.codes, like, at::kByte);
  require_numel(map.codes, kStateSteps);
  require_operand(map.tree, like, at::kShort);
  require_numel(map.tree, kStateTree);
}

void require_8bit_operands(const at::Tensor& master, const at::Tensor& grad,
                           const BlockwiseMoments& moments, const at::Tensor& compute,
                           int64_t first_block, int64_t end_block) {
  for (const at::Tensor* flat : {&master, &grad}) {
    require_operand(*flat, master, at::kFloat);
    require_numel(*flat, master.numel());
  }
  require_operand(compute, master, compute.scalar_type());
  require_numel(compute, master.numel());
  const int64_t blocks = moments.exp_avg_absmax.numel();
  for (const at::Tensor* codes : {&moments.exp_avg, &moments.exp_avg_sq}) {
    require_operand(*codes, master, at::kByte);
    require_numel(*codes, blocks * kStateBlock);
  }
  for (const at::Tensor* factors : {&moments.exp_avg_absmax, &moments.exp_avg_sq_absmax}) {
    require_operand(*factors, master, at::kFloat);
    require_range(*factors, first_block, end_block);
  }
  require_operand(moments.block_begin, master, at::kLong);
  require_range(moments.block_begin, first_block, end_block);
  require_operand(moments.block_numel, master, at::kShort);
  require_range(moments.block_numel, first_block, end_block);
  require_map(moments.exp_avg_map, master);
  require_map(moments.exp_avg_sq_map, master);
}

/// CPU: whether the gate is open or undefined; sets `grad_scale` from the gate.
template <typename Params>
bool passes(const at::Tensor& gate, Params& params) {
  if (!gate.defined()) return true;
  const auto& here = *static_cast<const UpdateGate*>(gate.const_data_ptr());
  params.grad_scale = here.grad_scale;
  return here.is_open != 0;
}

// Minimum number of rows per thread: below this, starting threads costs more than it saves.
int64_t grain(int64_t channels) {
  return std::max<int64_t>(1, 32768 / std::max<int64_t>(1, channels));
}

template <typename T>
T* data(const at::Tensor& tensor) {
  return static_cast<T*>(tensor.data_ptr());
}

/// Calls body(kernels, typed null pointer) for the tensor's dtype.
template <typename Body>
void for_dtype(const at::Tensor& tensor, Body&& body) {
  if (tensor.scalar_type() == at::kFloat) {
    body(cpu_kernels().f32, static_cast<float*>(nullptr));
  } else {
    SFTRUN_CHECK(tensor.scalar_type() == at::kBFloat16);
    body(cpu_kernels().bf16, static_cast<uint16_t*>(nullptr));
  }
}

}  // namespace

std::pair<at::Tensor, at::Tensor> rms_norm_forward(const at::Tensor& x, const at::Tensor& weight,
                                                   double eps, double offset,
                                                   const at::Tensor& copy, int64_t spare) {
  const ProfileRange range("rms_norm_forward");
  require_norm_operands(x, weight);
  if (copy.defined()) require_on_cuda(x), require_same(copy, x);
  if (spare != 0) require_on_cuda(x);
  if (x.is_cuda()) return cuda_kernels().rms_norm_forward(x, weight, eps, offset, copy, spare);
  at::Tensor y = at::empty_like(x);
  at::Tensor rstd = at::empty({x.size(0)}, x.options().dtype(at::kFloat));
  const int64_t hidden = x.size(1);
  for_dtype(x, [&](const auto& kernels, auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_for(0, x.size(0), grain(hidden), [&](int64_t begin, int64_t end) {
      kernels.rms_norm_forward(data<T>(x) + begin * hidden, data<T>(weight),
                               data<T>(y) + begin * hidden, data<float>(rstd) + begin, end - begin,
                               hidden, static_cast<float>(eps), static_cast<float>(offset));
    });
  });
  return {y, rstd};
}

at::Tensor rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                             const at::Tensor& rstd, const at::Tensor& residual, double offset,
                             int64_t spare) {
  const ProfileRange range("rms_norm_backward");
  require_norm_operands(x, weight);
  require_loose_same(dy, x);
  if (residual.defined()) require_loose_same(residual, x);
  require_operand(rstd, x, at::kFloat);
  require_numel(rstd, x.size(0));
  if (spare != 0) require_on_cuda(x);
  if (x.is_cuda())
    return cuda_kernels().rms_norm_backward(dy, x, weight, rstd, residual, offset, spare);
  at::Tensor dx = at::empty_like(x);
  const int64_t hidden = x.size(1);
  for_dtype(x, [&](const auto& kernels, auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const T* beside = residual.defined() ? data<T>(residual) : nullptr;
    parallel_for(0, x.size(0), grain(hidden), [&](int64_t begin, int64_t end) {
      const int64_t first = begin * hidden;
      kernels.rms_norm_backward(data<T>(dy) + first, data<T>(x) + first, data<T>(weight),
                                data<float>(rstd) + begin, beside ? beside + first : nullptr,
                                data<T>(dx) + first, end - begin, hidden,
                                static_cast<float>(offset));
    });
  });
  return dx;
}

at::Tensor empty_rows(int64_t rows, int64_t columns, int64_t spare,
                      const at::TensorOptions& options) {
  return at::empty({rows, columns + spare}, options).narrow(1, 0, columns);
}

at::Tensor product_sums(const at::Tensor& a, const at::Tensor& b, const at::Tensor& row_weights) {
  if (a.is_cuda()) {  // one temporary of the rows; a sum over rows would need another of twice the size
    const at::Tensor product = a.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true).mul_(b);
    return at::mv(product.t(), row_weights.defined()
                                   ? row_weights
                                   : at::ones({product.size(0)}, product.options()));
  }
  at::Tensor product = a.to(at::kFloat) * b.to(at::kFloat);
  if (row_weights.defined()) product.mul_(row_weights.unsqueeze(1));
  return product.sum(0);
}

at::Tensor rms_norm_weight_grad(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& rstd) {
  const ProfileRange range("rms_norm_weight_grad");
  return product_sums(dy, x, rstd);
}

namespace {

void require_heads(const std::vector<HeadsInput>& inputs, const RopeAngles* angles,
                   int64_t head_dim) {
  TORCH_CHECK(inputs.size() >= 1 && inputs.size() <= 3, inputs.size(), " kinds of heads");
  const at::Tensor& first = inputs.front().x;
  for (const HeadsInput& input : inputs) {
    require_loose_rows(input.x);
    TORCH_CHECK(input.x.device() == first.device() && input.x.scalar_type() == first.scalar_type(),
                "heads of ", input.x.scalar_type(), " on ", input.x.device(), " and of ",
                first.scalar_type(), " on ", first.device());
    TORCH_CHECK(input.x.size(0) == first.size(0) && input.x.size(1) % head_dim == 0,
                "an operand of shape ", input.x.sizes(), " in heads of ", head_dim);
    if (!input.rotates) require_on_cuda(input.x);
    if (!input.weight.defined()) continue;
    require_operand(input.weight, first, first.scalar_type());
    require_numel(input.weight, head_dim);
  }
  if (angles == nullptr) return;
  for (const at::Tensor* angle : {&angles->cos, &angles->sin}) {
    require_operand(*angle, first, at::kFloat);
    TORCH_CHECK(angle->dim() == 2 && angle->size(0) == first.size(0) &&
                    angle->size(1) == angles->cos.size(1) && 2 * angle->size(1) <= head_dim,
                "angles of shape ", angle->sizes(), " for ", first.sizes(), " in heads of ",
                head_dim);
  }
}

/// CPU, in place. @param sign -1: inverse rotation, for the backward pass
void rotate_heads(const at::Tensor& x, const RopeAngles& angles, int64_t head_dim, double sign) {
  const int64_t heads = x.size(1) / head_dim, half = angles.cos.size(1);
  for_dtype(x, [&](const auto& kernels, auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_for(0, x.size(0), grain(x.size(1)), [&](int64_t begin, int64_t end) {
      kernels.rope(data<T>(x) + begin * x.size(1), data<float>(angles.cos) + begin * half,
                   data<float>(angles.sin) + begin * half, end - begin, heads, head_dim, 2 * half,
                   static_cast<float>(sign));
    });
  });
}

}  // namespace

std::vector<HeadsOutput> heads_forward(const std::vector<HeadsInput>& inputs,
                                       const RopeAngles* angles, int64_t head_dim) {
  const ProfileRange range("heads_forward");
  require_heads(inputs, angles, head_dim);
  if (inputs.front().x.is_cuda()) return cuda_kernels().heads_forward(inputs, angles, head_dim);
  std::vector<HeadsOutput> outputs;
  for (const HeadsInput& input : inputs) {
    HeadsOutput output{input.x, {}};
    if (input.weight.defined()) {
      auto [y, rstd] =
          rms_norm_forward(input.x.view({-1, head_dim}), input.weight, input.eps, input.offset);
      output = {y.view_as(input.x), rstd};
    }
    if (angles != nullptr) rotate_heads(output.y, *angles, head_dim, 1);
    outputs.push_back(std::move(output));
  }
  return outputs;
}

std::vector<at::Tensor> heads_backward(const std::vector<HeadsInput>& inputs,
                                       const std::vector<at::Tensor>& grads,
                                       const std::vector<at::Tensor>& rstd,
                                       const RopeAngles* angles, int64_t head_dim,
                                       const std::vector<at::Tensor>& into) {
  const ProfileRange range("heads_backward");
  require_heads(inputs, angles, head_dim);
  TORCH_CHECK(grads.size() == inputs.size() && rstd.size() == inputs.size() &&
              (into.empty() || into.size() == inputs.size()));
  for (size_t i = 0; i < into.size(); ++i) {
    require_on_cuda(into[i]);
    require_loose_same(into[i], grads[i]);
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    require_operand(grads[i], inputs[i].x, inputs[i].x.scalar_type());
    TORCH_CHECK(grads[i].sizes() == inputs[i].x.sizes(), "gradients of shape ", grads[i].sizes(),
                " for ", inputs[i].x.sizes());
    if (!inputs[i].weight.defined()) continue;
    require_operand(rstd[i], inputs[i].x, at::kFloat);
    require_numel(rstd[i], inputs[i].x.numel() / head_dim);
  }
  if (inputs.front().x.is_cuda())
    return cuda_kernels().heads_backward(inputs, grads, rstd, angles, head_dim, into);
  std::vector<at::Tensor> result;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const HeadsInput& input = inputs[i];
    if (angles != nullptr) rotate_heads(grads[i], *angles, head_dim, -1);
    if (!input.weight.defined()) {
      result.push_back(grads[i]);
      continue;
    }
    result.push_back(rms_norm_backward(grads[i].view({-1, head_dim}), input.x.view({-1, head_dim}),
                                       input.weight, rstd[i], {}, input.offset)
                         .view_as(input.x));
  }
  return result;
}

at::Tensor gated_forward(Gating gating, const at::Tensor& gate, const at::Tensor& up,
                         int64_t spare) {
  const ProfileRange range("gated_forward");
  require_gated_operands(gate, up);
  if (spare != 0) require_on_cuda(gate), require_loose_rows(gate);
  if (gate.is_cuda()) return cuda_kernels().gated_forward(gating, gate, up, spare);
  at::Tensor h = at::empty_like(gate);
  for_dtype(gate, [&](const auto& kernels, auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_for(0, gate.numel(), 16384, [&](int64_t begin, int64_t end) {
      kernels.gated_forward(gating, data<T>(gate) + begin, data<T>(up) + begin, data<T>(h) + begin,
                            end - begin);
    });
  });
  return h;
}

void gated_backward_(Gating gating, const at::Tensor& dh, at::Tensor& gate, at::Tensor& up) {
  const ProfileRange range("gated_backward");
  require_gated_operands(gate, up);
  require_operand(dh, gate, gate.scalar_type());
  require_numel(dh, gate.numel());
  if (gate.is_cuda())
    return cuda_kernels().gated_backward(gating, dh, gate, up, /*leaves_activation=*/false);
  for_dtype(gate, [&](const auto& kernels, auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_for(0, gate.numel(), 16384, [&](int64_t begin, int64_t end) {
      kernels.gated_backward(gating, data<T>(dh) + begin, data<T>(gate) + begin,
                             data<T>(up) + begin, end - begin);
    });
  });
}

void gated_backward_and_forward_(Gating gating, at::Tensor& dh, at::Tensor& gate, at::Tensor& up) {
  const ProfileRange range("gated_backward_and_forward");
  require_on_cuda(gate);
  require_gated_operands(gate, up);
  require_operand(dh, gate, gate.scalar_type());
  require_numel(dh, gate.numel());
  cuda_kernels().gated_backward(gating, dh, gate, up, /*leaves_activation=*/true);
}

at::Tensor dropout(const at::Tensor& x, const BatchMetadata& batch, double probability,
                   uint32_t module) {
  const ProfileRange range("dropout");
  require_rows(x);
  if (x.is_cuda()) {
    require_operand(batch.token_keys_device, x, at::kInt);
    require_numel(batch.token_keys_device, 2 * x.size(0));
    require_operand(batch.step_device, x, at::kInt);
    require_numel(batch.step_device, 1);
  }
  DropoutParams params;
  params.seed = batch.dropout_seed;
  params.step = batch.step;
  params.module = module;
  params.threshold = static_cast<uint32_t>(std::lround(probability * 65536.0));
  params.scale = static_cast<float>(65536.0 / (65536.0 - params.threshold));
  if (x.is_cuda())
    return cuda_kernels().dropout(x, batch.token_keys_device, batch.step_device, params);
  SFTRUN_CHECK_EQ(static_cast<int64_t>(batch.token_keys.size()), x.size(0));
  at::Tensor y = at::empty_like(x);
  const int64_t channels = x.size(1);
  for_dtype(x, [&](const auto& kernels, auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_for(0, x.size(0), grain(channels), [&](int64_t begin, int64_t end) {
      kernels.dropout(data<T>(x) + begin * channels, data<T>(y) + begin * channels,
                      batch.token_keys.data() + begin, end - begin, channels, params);
    });
  });
  return y;
}

at::Tensor token_losses_and_grad_(at::Tensor& logits, const at::Tensor& labels, double softcap,
                                  const GradScale& grad_scale) {
  const ProfileRange range("token_losses_and_grad");
  require_losses_operands(logits, labels);
  const at::Tensor& factor = grad_scale.factor;
  if (factor.defined()) {
    require_on_cuda(logits);
    require_operand(factor, logits, at::kFloat);
    require_numel(factor, 1);
  }
  const at::Tensor& row_factors = grad_scale.row_factors;
  if (row_factors.defined()) {
    require_operand(row_factors, logits, at::kFloat);
    require_numel(row_factors, logits.size(0));
  }
  if (logits.is_cuda()) return cuda_kernels().cross_entropy(logits, labels, softcap, grad_scale);
  const float* factors = row_factors.defined() ? data<float>(row_factors) : nullptr;
  at::Tensor losses = at::empty({logits.size(0)}, logits.options().dtype(at::kFloat));
  const int64_t vocab = logits.size(1);
  for_dtype(logits, [&](const auto& kernels, auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_for(0, logits.size(0), 1, [&](int64_t begin, int64_t end) {
      kernels.cross_entropy(data<T>(logits) + begin * vocab, data<int32_t>(labels) + begin,
                            data<float>(losses) + begin, end - begin, vocab,
                            static_cast<float>(softcap), static_cast<float>(grad_scale.value),
                            factors ? factors + begin : nullptr);
    });
  });
  return losses;
}

at::Tensor token_losses(const at::Tensor& logits, const at::Tensor& labels, double softcap) {
  const ProfileRange range("token_losses");
  require_losses_operands(logits, labels);
  if (logits.is_cuda()) return cuda_kernels().cross_entropy_loss(logits, labels, softcap);
  at::Tensor losses = at::empty({logits.size(0)}, logits.options().dtype(at::kFloat));
  const int64_t vocab = logits.size(1);
  for_dtype(logits, [&](const auto& kernels, auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_for(0, logits.size(0), 1, [&](int64_t begin, int64_t end) {
      kernels.cross_entropy_loss(data<T>(logits) + begin * vocab, data<int32_t>(labels) + begin,
                                 data<float>(losses) + begin, end - begin, vocab,
                                 static_cast<float>(softcap));
    });
  });
  return losses;
}

namespace {

/// The CPU's kernels write copies in bf16. A GPU may compute in fp16 with weights that the CPU updates.
void refresh_fp16_copy(const at::Tensor& compute, const at::Tensor& master, int64_t begin,
                       int64_t end) {
  if (compute.scalar_type() != at::kHalf) return;
  compute.narrow(0, begin, end - begin).copy_(master.narrow(0, begin, end - begin));
}

}  // namespace

void adamw_(at::Tensor& master, const at::Tensor& grad, at::Tensor& exp_avg, at::Tensor& exp_avg_sq,
            at::Tensor& compute, int64_t begin, int64_t end, const AdamWParams& params,
            const at::Tensor& gate) {
  const ProfileRange range("adamw");
  for (const at::Tensor* operand :
       {&std::as_const(master), &grad, &std::as_const(exp_avg), &std::as_const(exp_avg_sq)}) {
    require_operand(*operand, master, at::kFloat);
    require_range(*operand, begin, end);
  }
  require_operand(compute, master, compute.scalar_type());
  require_range(compute, begin, end);
  if (gate.defined()) require_gate(gate, master);
  if (master.is_cuda()) {
    return cuda_kernels().adamw(master, grad, exp_avg, exp_avg_sq, compute, begin, end, params,
                                gate);
  }
  AdamWParams own = params;
  if (!passes(gate, own)) return;
  uint16_t* copy = compute.scalar_type() == at::kBFloat16 ? data<uint16_t>(compute) : nullptr;
  parallel_for(begin, end, 16384, [&](int64_t first, int64_t last) {
    cpu_kernels().adamw(data<float>(master) + first, data<float>(grad) + first,
                        data<float>(exp_avg) + first, data<float>(exp_avg_sq) + first,
                        copy ? copy + first : nullptr, last - first, own);
  });
  refresh_fp16_copy(compute, master, begin, end);
}

void adamw_8bit_(at::Tensor& master, const at::Tensor& grad, BlockwiseMoments& moments,
                 at::Tensor& compute, int64_t first_block, int64_t end_block,
                 const AdamW8bitParams& params, const at::Tensor& gate) {
  const ProfileRange range("adamw_8bit");
  require_8bit_operands(master, grad, moments, compute, first_block, end_block);
  if (gate.defined()) require_gate(gate, master);
  if (master.is_cuda())
    return cuda_kernels().adamw_8bit(master, grad, moments, compute, first_block, end_block, params,
                                     gate);
  AdamW8bitParams own = params;
  if (!passes(gate, own)) return;
  constexpr int64_t kGrain = 16384 / kStateBlock;
  uint16_t* copy = compute.scalar_type() == at::kBFloat16 ? data<uint16_t>(compute) : nullptr;
  const auto map_of = [](const DynamicMap& map) {
    return StateMap{data<float>(map.values), data<uint8_t>(map.codes), data<uint16_t>(map.tree)};
  };
  const StateMap exp_avg_map = map_of(moments.exp_avg_map),
                 exp_avg_sq_map = map_of(moments.exp_avg_sq_map);
  parallel_for(first_block, end_block, kGrain, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      const int64_t begin = data<int64_t>(moments.block_begin)[block];
      const StateBlock state{data<uint8_t>(moments.exp_avg) + block * kStateBlock,
                             data<uint8_t>(moments.exp_avg_sq) + block * kStateBlock,
                             data<float>(moments.exp_avg_absmax) + block,
                             data<float>(moments.exp_avg_sq_absmax) + block};
      cpu_kernels().adamw_8bit(data<float>(master) + begin, data<float>(grad) + begin, state,
                               copy ? copy + begin : nullptr,
                               data<int16_t>(moments.block_numel)[block], exp_avg_map,
                               exp_avg_sq_map, own);
    }
  });
  if (first_block == end_block) return;
  const auto* begins = data<int64_t>(moments.block_begin);
  refresh_fp16_copy(compute, master, begins[first_block],
                    begins[end_block - 1] + data<int16_t>(moments.block_numel)[end_block - 1]);
}

at::Tensor sum_of_squares(const at::Tensor& flat) {
  const ProfileRange range("sum_of_squares");
  require_operand(flat, flat, at::kFloat);
  if (flat.is_cuda()) return cuda_kernels().sum_of_squares(flat);
  constexpr int64_t kChunk = 65536;
  const int64_t num_chunks = (flat.numel() + kChunk - 1) / kChunk;
  std::vector<double> partial(static_cast<size_t>(num_chunks));
  parallel_for(0, num_chunks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const int64_t first = chunk * kChunk;
      partial[static_cast<size_t>(chunk)] = cpu_kernels().sum_of_squares(
          data<float>(flat) + first, std::min(kChunk, flat.numel() - first));
    }
  });
  double total = 0;
  for (const double value : partial) total += value;
  return at::scalar_tensor(total, at::kDouble);
}

}  // namespace sftrun::kernels
