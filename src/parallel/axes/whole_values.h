#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "sftrun/parallel/grad_reducer.h"
#include "sftrun/parallel/mesh_groups.h"
#include "start_values.h"
#include "values.h"

namespace sftrun::parallel {

struct WholeValuesOptions {
  int64_t bucket_cap_bytes = 0;  ///< gradients of one reduction
  at::ScalarType gradients_sent_as = at::kFloat;
  bool overlaps_reduction = false;  ///< with the backward pass, also where it could be captured
};

/// Data parallelism with all values of a stage, or of a tensor-parallel part, on every rank.
/// Gradients are summed in buckets of adjacent units during the backward pass.
class WholeValues final : public Values {
 public:
  WholeValues(const WholeValuesOptions& options, MeshGroups& groups, const DistributedModel& model);
  const layers::OwnedValues& owned() const override { return owned_; }
  void before(int64_t unit, layers::UnitPass pass) override;
  void keep_start(bool reads_masters) override;
  bool keeps_start() const override { return start_.has_value(); }
  void read_start(bool reads) override;
  void gradients_ready(int64_t unit) override;
  void begin_step() override;
  void finish_step() override;
  StoredBytes stored_bytes() const override;
  bool communicates_in_passes() const override { return overlaps_reduction_; }
  layers::FlatValues kept_of(int64_t unit) override;

 private:
  layers::FlatValues* borrowed() const;
  DistributedModel model_;
  layers::OwnedValues owned_;
  Group replicas_;
  bool overlaps_reduction_;
  GradReducer reducer_;
  std::optional<int64_t> borrowed_unit_;  // read here, updated by another stage
  std::optional<StartValues> start_;
};

}  // namespace sftrun::parallel
