#include "sftrun/kernels/parameter.h"

#include <ATen/ATen.h>

#include "sftrun/core/error.h"

namespace sftrun::kernels {
namespace {

constexpr int64_t kAlignment =
    16;  // elements: aligns each parameter to a cache line of the fp32 buffers

}  // namespace

at::Tensor Parameter::in_file_order(const at::Tensor& values) const {
  return layout.reorders() ? values.view(layout.view).permute(layout.order) : values;
}

void Parameter::refresh_compute() {
  if (compute.data_ptr() != master.data_ptr()) compute.copy_(master.detach());
}

Parameter* ParameterStore::add(std::string name, std::vector<int64_t> shape, int64_t group,
                               bool decays) {
  SFTRUN_CHECK(parameters_.empty() || parameters_.back().group <= group);
  Parameter parameter;
  parameter.name = std::move(name);
  parameter.shape = std::move(shape);
  parameter.group = group;
  parameter.decays = decays;
  parameter.offset = flat_size_;
  parameter.numel = 1;
  for (const int64_t size : parameter.shape) parameter.numel *= size;
  flat_size_ += (parameter.numel + kAlignment - 1) / kAlignment * kAlignment;
  parameters_.push_back(std::move(parameter));
  return &parameters_.back();
}

void ParameterStore::allocate(at::ScalarType compute_dtype, at::Device device) {
  const auto fp32 = at::TensorOptions().dtype(at::kFloat).device(device);
  master_ = at::zeros({flat_size_}, fp32);
  grad_ = at::zeros({flat_size_}, fp32);
  compute_ =
      compute_dtype == at::kFloat ? master_ : at::zeros({flat_size_}, fp32.dtype(compute_dtype));
  for (Parameter& parameter : parameters_) {
    const auto view = [&](const at::Tensor& flat) {
      return flat.narrow(0, parameter.offset, parameter.numel).view(parameter.shape);
    };
    parameter.grad = view(grad_);
    parameter.compute = view(parameter.in_fp32 ? master_ : compute_);
    parameter.master = view(master_).detach();
    parameter.master.requires_grad_();
    parameter.master.mutable_grad() = parameter.grad;
  }
}

Parameter* ParameterStore::find(const std::string& name) {
  for (Parameter& parameter : parameters_) {
    if (parameter.name == name) return &parameter;
  }
  return nullptr;
}

int64_t ParameterStore::numel() const {
  int64_t total = 0;
  for (const Parameter& parameter : parameters_) total += parameter.numel;
  return total;
}

std::pair<int64_t, int64_t> ParameterStore::group_range(int64_t group) const {
  int64_t begin = flat_size_, end = 0;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].group != group) continue;
    begin = std::min(begin, parameters_[i].offset);
    end = i + 1 < parameters_.size() ? parameters_[i + 1].offset : flat_size_;
  }
  return begin < end ? std::pair{begin, end} : std::pair<int64_t, int64_t>{0, 0};
}

int64_t ParameterStore::num_groups() const {
  return parameters_.empty() ? 0 : parameters_.back().group + 1;
}

void ParameterStore::zero_grad() {
  grad_.zero_();
}

void ParameterStore::refresh_compute() {
  if (!compute_.is_same(master_)) compute_.copy_(master_);
  compute_changed();
}

}  // namespace sftrun::kernels
