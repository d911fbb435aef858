#include "tower/tower_ops.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "linear/fused_linears.h"
#include "linear/fused_norms.h"

namespace sftrun::layers {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

/// Makes outputs of an operation results of `node`, whose inputs are `inputs`.
template <typename T>
void connect(const std::shared_ptr<T>& node, std::vector<at::Tensor>& outputs,
             const at::Tensor& input) {
  if (input.defined()) node->set_next_edges(torch::autograd::collect_next_edges(input));
  for (at::Tensor& output : outputs) torch::autograd::create_gradient_edge(output, node);
}

template <typename T, typename... Arguments>
std::shared_ptr<T> new_node(Arguments&&... arguments) {
  return std::shared_ptr<T>(new T(std::forward<Arguments>(arguments)...),
                            torch::autograd::deleteNode);
}

bool tracks(const at::Tensor& x, bool trains) {
  return at::GradMode::is_enabled() && (trains || x.requires_grad());
}

struct LinearsNode final : Node {
  LinearsNode(LinearGroup linears, const BatchContext& context, const at::Tensor& input)
      : group(std::move(linears)),
        batch(context),
        x(trains(group) ? input.detach() : at::Tensor()) {}

  variable_list apply(variable_list&& grads) override {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < grads.size(); ++i)
      grads[i] = grads[i].defined() ? grads[i].contiguous() : at::zeros(shapes[i], options);
    const bool needs_dx = num_outputs() > 0 && task_should_compute_output(0);
    at::Tensor dx = linears_backward(grads, x, low, group, batch, needs_dx);
    return num_outputs() > 0 ? variable_list{dx} : variable_list();
  }
  void release_variables() override { x.reset(), low.clear(); }

  LinearGroup group;
  const BatchContext& batch;
  at::Tensor x;
  LowRank low;
  std::vector<std::vector<int64_t>> shapes;
  at::TensorOptions options;
};

struct RmsNode final : Node {
  RmsNode(const Norm& of, at::Tensor input, at::Tensor factors)
      : norm(of), x(std::move(input)), rstd(std::move(factors)) {}

  variable_list apply(variable_list&& grads) override {
    const at::NoGradGuard no_grad;
    if (!grads[0].defined()) return {at::Tensor()};
    const bool needs_dx = num_outputs() > 0 && task_should_compute_output(0);
    at::Tensor dx = norm_backward(grads[0].contiguous(), x, norm, rstd, {}, needs_dx);
    return num_outputs() > 0 ? variable_list{dx} : variable_list();
  }
  void release_variables() override { x.reset(), rstd.reset(); }

  const Norm& norm;
  at::Tensor x, rstd;
};

struct AttentionNode final : Node {
  AttentionNode(const kernels::BatchMetadata& in, const kernels::AttentionShape& heads)
      : documents(in), shape(heads) {}

  variable_list apply(variable_list&& grads) override {
    const at::NoGradGuard no_grad;
    if (!grads[0].defined()) return variable_list(3);
    const kernels::AttentionGrads d =
        kernels::attention_backward(grads[0].contiguous(), q, k, v, saved, documents, shape);
    const auto apart = [&](const at::Tensor& x) { return x.view({x.size(0), -1, shape.head_dim}); };
    return {apart(d.dq), apart(d.dk), apart(d.dv)};
  }
  void release_variables() override { q.reset(), k.reset(), v.reset(), saved = {}; }

  const kernels::BatchMetadata& documents;
  kernels::AttentionShape shape;
  at::Tensor q, k, v;  // [R, heads * head_dim]
  kernels::AttentionOutput saved;
};

struct WeightNode final : Node {
  explicit WeightNode(Parameter& of) : parameter(of) {}
  variable_list apply(variable_list&& grads) override {
    const at::NoGradGuard no_grad;
    if (grads[0].defined()) parameter.grad.add_(grads[0].view(parameter.grad.sizes()));
    return {};
  }
  Parameter& parameter;
};

/// [q1, q2] -> [-q2, q1] in each group of `width` channels.
at::Tensor turned(const at::Tensor& x, int64_t width) {
  const at::Tensor halves = x.view({x.size(0), x.size(1), -1, 2, width / 2});
  return at::stack({halves.select(3, 1).neg(), halves.select(3, 0)}, 3).view_as(x);
}

struct RotationNode final : Node {
  RotationNode(at::Tensor cosines, at::Tensor sines, int64_t channels)
      : cos(std::move(cosines)), sin(std::move(sines)), width(channels) {}
  variable_list apply(variable_list&& grads) override {
    const at::NoGradGuard no_grad;
    if (!grads[0].defined()) return {at::Tensor()};
    const at::Tensor g = grads[0].to(at::kFloat).contiguous();
    return {(g * cos - turned(g * sin, width)).to(grads[0].scalar_type())};  // turned is skew
  }
  at::Tensor cos, sin;
  int64_t width;
};

}  // namespace

