#include "sftrun/layers/parameter.h"

#include <ATen/ATen.h>

#include "sftrun/core/error.h"
#include "sftrun/core/rounding.h"
#include "sftrun/layers/tensor_ranks.h"
#include "sftrun/layers/unit.h"

namespace sftrun::layers {
namespace {

constexpr int64_t kAlignment =
    16;  // elements: aligns each parameter to a cache line of the fp32 buffers
/// Parts of a divided unit begin at multiples of this: the blocks of 8-bit optimizer states
/// (`kernels::kStateBlock`) are then the same as undivided.
constexpr int64_t kPartAlignment = 256;

}  // namespace

std::vector<int64_t> Parameter::whole_shape() const {
  std::vector<int64_t> whole = shape;
  if (slice) whole[static_cast<size_t>(slice->dim)] = slice->whole_size;
  return whole;
}

int64_t Parameter::whole_numel() const {
  return c10::multiply_integers(whole_shape());
}

at::Tensor Parameter::part_of(const at::Tensor& values) const {
  return slice ? layers::part_of(values, *slice) : values;
}

at::Tensor Parameter::in_file_order(const at::Tensor& values) const {
  return layers::in_file_order(values, layout);
}

at::Tensor in_file_order(const at::Tensor& values, const FileLayout& layout) {
  return layout.reorders() ? values.view(layout.view).permute(layout.order) : values;
}

at::Tensor in_memory_order(const at::Tensor& stored, const FileLayout& layout,
                           at::IntArrayRef shape) {
  if (!layout.reorders()) return stored.view(shape);
  at::Tensor values = at::empty(shape, stored.options());
  const at::Tensor ordered = in_file_order(values, layout);
  ordered.copy_(stored.view(ordered.sizes()));
  return values;
}

Parameter* ParameterStore::add(std::string name, std::vector<int64_t> shape, int64_t unit,
                               bool decays) {
  SFTRUN_CHECK(parameters_.empty() || parameters_.back().unit <= unit);
  Parameter parameter;
  parameter.name = std::move(name);
  parameter.shape = std::move(shape);
  parameter.unit = unit;
  parameter.decays = decays;
  parameter.numel = 1;
  for (const int64_t size : parameter.shape) parameter.numel *= size;
  parameters_.push_back(std::move(parameter));
  return &parameters_.back();
}

void ParameterStore::allocate(at::ScalarType compute_dtype, at::Device device,
                              const BufferLayout& layout) {
  layout_ = layout;
  const bool is_divided = layout.num_parts > 1;
  const int64_t alignment = is_divided ? kPartAlignment : kAlignment;
  std::vector<int64_t> sizes = {0};  // of the buffers, in elements
  std::optional<size_t> borrowed;
  for (Parameter& parameter : parameters_) {
    const int64_t unit = parameter.unit;
    if (!layout.holds(unit)) continue;
    const bool is_new = !places_.contains(unit);
    if (is_new && layout.is_per_unit && !places_.empty()) sizes.push_back(0);
    if (is_new && !layout.is_per_unit && layout.borrowed == unit) {
      borrowed = sizes.size();
      sizes.push_back(0);
    }
    const size_t buffer = layout.is_per_unit        ? sizes.size() - 1
                          : layout.borrowed == unit ? *borrowed
                                                    : 0;
    int64_t& size = sizes[buffer];
    if (is_new) places_[unit] = {buffer, size, size};
    parameter.offset = size;
    size += rounded_up(parameter.numel, alignment);
    places_[unit].end = size;
  }
  const auto fp32 = at::TensorOptions().dtype(at::kFloat).device(device);
  for (int64_t size : sizes) {
    if (is_divided) size = rounded_up(size, kPartAlignment * layout.num_parts);
    FlatValues flat{at::empty({size}, fp32), at::empty({size}, fp32), {}};
    flat.compute =
        compute_dtype == at::kFloat ? flat.master : at::empty({size}, fp32.dtype(compute_dtype));
    for (const at::Tensor* buffer : {&flat.master, &flat.grad, &flat.compute})
      layout.is_per_unit ? release_memory(*buffer) : void(buffer->zero_());
    buffers_.push_back(std::move(flat));
  }
  for (Parameter& parameter : parameters_) {
    if (!layout.holds(parameter.unit)) continue;
    const FlatValues& flat = *buffers_of(parameter.unit);
    const auto view = [&](const at::Tensor& buffer) {
      return buffer.narrow(0, parameter.offset, parameter.numel).view(parameter.shape);
    };
    parameter.grad = view(flat.grad);
    parameter.compute = view(parameter.in_fp32 ? flat.master : flat.compute);
    parameter.master = view(flat.master).detach();
    parameter.master.requires_grad_();
    parameter.master.mutable_grad() = parameter.grad;
  }
}

void ParameterStore::reserve_unit(int64_t unit) {
  const FlatValues* flat = buffers_of(unit);
  if (flat == nullptr) return;
  for (const at::Tensor* buffer : {&flat->master, &flat->grad, &flat->compute}) {
    reserve_memory(*buffer);
    buffer->zero_();
  }
}

FlatValues& ParameterStore::one() {
  SFTRUN_CHECK(!layout_.is_per_unit);
  if (buffers_.empty()) buffers_.emplace_back();
  return buffers_.front();
}

Parameter* ParameterStore::find(const std::string& name) {
  for (Parameter& parameter : parameters_) {
    if (parameter.name == name) return &parameter;
  }
  return nullptr;
}

int64_t ParameterStore::numel() const {
  int64_t total = 0;
  for (const Parameter& parameter : parameters_) total += parameter.whole_numel();
  return total;
}

FlatValues* ParameterStore::buffers_of(int64_t unit) {
  const auto place = places_.find(unit);
  return place == places_.end() ? nullptr : &buffers_.at(place->second.buffer);
}

std::pair<int64_t, int64_t> ParameterStore::unit_range(int64_t unit) const {
  const auto place = places_.find(unit);
  if (place == places_.end()) return {0, 0};
  return {place->second.begin, place->second.end};
}

bool ParameterStore::owns(int64_t unit) const {
  return layout_.held.contains(unit) && layout_.borrowed != unit;
}

void ParameterStore::zero_grad() {
  for (FlatValues& flat : buffers_) flat.grad.zero_();
}

void ParameterStore::refresh_compute(int64_t unit) {
  const FlatValues* flat = buffers_of(unit);
  if (flat != nullptr && !flat->compute.is_same(flat->master)) flat->compute.copy_(flat->master);
}

void ParameterStore::refresh_compute() {
  for (FlatValues& flat : buffers_)
    if (!flat.compute.is_same(flat.master)) flat.compute.copy_(flat.master);
  compute_changed();
}

FlatValues part_of(const FlatValues& flat, int64_t begin, int64_t numel) {
  FlatValues part{flat.master.narrow(0, begin, numel), flat.grad.narrow(0, begin, numel), {}};
  part.compute =
      flat.compute.is_same(flat.master) ? part.master : flat.compute.narrow(0, begin, numel);
  return part;
}

at::Tensor OwnedValues::Piece::whole_in(const at::Tensor& flat) const {
  return flat.narrow(0, offset, numel).view(parameter->shape);
}

void OwnedValues::refresh_compute(const Piece& piece) const {
  if (!flat.compute.is_same(flat.master))
    piece.whole_in(flat.compute).copy_(piece.whole_in(flat.master));
}

OwnedValues::OwnedValues(ParameterStore& owner)
    : store(&owner), flat{owner.master(), owner.grad(), owner.compute()} {
  for (Parameter& parameter : owner.parameters()) {
    const int64_t numel = owner.owns(parameter.unit) ? parameter.numel : 0;
    pieces.push_back({&parameter, 0, numel, numel == 0 ? 0 : parameter.offset});
  }
}

}  // namespace sftrun::layers
