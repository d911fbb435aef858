#include "sftrun/train/step_numbers.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "sftrun/core/error.h"

namespace sftrun::train {
namespace {

constexpr int64_t kFirstWork = 8;
constexpr int64_t kHostValues = kFirstWork + static_cast<int64_t>(kStepWorks.size());

c10::Stream current_stream(at::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

}  // namespace

StepNumbers::StepNumbers(at::Device device)
    : device_(device),
      host_values_(at::empty(
          {kHostValues}, at::TensorOptions().dtype(at::kDouble).pinned_memory(device.is_cuda()))) {
  if (device.is_cpu()) return;
  for (auto* event : {&began_, &ended_})
    event->emplace(device.type(), c10::EventFlag::BACKEND_DEFAULT);  // with timing enabled
}

void StepNumbers::begin() {
  if (began_) began_->record(current_stream(device_));
}

void StepNumbers::gather(parallel::Communicator& comm, const at::Tensor& grad_norm,
                         const StepSums& sums, const HostNumbers& host) {
  num_losses_ = static_cast<int64_t>(sums.losses.size());
  num_aux_losses_ = static_cast<int64_t>(sums.aux_losses.size());
  num_metrics_ = static_cast<int64_t>(sums.metrics.size());
  std::vector<at::Tensor> scalars = {grad_norm};
  for (const auto* part : {&sums.losses, &sums.aux_losses, &sums.metrics})
    scalars.insert(scalars.end(), part->begin(), part->end());
  // The device reads it when the queued copy runs, so it stays unchanged until `wait`.
  auto* value = host_values_.mutable_data_ptr<double>();
  value[0] = host.num_terms, value[1] = host.peak_memory_bytes;
  value[2] = host.stop_exit_code, value[3] = host.save_due;
  value[4] = host.gpu_utilization, value[5] = host.has_written_part;
  value[6] = host.memory_used_bytes, value[7] = host.cpu_utilization;
  std::copy(host.work.begin(), host.work.end(), value + kFirstWork);
  const auto num_scalars = static_cast<int64_t>(scalars.size());
  const at::Tensor row = at::empty({num_scalars + kHostValues}, grad_norm.options());
  at::Tensor head = row.narrow(0, 0, num_scalars);
  at::stack_out(head, scalars);
  row.narrow(0, num_scalars, kHostValues).copy_(host_values_, /*non_blocking=*/true);
  gathered_ = comm.all_gather_tensor(row);
}

void StepNumbers::send() {
  if (device_.is_cpu()) {
    arrived_ = gathered_;
    return;
  }
  if (!arrived_.defined())
    arrived_ = at::empty(gathered_.sizes(), host_values_.options().pinned_memory(true));
  arrived_.copy_(gathered_, /*non_blocking=*/true);
  ended_->record(current_stream(device_));
}

std::vector<RankNumbers> StepNumbers::wait() {
  if (ended_) ended_->synchronize();
  SFTRUN_CHECK_EQ(arrived_.size(1), 1 + num_losses_ + num_aux_losses_ + num_metrics_ + kHostValues);
  std::vector<RankNumbers> ranks;
  const auto* value = arrived_.const_data_ptr<double>();
  for (int64_t rank = 0; rank < arrived_.size(0); ++rank) {
    RankNumbers numbers{.grad_norm = *value++};
    numbers.losses.assign(value, value + num_losses_);
    value += num_losses_;
    numbers.aux_losses.assign(value, value + num_aux_losses_);
    value += num_aux_losses_;
    numbers.metrics.assign(value, value + num_metrics_);
    value += num_metrics_;
    numbers.host = {value[0], value[1], value[2], value[3], value[4], value[5], value[6], value[7]};
    std::copy_n(value + kFirstWork, kStepWorks.size(), numbers.host.work.begin());
    value += kHostValues;
    ranks.push_back(std::move(numbers));
  }
  return ranks;
}

double StepNumbers::seconds() const {
  return began_->elapsedTime(*ended_) / 1e3;
}

}  // namespace sftrun::train