std::vector<at::Tensor> tower_linears(const at::Tensor& x, const LinearGroup& group,
                                      const BatchContext& batch) {
  const bool keeps = tracks(x, trains(group));
  std::shared_ptr<LinearsNode> node;
  std::vector<at::Tensor> outputs;
  {
    const at::NoGradGuard no_grad;
    if (keeps) node = new_node<LinearsNode>(group, batch, x);
    outputs = linears_forward(x.detach(), group, batch, keeps ? &node->low : nullptr);
  }
  if (!keeps) return outputs;
  node->options = x.options().requires_grad(std::nullopt);
  for (const at::Tensor& output : outputs) node->shapes.push_back(output.sizes().vec());
  connect(node, outputs, x);
  return outputs;
}

namespace {

at::Tensor clamped(const at::Tensor& x, const Weight& low, const Weight& high) {
  return low.defined() ? at::clamp(x, low.weight, high.weight) : x;
}

}  // namespace

std::vector<at::Tensor> tower_linears(const at::Tensor& x, const std::vector<TowerLinear>& group,
                                      const BatchContext& batch) {
  if (group.front().bounds.input_min.defined()) {
    std::vector<at::Tensor> outputs;
    for (const TowerLinear& linear : group) outputs.push_back(tower_linear(x, linear, batch));
    return outputs;
  }
  LinearGroup linears;
  for (const TowerLinear& linear : group) linears.push_back(&linear.linear);
  return tower_linears(x, linears, batch);
}

at::Tensor tower_linear(const at::Tensor& x, const TowerLinear& linear, const BatchContext& batch) {
  const TowerLinear::Bounds& bounds = linear.bounds;
  const at::Tensor in = clamped(x, bounds.input_min, bounds.input_max).contiguous();
  return clamped(tower_linears(in, LinearGroup{&linear.linear}, batch)[0], bounds.output_min,
                 bounds.output_max);
}

at::Tensor tower_norm(const at::Tensor& x, const TowerNorm& norm) {
  if (!norm.exists()) return x;
  if (norm.spec.kind == spec::TowerNormKind::kLayerNorm)
    return at::layer_norm(x, {norm.spec.size}, read_weight(norm.weight), read_weight(norm.bias),
                          norm.spec.eps);
  const at::Tensor rows = x.reshape({-1, norm.spec.size});
  const bool keeps = tracks(x, norm.rms.parameter != nullptr);
  std::vector<at::Tensor> outputs(1);
  std::shared_ptr<RmsNode> node;
  {
    const at::NoGradGuard no_grad;
    Normed result = normed(rows.detach(), norm.rms);
    outputs[0] = std::move(result.y);
    if (keeps) node = new_node<RmsNode>(norm.rms, rows.detach(), result.rstd);
  }
  if (keeps) connect(node, outputs, rows);
  return outputs[0].view_as(x);
}

at::Tensor read_weight(const Weight& weight) {
  if (weight.parameter == nullptr || !at::GradMode::is_enabled()) return weight.weight;
  std::vector<at::Tensor> values = {weight.weight.detach()};
  const auto node = new_node<WeightNode>(*weight.parameter);
  connect(node, values, {});
  return values[0];
}

at::Tensor squares_in(const at::Tensor& rows, const at::Tensor& order) {
  if (!order.defined()) return rows;
  return rows.reshape({order.size(0), -1}).index_select(0, order).view_as(rows);
}

at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                  int64_t width) {
  const bool keeps = tracks(x, false);
  std::vector<at::Tensor> outputs(1);
  {
    const at::NoGradGuard no_grad;
    const at::Tensor wide = x.detach().to(at::kFloat).contiguous();
    outputs[0] = (wide * cos + turned(wide, width) * sin).to(x.scalar_type());
  }
  if (keeps) connect(new_node<RotationNode>(cos, sin, width), outputs, x);
  return outputs[0];
}

at::Tensor whole_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const kernels::BatchMetadata& documents, double scale) {
  const kernels::AttentionShape shape{.num_heads = q.size(1),
                                      .num_kv_heads = k.size(1),
                                      .head_dim = q.size(2),
                                      .scale = scale,
                                      .both_ways = true};
  const auto node = new_node<AttentionNode>(documents, shape);
  std::vector<at::Tensor> outputs(1);
  {
    const at::NoGradGuard no_grad;
    const auto flat = [](const at::Tensor& x) { return x.detach().reshape({x.size(0), -1}); };
    node->q = flat(q), node->k = flat(k), node->v = flat(v);
    node->saved = kernels::attention_forward(node->q, node->k, node->v, documents, shape);
    outputs[0] = node->saved.out;
  }
  if (!tracks(q, false) && !tracks(k, false) && !tracks(v, false)) return outputs[0];
  outputs[0] = outputs[0].detach();  // the node keeps the output, which must not hold the node
  node->set_next_edges(torch::autograd::collect_next_edges(q, k, v));
  torch::autograd::create_gradient_edge(outputs[0], node);
  return outputs[0];
}

}  // namespace sftrun::layers
