#include "whole_values.h"

#include <ATen/ATen.h>

namespace sftrun::parallel {
namespace {

/// Elements [begin, end) of each unit in the flat buffers of what this rank updates.
std::vector<std::pair<int64_t, int64_t>> owned_unit_ranges(const DistributedModel& model) {
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (int64_t unit = 0; unit < static_cast<int64_t>(model.units.size()); ++unit) {
    ranges.push_back(model.parameters.owns(unit) ? model.parameters.unit_range(unit)
                                                 : std::pair<int64_t, int64_t>(0, 0));
  }
  return ranges;
}

std::optional<int64_t> borrowed_unit_of(const DistributedModel& model) {
  for (int64_t unit = 0; unit < static_cast<int64_t>(model.units.size()); ++unit)
    if (model.parameters.buffers_of(unit) != nullptr && !model.parameters.owns(unit)) return unit;
  return std::nullopt;
}

}  // namespace

WholeValues::WholeValues(const WholeValuesOptions& options, MeshGroups& groups,
                         const DistributedModel& model)
    : model_(model),
      owned_(model.parameters),
      replicas_(groups.along(groups.mesh().axes_of_same_values())),
      overlaps_reduction_(options.overlaps_reduction && replicas_.size() > 1),
      reducer_(replicas_, owned_.flat.grad, owned_unit_ranges(model), options.bucket_cap_bytes,
               options.gradients_sent_as),
      borrowed_unit_(borrowed_unit_of(model)) {}

layers::FlatValues* WholeValues::borrowed() const {
  return borrowed_unit_ ? model_.parameters.buffers_of(*borrowed_unit_) : nullptr;
}

void WholeValues::before(int64_t unit, layers::UnitPass /*pass*/) {
  if (model_.parameters.buffers_of(unit) != nullptr) tell_reading(unit);
}

void WholeValues::keep_start(bool reads_masters) {
  start_.emplace();
  start_->keep(owned_.flat, reads_masters);
  if (const layers::FlatValues* flat = borrowed()) start_->keep(*flat, reads_masters);
  if (reads_masters || owned_.flat.compute.is_same(owned_.flat.master)) return;
  for (const layers::Parameter& parameter : model_.parameters.parameters())
    if (parameter.in_fp32 && parameter.master.defined()) start_->keep_master(parameter);
}

void WholeValues::read_start(bool reads) {
  start_->exchange();
  model_.parameters.set_reads_start(reads);
}

void WholeValues::begin_step() {
  owned_.flat.grad.zero_();
  if (const layers::FlatValues* flat = borrowed()) flat->grad.zero_();
}

void WholeValues::gradients_ready(int64_t unit) {
  if (replicas_.size() > 1) reducer_.unit_ready(unit);
}

void WholeValues::finish_step() {
  if (replicas_.size() == 1) return;
  reducer_.finish();
  if (const layers::FlatValues* flat = borrowed()) replicas_.all_reduce(flat->grad);
}

StoredBytes WholeValues::stored_bytes() const {
  StoredBytes bytes = stored_bytes_of(owned_.flat);
  if (const layers::FlatValues* flat = borrowed()) bytes += stored_bytes_of(*flat);
  if (start_) bytes.trainable += start_->bytes();
  return bytes;
}

layers::FlatValues WholeValues::kept_of(int64_t unit) {
  const auto [begin, end] = model_.parameters.unit_range(unit);
  return layers::part_of(*model_.parameters.buffers_of(unit), begin, end - begin);
}

}  // namespace sftrun::parallel
