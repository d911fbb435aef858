#include "model_division.h"

#include <string>
#include <utility>
#include <vector>

#include "sftrun/core/interruption.h"
#include "sftrun/plan/stages.h"
#include "sftrun/plan/tensor_division.h"
#include "sftrun/weights/weights_summary.h"

namespace sftrun::engine {
namespace {

/// The units of this rank's stage of a pipeline.
layers::UnitRange stage_units(const spec::ArchSpec& arch, const config::RunConfig& config,
                              const parallel::Mesh& mesh) {
  if (mesh.sizes().pp == 1) return {};
  const std::vector<int64_t> firsts = plan::stages_of(arch, config);
  const auto stage = static_cast<size_t>(mesh.rank(parallel::Axis::kPp));
  return {firsts[stage], firsts[stage + 1]};
}

}  // namespace

ModelDivision::ModelDivision(parallel::Communicator& comm, const config::RunConfig& config,
                             at::Device device)
    : groups_(comm, parallel::mesh_of(config.parallel.axes, comm.rank())),
      shards_(parallel::shards_of(config.parallel, device, groups_.mesh())) {}

void ModelDivision::divide_matrices(const weights::Checkpoint& checkpoint,
                                    const config::RunConfig& config) {
  if (mesh().sizes().tp == 1) return;
  tensor_ =
      plan::tensor_part(checkpoint.arch(), config, weights::packed_blocks(checkpoint),
                        {.rank = mesh().rank(parallel::Axis::kTp), .size = mesh().sizes().tp});
}

void ModelDivision::apply_to(model::DecoderOptions& options, const spec::ArchSpec& arch,
                             const config::RunConfig& config) {
  if (shards_) {
    options.buffers = layers::BufferLayout::per_unit(mesh().shards());
    options.on_unit_loaded = [this](int64_t index, layers::Unit& unit,
                                    layers::FlatValues* trained) {
      shards_->take(index, unit, trained);
    };
    options.leaves_frozen_unread = shards_->takes_frozen();
  }
  options.held = stage_units(arch, config, mesh());
  if (mesh().sizes().cp > 1) {
    sequence_group_ = std::make_unique<parallel::SequenceGroup>(groups_);
    options.sequence_ranks = sequence_group_.get();
  }
  if (mesh().sizes().tp == 1) return;
  tensor_group_ = std::make_unique<parallel::TensorGroup>(groups_);
  options.tensor = tensor_;
  options.tensor_ranks = tensor_group_.get();
}

std::unique_ptr<parallel::Strategy> ModelDivision::make_strategy(const config::RunConfig& config,
                                                                 model::Decoder& decoder) {
  const model::Trains trains = decoder.options().trains;
  const bool trains_base = trains == model::Trains::kFull || trains == model::Trains::kPartial;
  return parallel::make_strategy(
      parallel::strategy_options(config, trains_base, decoder.backend().reads_masters), groups_,
      {decoder.parameters(), decoder.units(), decoder.options().device}, std::move(shards_));
}

int load_together(Rank& rank, const ModelDivision& division, at::Device device,
                  const std::function<void(const std::function<void()>& stop_point)>& load) {
  if (division.tensor_group() == nullptr)
    return rank.interruptible([&] { load(interruption_point); });
  // With tensor parallelism DoRA sums over its ranks meanwhile, so that none may leave alone. Other
  // stages have other numbers of stop points.
  const auto gather = [&](const std::vector<double>& values) {
    const parallel::CollectiveCounts counts = rank.comm().counts();
    auto gathered = division.tensor_group()->gather(values, device);
    rank.comm().set_counts(counts);  // which are those of training
    return gathered;
  };
  return rank.together(gather, load);
}

}  // namespace sftrun::engine
