#include "entries.h"
#include "launch_context.h"

/// RMSNorm; norm and RoPE of attention heads.
namespace sftrun::kernels::plugin {

std::pair<at::Tensor, at::Tensor> rms_norm_forward(const at::Tensor& x, const at::Tensor& weight,
                                                   double eps, double offset,
                                                   const at::Tensor& copy, int64_t spare) {
  at::Tensor y = empty_rows(x.sizes(), spare, x.options()), rstd = float_rows(x);
  const Launch launch(x);
  cuda::launch_rms_norm_forward(type_of(x),
                                {.x = x.const_data_ptr(),
                                 .weight = weight.const_data_ptr(),
                                 .y = y.data_ptr(),
                                 .copy = copy.defined() ? copy.data_ptr() : nullptr,
                                 .rstd = rstd.data_ptr<float>(),
                                 .rows = x.size(0),
                                 .hidden = x.size(1),
                                 .y_stride = y.stride(0),
                                 .eps = static_cast<float>(eps),
                                 .offset = static_cast<float>(offset)},
                                launch.stream());
  launch.check();
  return {y, rstd};
}

at::Tensor rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                             const at::Tensor& rstd, const at::Tensor& residual, double offset,
                             int64_t spare) {
  at::Tensor dx = empty_rows(x.sizes(), spare, x.options());
  const Launch launch(x);
  cuda::launch_rms_norm_backward(
      type_of(x),
      {.dy = dy.const_data_ptr(),
       .x = x.const_data_ptr(),
       .weight = weight.const_data_ptr(),
       .rstd = rstd.const_data_ptr<float>(),
       .residual = residual.defined() ? residual.const_data_ptr() : nullptr,
       .dx = dx.data_ptr(),
       .rows = x.size(0),
       .hidden = x.size(1),
       .dy_stride = dy.stride(0),
       .residual_stride = residual.defined() ? residual.stride(0) : 0,
       .dx_stride = dx.stride(0),
       .offset = static_cast<float>(offset)},
      launch.stream());
  launch.check();
  return dx;
}

namespace {

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

}  // namespace

std::vector<HeadsOutput> heads_forward(const std::vector<HeadsInput>& inputs,
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
  cuda::launch_heads_forward(type_of(inputs.front().x), problem, launch.stream());
  launch.check();
  return outputs;
}

std::vector<at::Tensor> heads_backward(const std::vector<HeadsInput>& inputs,
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
  cuda::launch_heads_backward(type_of(inputs.front().x), problem, launch.stream());
  launch.check();
  return results;
}

}  // namespace sftrun::kernels::plugin
