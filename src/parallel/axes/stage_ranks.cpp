#include "stage_ranks.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "sftrun/core/error.h"

namespace sftrun::parallel {
namespace {

constexpr int kFirst = 0, kLast = 1;  // ranks of tied_ends_

}  // namespace

StageRanks::StageRanks(MeshGroups& groups, const DistributedModel& model, Values& values)
    : model_(model),
      values_(values),
      stages_(groups.mesh().size(Axis::kPp) == groups.mesh().world_size()
                  ? groups.own_along({Axis::kPp}, "pipeline")  // not ordered with other collectives
                  : groups.along({Axis::kPp})),
      backward_(groups.own_along({Axis::kPp}, "pipeline-backward")) {
  connect_neighbours(groups.comm());
  connect_tied_ends(groups);
}

/// NCCL connects two ranks at their first message, for which the sender waits. In the passes that
/// would be while others compute, or wait for these two. So neighbours connect here, in pairs that
/// do not wait for each other: first each stage of even number with the next one, then with the one
/// before.
void StageRanks::connect_neighbours(Communicator& comm) {
  if (comm.backend() != "nccl") return;
  const CollectiveCounts counts = comm.counts();  // which are those of training
  const at::Tensor nothing =
      at::zeros({1}, at::TensorOptions().dtype(at::kFloat).device(model_.device));
  for (const int parity : {0, 1}) {
    const bool is_before = stages_.rank() % 2 == parity;
    const int other = stages_.rank() + (is_before ? 1 : -1);
    if (other < 0 || other >= stages_.size()) continue;
    is_before ? stages_.send(nothing, other) : stages_.receive(nothing, other);
    is_before ? backward_.receive(nothing, other) : backward_.send(nothing, other);
  }
  comm.set_counts(counts);
}

namespace {

/// The unit whose tensors the last unit reads, too: the embedding's, if the head is tied to it; nullopt: none. Only the ranks that loaded
/// the head know it, so all ranks are asked.
std::optional<int64_t> unit_of_tied_head(Communicator& comm, const std::vector<layers::Unit>& units,
                                         bool is_last) {
  constexpr double kNone = -1;
  const std::vector<int64_t>& read = units.back().also_reads;
  const double own = is_last && !read.empty() ? static_cast<double>(read.front()) : kNone;
  double unit = kNone;
  for (const std::vector<double>& of_rank : comm.all_gather({own}))
    unit = std::max(unit, of_rank.front());
  return unit == kNone ? std::nullopt : std::optional(static_cast<int64_t>(unit));
}

}  // namespace

/// The last unit reads tensors of the embedding's unit if the head is tied to it.
void StageRanks::connect_tied_ends(MeshGroups& groups) {
  const bool is_last = num_stages_after() == 0;
  const auto embedding = unit_of_tied_head(groups.comm(), model_.units, is_last);
  if (!embedding) return;
  tied_ends_ = groups.ends_of(Axis::kPp, "tied-ends");
  const bool trains = model_.parameters.buffers_of(*embedding) != nullptr;
  if (!trains || !(is_first() || is_last)) return;
  tied_unit_ = *embedding;
  // The first message between two ranks makes NCCL connect them, for which the sender waits. Later
  // the last stage would be waiting for the first one's hidden states.
  const at::Tensor nothing = at::zeros({1}, values_.kept_of(*embedding).master.options());
  is_first() ? tied_ends_.send(nothing, kLast) : tied_ends_.receive(nothing, kFirst);
  values_.set_before_reading([this](int64_t unit) { bring_tied_values(unit); });
}

/// Brings the values of a tied unit from the first stage to the last one after each update.
void StageRanks::bring_tied_values(int64_t unit) {
  // Both stages keep their values of the start.
  if (unit != tied_unit_ || model_.parameters.reads_start()) return;
  if (tied_version_ == model_.parameters.version()) return;
  tied_version_ = model_.parameters.version();
  const layers::FlatValues kept = values_.kept_of(unit);
  if (is_first()) {
    lending_.wait();
    lending_ = tied_ends_.send_async(kept.master, kLast);
    return;
  }
  // Autograd must not count a change: `variable_data` has a version counter of its own.
  tied_ends_.receive(kept.master.variable_data(), kFirst);
  if (!kept.compute.is_same(kept.master)) kept.compute.variable_data().copy_(kept.master);
}

void StageRanks::finish_step() {
  if (tied_unit_) {
    const at::Tensor grad = values_.kept_of(*tied_unit_).grad;
    if (is_first()) {
      const at::Tensor of_head = at::empty_like(grad);
      tied_ends_.receive(of_head, kLast);
      grad.add_(of_head);
      lending_.wait();
    } else {
      tied_ends_.send(grad, kFirst);
    }
  }
  hidden_sends_.wait_all();
  gradient_sends_.wait_all();
}

void StageRanks::Sends::add(StartedCollective send, int64_t max) {
  started_.push_back(std::move(send));
  for (; static_cast<int64_t>(started_.size()) > max; started_.pop_front()) started_.front().wait();
}

void StageRanks::Sends::wait_all() {
  for (StartedCollective& send : started_) send.wait();
  started_.clear();
}

// A send is waited for when the schedule of one forward, one backward pass (1F1B) has brought back
// the gradient of what was sent, so the wait never blocks a stage that another one waits for.
void StageRanks::send_hidden(const at::Tensor& hidden) {
  hidden_sends_.add(stages_.send_async(hidden, stages_.rank() + 1), num_stages_after() + 1);
}

void StageRanks::receive_hidden(const at::Tensor& hidden) {
  stages_.receive(hidden, stages_.rank() - 1);
}

void StageRanks::send_gradient(const at::Tensor& grad) {
  gradient_sends_.add(backward_.send_async(grad, backward_.rank() - 1), 2);
}

void StageRanks::receive_gradient(const at::Tensor& grad) {
  backward_.receive(grad, backward_.rank() + 1);
}

}  // namespace sftrun::parallel
