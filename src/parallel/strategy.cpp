#include "sftrun/parallel/strategy.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "axes/sharded_values.h"
#include "axes/stage_ranks.h"
#include "axes/tensor_parts.h"
#include "axes/whole_values.h"
#include "sftrun/core/error.h"
#include "sftrun/kernels/ops.h"

namespace sftrun::parallel {
namespace {

const layers::OwnedValues::Piece& piece_of(const layers::OwnedValues& owned,
                                           const layers::Parameter& parameter) {
  for (const layers::OwnedValues::Piece& piece : owned.pieces)
    if (piece.parameter == &parameter) return piece;
  invariant_failed(__FILE__, __LINE__, "a parameter of the strategy's store");
}

std::unique_ptr<Values> make_values(const StrategyOptions& options, MeshGroups& groups,
                                    const DistributedModel& model,
                                    std::unique_ptr<UnitShards> shards) {
  if (shards != nullptr)
    return std::make_unique<ShardedValues>(options.passes_read_masters, groups, model,
                                           std::move(shards));
  SFTRUN_CHECK_EQ(groups.mesh().shards(), 1);
  return std::make_unique<WholeValues>(
      WholeValuesOptions{.bucket_cap_bytes = options.bucket_cap_bytes,
                         .gradients_sent_as = options.gradients_sent_as,
                         .overlaps_reduction = options.overlaps_reduction},
      groups, model);
}

/// Stages, shards, and `more`.
Axes axes_of_copy(const Mesh& mesh, const Axes& more) {
  Axes axes = mesh.shard_axes();
  axes.insert(axes.begin(), Axis::kPp);
  axes.insert(axes.end(), more.begin(), more.end());
  return axes;
}

/// The values along the axes of data parallelism, and what the other axes add.
class ComposedStrategy final : public Strategy {
 public:
  ComposedStrategy(const StrategyOptions& options, MeshGroups& groups,
                   const DistributedModel& model, std::unique_ptr<UnitShards> shards)
      : name_(options.name),
        mesh_(groups.mesh()),
        comm_(groups.comm()),
        is_sharded_(shards != nullptr),
        device_(model.device),
        values_(make_values(options, groups, model, std::move(shards))),
        copy_(groups.along(axes_of_copy(groups.mesh(), {Axis::kTp}))),
        copy_of_part_(groups.along(axes_of_copy(groups.mesh(), {}))),
        tensor_(groups, model.parameters) {
    if (mesh().sizes().pp > 1) stages_.emplace(groups, model, *values_);
    if (mesh().sizes().tp > 1 && is_sharded_) {
      values_->set_before_summing([this, &parameters = model.parameters](int64_t unit) {
        tensor_.sum_gradients_of_unit(parameters, unit);
      });
    }
  }

  std::string name() const override { return name_; }
  const Mesh& mesh() const override { return mesh_; }
  const layers::OwnedValues& owned() const override { return values_->owned(); }
  StoredBytes stored_bytes() const override { return values_->stored_bytes(); }
  layers::StageLinks* links() override { return stages_ ? &*stages_ : nullptr; }

  void before(int64_t unit, layers::UnitPass pass) override { values_->before(unit, pass); }
  void after(int64_t unit, layers::UnitPass pass) override { values_->after(unit, pass); }
  bool await_frozen(int64_t unit) override { return values_->await_frozen(unit); }
  void gradients_ready(int64_t unit) override { values_->gradients_ready(unit); }
  void keep_start(bool reads_masters) override {
    if (stages_) stages_->bring_tied_values();
    values_->keep_start(reads_masters);
  }
  bool keeps_start() const override { return values_->keeps_start(); }
  void read_start(bool reads) override { values_->read_start(reads); }
  void begin_step() override { values_->begin_step(); }
  void finish_step() override {
    values_->finish_step();
    if (mesh().sizes().tp > 1 && !is_sharded_)
      tensor_.sum_gradients(owned().pieces, owned().flat.grad);
    if (stages_) stages_->finish_step();
  }
  bool communicates_in_passes() const override {
    return stages_ || mesh().sizes().tp > 1 || mesh().sizes().cp > 1 ||
           values_->communicates_in_passes();
  }

