#include "kept_values.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "sftrun/kernels/host_memory.h"

namespace sftrun::parallel {

using layers::FlatValues;

/// Joins the parts of all units that this rank updates, and finds which values of each parameter are
/// among them. The part of a borrowed unit has buffers of its own.
KeptValues::KeptValues(bool gathers_masters, const DistributedModel& model, UnitShards& shards)
    : gathers_masters_(gathers_masters),
      is_on_host_(shards.sharding().trained_on_host),
      model_(model),
      units_(model.units.size()) {
  owned_.store = &model_.parameters;
  const auto num_units = static_cast<int64_t>(units_.size());
  const auto size_of = [&](int64_t unit) {
    const at::Tensor& master = shards.parts(unit).master;
    return master.defined() ? master.numel() : 0;
  };
  std::vector<int64_t> offsets;  // of each unit in owned_.flat
  int64_t numel = 0;
  for (int64_t unit = 0; unit < num_units; ++unit) {
    offsets.push_back(numel);
    if (model_.parameters.owns(unit)) numel += size_of(unit);
  }
  owned_.flat = allocated(numel);
  for (int64_t unit = 0; unit < num_units; ++unit) {
    at::Tensor& master = shards.parts(unit).master;
    if (!master.defined()) continue;
    FlatValues& kept = units_[static_cast<size_t>(unit)].values;
    kept = model_.parameters.owns(unit)
               ? layers::part_of(owned_.flat, offsets[static_cast<size_t>(unit)], size_of(unit))
               : allocated(size_of(unit));
    kept.master.copy_(master);
    if (!kept.compute.is_same(kept.master)) kept.compute.copy_(kept.master);
  }
  for (layers::Parameter& parameter : model_.parameters.parameters()) {
    const FlatValues* whole = model_.parameters.buffers_of(parameter.unit);
    if (whole == nullptr) {  // of another stage
      owned_.pieces.push_back({&parameter, 0, 0, 0});
      continue;
    }
    units_[static_cast<size_t>(parameter.unit)].reads_masters |=
        gathers_masters_ || parameter.in_fp32 || whole->compute.is_same(whole->master);
    const int64_t size = model_.parameters.owns(parameter.unit) ? size_of(parameter.unit) : 0;
    const int64_t begin = shards.mesh().shard() * size, end = begin + size,
                  first = std::clamp(parameter.offset, begin, end),
                  last = std::clamp(parameter.offset + parameter.numel, begin, end);
    owned_.pieces.push_back({&parameter, first < last ? first - parameter.offset : 0, last - first,
                             offsets[static_cast<size_t>(parameter.unit)] + first - begin});
  }
  for (int64_t unit = 0; unit < num_units; ++unit) shards.parts(unit).master.reset();
}

/// Buffers for values that this rank keeps, with zeros.
FlatValues KeptValues::allocated(int64_t numel) const {
  const auto zeros = [&](at::ScalarType dtype) {
    return is_on_host_ ? kernels::host_zeros({numel}, dtype, model_.device)
                       : at::zeros({numel}, at::TensorOptions().dtype(dtype).device(model_.device));
  };
  FlatValues flat{zeros(at::kFloat), zeros(at::kFloat), {}};
  flat.compute = flat.master;
  if (gathers_masters_) return flat;
  for (int64_t unit = 0; unit < static_cast<int64_t>(model_.units.size()); ++unit) {
    const FlatValues* whole = model_.parameters.buffers_of(unit);
    if (whole == nullptr) continue;
    const at::ScalarType dtype = whole->compute.scalar_type();
    if (dtype != at::kFloat) flat.compute = zeros(dtype);
    return flat;
  }
  return flat;
}

at::Tensor KeptValues::copy_of(const at::Tensor& kept) const {
  if (!is_on_host_) return kept.clone();
  return kernels::host_zeros(kept.sizes(), kept.scalar_type(), model_.device).copy_(kept);
}

void KeptValues::keep_start() {
  for (OfUnit& unit : units_) {
    const FlatValues& values = unit.values;
    if (!values.master.defined()) continue;
    if (unit.reads_masters) unit.start_master = copy_of(values.master);
    if (!gathers_masters_ && !values.compute.is_same(values.master))
      unit.start_compute = copy_of(values.compute);
  }
  keeps_start_ = true;
}

}  // namespace sftrun::parallel
