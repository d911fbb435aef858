#include "sftrun/kernels/joint_linears.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "sftrun/core/error.h"
#include "sftrun/kernels/cuda_registry.h"
#include "sftrun/kernels/ops.h"

namespace sftrun::kernels {
namespace {

bool can_be_part(const Linear& linear) {
  const bool is_frozen = linear.weight_parameter == nullptr && linear.bias_parameter == nullptr;
  const bool is_plain = !linear.lora || (linear.lora->magnitude == nullptr &&
                                         linear.lora->dropout == 0 && !linear.lora->a->in_fp32);
  return linear.weight.defined() && !linear.quantized && is_frozen && is_plain;
}

int64_t rank_of(const Linear& linear) {
  return linear.lora ? linear.lora->a->shape[0] : 0;
}

/// Calls body(linear, its first row, the first of its adapter's columns).
template <typename Body>
void for_members(const JointLinears& joint, Body&& body) {
  int64_t row = 0, column = 0;
  for (const Linear* linear : joint.members) {
    body(*linear, row, column);
    row += linear->weight.size(0);
    column += rank_of(*linear);
  }
}

}  // namespace

bool can_join(const std::vector<Linear*>& linears) {
  if (linears.size() < 2) return false;
  const auto agree = [&](auto&& claim) {
    return std::all_of(linears.begin(), linears.end(), claim) ||
           std::none_of(linears.begin(), linears.end(), claim);
  };
  return std::all_of(linears.begin(), linears.end(),
                     [](const Linear* linear) { return can_be_part(*linear); }) &&
         agree([](const Linear* linear) { return linear->bias.defined(); });
}

JointLinears join(const std::vector<Linear*>& linears) {
  JointLinears joint;
  std::vector<at::Tensor> weights, biases;
  int64_t ranks = 0;
  for (const Linear* linear : linears) {
    weights.push_back(linear->weight);
    if (linear->bias.defined()) biases.push_back(linear->bias);
    ranks += rank_of(*linear);
  }
  joint.weight = at::cat(weights);
  if (!biases.empty()) joint.bias = at::cat(biases);
  joint.members.assign(linears.begin(), linears.end());
  int64_t row = 0;
  for (Linear* linear : linears) {
    const int64_t rows = linear->weight.size(0);
    linear->weight = joint.weight.narrow(0, row, rows);
    row += rows;
  }
  if (ranks == 0) return joint;
  joint.a = at::zeros({ranks, joint.weight.size(1)}, joint.weight.options());
  joint.b = at::zeros({joint.weight.size(0), ranks}, joint.weight.options());
  return joint;
}

at::Tensor joint_forward(const at::Tensor& x, const JointLinears& joint, at::Tensor* low) {
  at::Tensor y = joint.bias.defined() ? at::addmm(joint.bias, x, joint.weight.t())
                                      : at::mm(x, joint.weight.t());
  if (!joint.has_adapters()) return y;
  const at::Tensor columns = at::mm(x, joint.a.t());
  if (low != nullptr) *low = columns;
  return y.addmm_(columns, joint.b.t());
}

at::Tensor joint_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& low,
                          const JointLinears& joint, bool needs_dx) {
  at::Tensor d_low;
  if (joint.has_adapters()) {
    d_low = at::mm(dy, joint.b);  // b has the scales
    std::vector<AdapterGrad> grads;
    for_members(joint, [&](const Linear& linear, int64_t row, int64_t column) {
      if (!linear.lora) return;
      const LoraAdapter& lora = *linear.lora;
      const int64_t rank = rank_of(linear);
      grads.push_back({lora.b->grad, dy.narrow(1, row, linear.weight.size(0)),
                       low.narrow(1, column, rank), lora.scale});
      grads.push_back({lora.a->grad, d_low.narrow(1, column, rank), x, 1});
    });
    add_adapter_grads_(grads);
  }
  if (!needs_dx) return {};
  at::Tensor dx = at::mm(dy, joint.weight);
  return d_low.defined() ? dx.addmm_(d_low, joint.a) : dx;
}

void JointAdapters::add(const JointLinears& joint) {
  if (!joint.has_adapters()) return;
  for_members(joint, [&](const Linear& linear, int64_t row, int64_t column) {
    if (!linear.lora) return;
    const LoraAdapter& lora = *linear.lora;
    const int64_t rank = rank_of(linear);
    copies_.push_back({lora.a->compute, joint.a.narrow(0, column, rank), 1});
    copies_.push_back({lora.b->compute,
                       joint.b.narrow(0, row, linear.weight.size(0)).narrow(1, column, rank),
                       lora.scale});
  });
}

void JointAdapters::refresh() const {
  if (copies_.empty()) return;
  if (!table_.defined()) {
    std::vector<MatrixCopy> entries;
    for (const Copy& copy : copies_) entries.push_back({copy.from, copy.to, copy.scale});
    table_ = cuda_kernels().copy_table(entries);
  }
  cuda_kernels().copy_matrices(table_, copies_.front().to);
}

}  // namespace sftrun::kernels