  at::Tensor squares(const at::Tensor& owned) override {
    if (!divides_parameters()) return kernels::sum_of_squares(owned).to(device_);
    return squares_over(tensor_.counted(values_->owned(), owned), copy_, device_);
  }
  bool holds_everywhere(bool holds_here) override {
    return divides_parameters() ? holds_on_all(comm_, holds_here) : holds_here;
  }
  bool divides_parameters() const override { return copy_.size() > 1; }
  at::Tensor whole(const at::Tensor& part, int64_t begin, int64_t numel) override {
    if (copy_of_part_.size() == 1) return part;
    // Weights and optimizer state may be in host memory, and NCCL sends from the device.
    return joined_parts(part.to(device_), begin, numel, copy_of_part_);
  }
  at::Tensor joined(const layers::Parameter& parameter, const at::Tensor& part) override {
    return tensor_.joined(parameter, part);
  }

 private:
  std::string name_;
  Mesh mesh_;
  Communicator& comm_;
  bool is_sharded_;
  at::Device device_;  // of the passes
  std::unique_ptr<Values> values_;
  Group copy_;          // the ranks that have one copy of the model's values together
  Group copy_of_part_;  // of them, those with this rank's part of each matrix
  TensorParts tensor_;
  std::optional<StageRanks> stages_;
};

}  // namespace

StoredBytes& StoredBytes::operator+=(const StoredBytes& other) {
  trainable += other.trainable;
  gradients += other.gradients;
  unallocated += other.unallocated;
  return *this;
}

StoredBytes stored_bytes_of(const layers::FlatValues& flat) {
  const uint64_t copy = flat.compute.is_same(flat.master) ? 0 : flat.compute.nbytes();
  return {.frozen = std::nullopt,
          .trainable = flat.master.nbytes() + copy,
          .gradients = flat.grad.nbytes()};
}

at::Tensor Strategy::master_of(const layers::Parameter& parameter) {
  const layers::OwnedValues::Piece& piece = piece_of(owned(), parameter);
  const at::Tensor own = owned().flat.master.narrow(0, piece.offset, piece.numel);
  return joined(parameter, whole(own, piece.begin, parameter.numel).view(parameter.shape));
}

void Strategy::keep_start(bool /*reads_masters*/) {
  invariant_failed(__FILE__, __LINE__, "a strategy that keeps the start");
}

StoredBytes Strategy::stored_bytes() const {
  return stored_bytes_of(owned().flat);
}

void Strategy::assign(const layers::Parameter& parameter, const at::Tensor& values) {
  const at::NoGradGuard no_grad;
  const layers::OwnedValues::Piece& piece = piece_of(owned(), parameter);
  const layers::FlatValues& flat = owned().flat;
  const at::Tensor master = flat.master.narrow(0, piece.offset, piece.numel);
  master.copy_(parameter.part_of(values).flatten().narrow(0, piece.begin, piece.numel));
  if (!flat.compute.is_same(flat.master))
    flat.compute.narrow(0, piece.offset, piece.numel).copy_(master);
  owned().store->compute_changed();
}

at::Tensor squares_over(const at::Tensor& owned, Group& group, at::Device device) {
  const at::Tensor sum = kernels::sum_of_squares(owned).to(device);
  group.all_reduce(sum);
  return sum;
}

bool holds_on_all(Communicator& comm, bool holds_here) {
  const auto ranks = comm.all_gather({holds_here ? 1.0 : 0.0});
  return std::all_of(ranks.begin(), ranks.end(), [](const auto& rank) { return rank[0] != 0; });
}

at::Tensor joined_parts(const at::Tensor& part, int64_t begin, int64_t numel, Group& group) {
  const at::Tensor all = at::zeros({numel}, part.options());
  all.narrow(0, begin, part.numel()).copy_(part);
  // Summed as integers: adding zeros then keeps every bit, of negative zeros and NaN, too.
  group.all_reduce(part.scalar_type() == at::kFloat ? all.view(at::kInt) : all);
  return all;
}

StrategyOptions strategy_options(const config::RunConfig& config, bool trains_base,
                                 bool backend_reads_masters) {
  const bool sends_bf16 = config.train.ddp_comm_hook == config::CommHook::kBf16;
  return {.name = std::string(config::strategy_name(config.parallel.strategy)),
          .bucket_cap_bytes = config.train.ddp_bucket_cap_mb << 20,
          .gradients_sent_as = sends_bf16 ? at::kBFloat16 : at::kFloat,
          .overlaps_reduction = trains_base,
          .passes_read_masters = !trains_base || backend_reads_masters};
}

std::unique_ptr<Strategy> make_strategy(const StrategyOptions& options, MeshGroups& groups,
                                        const DistributedModel& model,
                                        std::unique_ptr<UnitShards> shards) {
  return std::make_unique<ComposedStrategy>(options, groups, model, std::move(shards));
}

}  // namespace sftrun::parallel
