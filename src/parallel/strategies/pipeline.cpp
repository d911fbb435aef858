#include "pipeline.h"

#include <ATen/ATen.h>

#include <utility>

#include "own_group.h"
#include "sftrun/core/error.h"

namespace sftrun::parallel {
namespace {

Mesh mesh_of(const StrategyOptions& options, const Communicator& comm) {
  const auto stages = static_cast<int>(options.num_stages);
  SFTRUN_CHECK_EQ(comm.world_size() % stages, 0);
  return {{.pp = stages, .dp_replicate = comm.world_size() / stages}, comm.rank()};
}

/// The ranks of this rank's pipeline.
Group make_pipeline_group(Communicator& comm, const Mesh& mesh, const std::string& name) {
  return make_own_group(
      comm, name, mesh.dp_size(), mesh.dp_rank(),
      [&](int dp_rank) { return mesh.ranks_of_pipeline(dp_rank); }, /*is_own=*/true);
}

Group make_stage_group(Communicator& comm, const Mesh& mesh) {
  return make_own_group(comm, "stage", mesh.sizes().pp, mesh.pp_rank(),
                        [&](int stage) { return mesh.ranks_of_stage(stage); });
}

constexpr int kFirst = 0, kLast = 1;  // ranks of tied_ends_

}  // namespace

PipelineStrategy::PipelineStrategy(const StrategyOptions& options, Communicator& comm,
                                   const DistributedModel& model)
    : SingleStrategy(model, mesh_of(options, comm)),
      name_(config::strategy_name(options.strategy)),
      comm_(comm),
      model_(model),
      stages_(make_pipeline_group(comm, mesh(), "pipeline")),
      backward_(make_pipeline_group(comm, mesh(), "pipeline-backward")),
      replicas_(make_stage_group(comm, mesh())),
      reducer_(replicas_, owned().flat.grad, owned_unit_ranges(model), options.bucket_cap_bytes,
               options.gradients_sent_as) {
  connect_tied_ends();
}

/// The last unit reads tensors of the first unit if embedding and head are tied.
void PipelineStrategy::connect_tied_ends() {
  const std::vector<int64_t>& also = model_.units.back().also_reads;
  const bool is_first = mesh().pp_rank() == 0, is_last = num_stages_after() == 0;
  // Only the rank that loaded the head knows that it is tied, so all ranks are asked.
  const bool is_tied = !holds_everywhere(!(is_last && !also.empty()));
  if (!is_tied || mesh().sizes().pp == 1) return;
  tied_ends_ = make_own_group(
      comm_, "tied-ends", mesh().dp_size(), mesh().dp_rank(),
      [&](int dp_rank) {
        const std::vector<int> pipeline = mesh().ranks_of_pipeline(dp_rank);
        return std::vector<int>{pipeline.front(), pipeline.back()};
      },
      /*is_own=*/true);
  constexpr int64_t kEmbedding = 0;
  const bool trains = model_.parameters.buffers_of(kEmbedding) != nullptr;
  if (!trains || !(is_first || is_last)) return;
  tied_unit_ = kEmbedding;
  // The first message between two ranks makes NCCL connect them, for which the sender waits. Later
  // the last stage would be waiting for the first one's hidden states.
  const at::Tensor nothing = at::zeros({1}, owned().flat.master.options());
  is_first ? tied_ends_.send(nothing, kLast) : tied_ends_.receive(nothing, kFirst);
}

/// The buffers of the tied unit on the last stage; null on other stages.
layers::FlatValues* PipelineStrategy::borrowed() const {
  return tied_unit_ && mesh().pp_rank() != 0 ? model_.parameters.buffers_of(*tied_unit_) : nullptr;
}

/// The tied unit's part of the first stage's buffers.
at::Tensor PipelineStrategy::lent(const at::Tensor& flat) const {
  const auto [begin, end] = model_.parameters.unit_range(*tied_unit_);
  return flat.narrow(0, begin, end - begin);
}

StoredBytes PipelineStrategy::stored_bytes() const {
  StoredBytes bytes = SingleStrategy::stored_bytes();
  if (const layers::FlatValues* flat = borrowed()) {
    bytes.trainable += flat->master.nbytes();
    if (!flat->compute.is_same(flat->master)) bytes.trainable += flat->compute.nbytes();
    bytes.gradients += flat->grad.nbytes();
  }
  return bytes;
}

/// Brings the values of a tied unit from the first stage to the last one after each update.
void PipelineStrategy::before(int64_t unit, layers::UnitPass /*pass*/) {
  if (unit != tied_unit_ || tied_version_ == model_.parameters.version()) return;
  tied_version_ = model_.parameters.version();
  const layers::FlatValues* flat = borrowed();
  if (flat == nullptr) {
    lending_.wait();
    lending_ = tied_ends_.send_async(lent(owned().flat.master), kLast);
    return;
  }
  // Autograd must not count a change: `variable_data` has a version counter of its own.
  tied_ends_.receive(flat->master.variable_data(), kFirst);
  if (!flat->compute.is_same(flat->master)) flat->compute.variable_data().copy_(flat->master);
}

void PipelineStrategy::begin_step() {
  SingleStrategy::begin_step();
  if (const layers::FlatValues* flat = borrowed()) flat->grad.zero_();
}

void PipelineStrategy::finish_step() {
  reducer_.finish();
  if (const layers::FlatValues* flat = borrowed()) {
    replicas_.all_reduce(flat->grad);
    tied_ends_.send(flat->grad, kFirst);
  } else if (tied_unit_) {
    const at::Tensor own = lent(owned().flat.grad), of_head = at::empty_like(own);
    tied_ends_.receive(of_head, kLast);
    own.add_(of_head);
    lending_.wait();
  }
  hidden_sends_.wait_all();
  gradient_sends_.wait_all();
}

at::Tensor PipelineStrategy::squares(const at::Tensor& owned) {
  return squares_over(owned, stages_, owned.device());
}

bool PipelineStrategy::holds_everywhere(bool holds_here) {
  return holds_on_all(comm_, holds_here);
}

at::Tensor PipelineStrategy::whole(const at::Tensor& part, int64_t begin, int64_t numel) {
  return joined_parts(part.to(owned().flat.master.device()), begin, numel, stages_);
}

void PipelineStrategy::Sends::add(StartedCollective send, int64_t most) {
  started_.push_back(std::move(send));
  for (; static_cast<int64_t>(started_.size()) > most; started_.pop_front())
    started_.front().wait();
}

void PipelineStrategy::Sends::wait_all() {
  for (StartedCollective& send : started_) send.wait();
  started_.clear();
}

// A send is waited for when the schedule of one forward, one backward pass (1F1B) has brought back
// the gradient of what was sent, so the wait never blocks a stage that another one waits for.
void PipelineStrategy::send_hidden(const at::Tensor& hidden) {
  hidden_sends_.add(stages_.send_async(hidden, stages_.rank() + 1), num_stages_after() + 1);
}

void PipelineStrategy::receive_hidden(const at::Tensor& hidden) {
  stages_.receive(hidden, stages_.rank() - 1);
}

void PipelineStrategy::send_gradient(const at::Tensor& grad) {
  gradient_sends_.add(backward_.send_async(grad, backward_.rank() - 1), 2);
}

void PipelineStrategy::receive_gradient(const at::Tensor& grad) {
  backward_.receive(grad, backward_.rank() + 1);
}

}  // namespace sftrun::parallel
