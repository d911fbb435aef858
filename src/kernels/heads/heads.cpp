#include <ATen/ATen.h>

#include "cuda/launch.h"
#include "heads/heads_launch.h"
#include "operands.h"
#include "parallel.h"
#include "row_kernels.h"
#include "sftrun/kernels/ops.h"
#include "sftrun/kernels/profile_range.h"

namespace sftrun::kernels {
namespace {

const CudaEntry<decltype(cuda::launch_heads_forward)> launch_heads_forward("launch_heads_forward");
const CudaEntry<decltype(cuda::launch_heads_backward)> launch_heads_backward(
    "launch_heads_backward");

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

cuda::HeadsProblem heads_problem(const std::vector<HeadsInput>& inputs, const RopeAngles* angles,
                                 int64_t head_dim) {
  cuda::HeadsProblem problem{};
  const at::Tensor& x = inputs.front().x;
  problem.tokens = x.size(0);
  problem.head_dim = head_dim;
  if (angles != nullptr) {
    problem.cos = angles->cos.const_data_ptr<float>();
    problem.sin = angles->sin.const_data_ptr<float>();
    problem.rotary_dim = 2 * angles->cos.size(1);
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    const HeadsInput& input = inputs[i];
    problem.rows[i].x = input.x.const_data_ptr();
    problem.rows[i].weight = input.weight.defined() ? input.weight.const_data_ptr() : nullptr;
    problem.rows[i].heads = input.x.size(1) / head_dim;
    problem.rows[i].x_stride = input.x.stride(0);
    problem.rows[i].eps = static_cast<float>(input.eps);
    problem.rows[i].offset = static_cast<float>(input.offset);
    problem.rows[i].rotates = input.rotates;
  }
  return problem;
}

std::vector<HeadsOutput> heads_on_cuda(const std::vector<HeadsInput>& inputs,
                                       const RopeAngles* angles, int64_t head_dim) {
  cuda::HeadsProblem problem = heads_problem(inputs, angles, head_dim);
  std::vector<HeadsOutput> outputs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor& x = inputs[i].x;
    HeadsOutput output{x, {}};
    if (inputs[i].weight.defined())
      output = {at::empty(x.sizes(), x.options()),
                at::empty({x.numel() / head_dim}, x.options().dtype(at::kFloat))};
    problem.rows[i].y = output.y.data_ptr();
    problem.rows[i].y_stride = output.y.stride(0);
    problem.rows[i].rstd = output.rstd.defined() ? output.rstd.data_ptr<float>() : nullptr;
    outputs.push_back(std::move(output));
  }
  const Launch launch(inputs.front().x);
  launch_heads_forward(cuda_type_of(inputs.front().x), problem, launch.stream());
  launch.check();
  return outputs;
}

std::vector<at::Tensor> heads_backward_on_cuda(const std::vector<HeadsInput>& inputs,
                                               const std::vector<at::Tensor>& grads,
                                               const std::vector<at::Tensor>& rstd,
                                               const RopeAngles* angles, int64_t head_dim,
                                               const std::vector<at::Tensor>& into) {
  cuda::HeadsProblem problem = heads_problem(inputs, angles, head_dim);
  const std::vector<at::Tensor>& results = into.empty() ? grads : into;
  for (size_t i = 0; i < inputs.size(); ++i) {
    problem.rows[i].grad = grads[i].const_data_ptr();
    problem.rows[i].y = results[i].data_ptr();
    problem.rows[i].y_stride = results[i].stride(0);
    problem.rows[i].rstd = inputs[i].weight.defined() ? rstd[i].data_ptr<float>() : nullptr;
  }
  const Launch launch(inputs.front().x);
  launch_heads_backward(cuda_type_of(inputs.front().x), problem, launch.stream());
  launch.check();
  return results;
}

}  // namespace

std::vector<HeadsOutput> heads_forward(const std::vector<HeadsInput>& inputs,
                                       const RopeAngles* angles, int64_t head_dim) {
  const ProfileRange range("heads_forward");
  require_heads(inputs, angles, head_dim);
  if (inputs.front().x.is_cuda()) return heads_on_cuda(inputs, angles, head_dim);
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
    return heads_backward_on_cuda(inputs, grads, rstd, angles, head_dim, into);
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

}  // namespace sftrun::kernels
