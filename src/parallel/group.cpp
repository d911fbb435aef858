#include "sftrun/parallel/group.h"

#include <ATen/ATen.h>

#include <utility>

#include "group_state.h"

namespace sftrun::parallel {
namespace {

void count(CollectiveCount& total, const at::Tensor& sent) {
  ++total.calls;
  total.bytes += sent.nbytes();
}

/// @param state keeps the backend alive
template <class State>
StartedCollective started(std::shared_ptr<State> state, const char* what, StartedWork work) {
  return StartedCollective(
      [state = std::move(state), what, work = std::move(work)] { state->wait(what, work); });
}

}  // namespace

Group::Group() : state_(std::make_shared<State>()) {}
Group::Group(std::shared_ptr<State> state) : state_(std::move(state)) {}
Group::~Group() = default;
Group::Group(const Group&) = default;
Group& Group::operator=(const Group&) = default;
Group::Group(Group&&) noexcept = default;
Group& Group::operator=(Group&&) noexcept = default;

int Group::rank() const {
  return state_->rank;
}
int Group::size() const {
  return static_cast<int>(state_->ranks.size());
}
const std::vector<int>& Group::ranks() const {
  return state_->ranks;
}

void Group::all_reduce_async(const at::Tensor& tensor) {
  if (!state_->backend) return;
  std::vector<at::Tensor> tensors = {tensor};
  state_->pending.push_back(
      state_->start("all_reduce", [&] { return state_->backend->allreduce(tensors); }));
  count(state_->counts->all_reduce, tensor);
}

void Group::wait_all() {
  for (const StartedWork& work : state_->pending) state_->wait("all_reduce", work);
  state_->pending.clear();
}

void Group::all_reduce(const at::Tensor& tensor) {
  if (!state_->backend) return;
  std::vector<at::Tensor> tensors = {tensor};
  state_->wait("all_reduce",
               state_->start("all_reduce", [&] { return state_->backend->allreduce(tensors); }));
  count(state_->counts->all_reduce, tensor);
}

StartedCollective Group::all_gather_into_async(const at::Tensor& out, const at::Tensor& part) {
  SFTRUN_CHECK_EQ(out.numel(), part.numel() * size());
  if (!state_->backend) {
    if (out.data_ptr() != part.data_ptr()) out.copy_(part);
    return {};
  }
  at::Tensor to = out.view({-1}), from = part.view({-1});  // Gloo compares shapes
  StartedWork work =
      state_->start("all_gather", [&] { return state_->backend->_allgather_base(to, from); });
  count(state_->counts->all_gather, part);
  return started(state_, "all_gather", std::move(work));
}

void Group::all_gather_into(const at::Tensor& out, const at::Tensor& part) {
  all_gather_into_async(out, part).wait();
}

StartedCollective Group::reduce_scatter_into_async(const at::Tensor& out, const at::Tensor& in) {
  SFTRUN_CHECK_EQ(in.numel(), out.numel() * size());
  if (!state_->backend) {
    if (out.data_ptr() != in.data_ptr()) out.copy_(in);
    return {};
  }
  at::Tensor to = out.view({-1}), from = in.view({-1});
  StartedWork work = state_->start("reduce_scatter",
                                   [&] { return state_->backend->_reduce_scatter_base(to, from); });
  count(state_->counts->reduce_scatter, in);
  return started(state_, "reduce_scatter", std::move(work));
}

void Group::reduce_scatter_into(const at::Tensor& out, const at::Tensor& in) {
  reduce_scatter_into_async(out, in).wait();
}

void Group::all_to_all(const at::Tensor& out, const at::Tensor& in,
                       const std::vector<int64_t>& out_rows, const std::vector<int64_t>& in_rows) {
  SFTRUN_CHECK(std::ssize(out_rows) == size() && std::ssize(in_rows) == size());
  if (!state_->backend) {
    out.copy_(in);
    return;
  }
  // As bytes: Gloo does not know all types.
  const auto as_bytes = [](const at::Tensor& rows) {
    return rows.view({rows.size(0), -1}).view(at::kByte);
  };
  at::Tensor to = as_bytes(out), from = as_bytes(in);
  std::vector<int64_t> out_splits = out_rows, in_splits = in_rows;
  state_->wait("all_to_all", state_->start("all_to_all", [&] {
    return state_->backend->alltoall_base(to, from, out_splits, in_splits);
  }));
  count(state_->counts->all_to_all, in);
}

void Group::broadcast(const at::Tensor& tensor, int root) {
  if (!state_->backend) return;
  std::vector<at::Tensor> tensors = {tensor};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  state_->wait("broadcast", state_->start("broadcast", [&] {
    return state_->backend->broadcast(tensors, options);
  }));
  if (rank() == root) count(state_->counts->broadcast, tensor);
}

void Group::send(const at::Tensor& tensor, int to, int tag) {
  send_async(tensor, to, tag).wait();
}

StartedCollective Group::send_async(const at::Tensor& tensor, int to, int tag) {
  SFTRUN_CHECK(state_->backend && to != rank());
  std::vector<at::Tensor> tensors = {tensor};
  StartedWork work = state_->start("send", [&] { return state_->backend->send(tensors, to, tag); });
  count(state_->counts->send, tensor);
  return StartedCollective(
      [state = state_, work = std::move(work), tensor] { state->wait("send", work); });
}

void Group::receive(const at::Tensor& tensor, int from, int tag) {
  SFTRUN_CHECK(state_->backend && from != rank());
  std::vector<at::Tensor> tensors = {tensor};
  state_->wait("receive",
               state_->start("receive", [&] { return state_->backend->recv(tensors, from, tag); }));
  ++state_->counts->recv.calls;
  state_->counts->recv.bytes += tensor.nbytes();
}

}  // namespace sftrun::parallel
