#include "step_queue.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "sftrun/core/clock.h"
#include "sftrun/core/log.h"
#include "sftrun/kernels/ops.h"
#include "sftrun/kernels/profile_range.h"

namespace sftrun::train {

StepQueue::StepQueue(const TrainerInputs& inputs)
    : in_(inputs),
      schedule_(schedule_of(in_.config.train, in_.batches->total_steps())),
      optimizer_(make_optimizer(in_.strategy->owned(), in_.config.train)),
      loss_scale_(in_.decoder->options().dtype == at::kHalf),
      reads_later_(in_.device().is_cuda() && updates_on_device() && !loss_scale_.is_active() &&
                   optimizer_->reads_gate()),
      passes_(in_),
      numbers_{StepNumbers(in_.device()), StepNumbers(in_.device())},
      timers_{StepTimer(in_.device()), StepTimer(in_.device())},
      own_work_(in_.hooks.activity) {
  if (reads_later_) gate_ = kernels::open_gate(in_.device());
  if (in_.hooks.activity == nullptr) return;
  in_.hooks.activity->on_change([this](Work work, bool waits) {
    for (StepTimer& timer : timers_) timer.mark(work, waits);  // one at most is running
  });
}

StepQueue::~StepQueue() {
  if (in_.hooks.activity != nullptr) in_.hooks.activity->on_change(nullptr);
}

bool StepQueue::updates_on_device() const {
  return in_.strategy->owned().flat.master.device() == in_.device();
}

uint64_t StepQueue::optimizer_bytes() const {
  return updates_on_device() ? optimizer_->device_bytes() : 0;
}

bool StepQueue::learns_nothing() const {
  for (int64_t step = 0; step < in_.batches->total_steps(); ++step)
    if (schedule_.lr_at(step) > 0) return false;
  return true;
}

void StepQueue::try_longest(int64_t step) {
  passes_.try_longest(step, loss_scale_.value());
  own_work_.of_step();  // is not that of the first step
}

int StepQueue::queue(int64_t step, const std::function<HostNumbers()>& host_numbers,
                     const std::function<void()>& on_prepared) {
  QueuedStep queued{.step = step, .started_s = monotonic_seconds()};
  if (const int code = in_.batches->prepare(step)) return code;
  if (on_prepared) on_prepared();
  queued.prepared_seconds = monotonic_seconds() - queued.started_s;
  if (in_.hooks.activity != nullptr) in_.hooks.activity->set_step(step + 1);
  const kernels::WorkRange training(in_.hooks.activity, Work::kTraining);
  numbers_of(step).begin();
  timer_of(step).begin();
  {
    const kernels::WorkRange loading(in_.hooks.activity, Work::kDataLoader);
    queued.batch = in_.batches->at(step);
  }
  queued.epochs = in_.batches->epochs_after(step);
  queued.loss_scale = loss_scale_.value();
  queued.learning_rate = schedule_.lr_at(step - loss_scale_.state().skipped_steps);
  passes_.leave_out_lost(queued.batch);
  StepSums sums;
  do {
    in_.strategy->begin_step();
    sums = passes_.run(queued.batch, step, queued.loss_scale);
    // sum, not mean: gradients are already divided by the number of terms
    in_.strategy->finish_step();
  } while (passes_.loses_media(queued.batch, step));
  queued.metric_names = sums.metric_names;
  const at::Tensor grad_norm = in_.strategy->squares(in_.strategy->owned().flat.grad).sqrt_();
  HostNumbers host = host_numbers();
  host.num_terms = sums.num_terms;
  host.work = own_work_.of_step();
  numbers_of(step).gather(*in_.comm, grad_norm, sums, host);
  if (reads_later_) queue_update(queued, static_cast<int64_t>(sums.losses.size()));
  timer_of(step).end();
  numbers_of(step).send();
  queued_.push_back(std::move(queued));
  return 0;
}

/// The device updates the weights if the step's values are finite.
void StepQueue::queue_update(const QueuedStep& queued, int64_t num_losses) {
  kernels::decide_update_(gate_, numbers_of(queued.step).on_device(),
                          {.num_losses = num_losses,
                           .num_terms = passes_.num_terms(queued.batch),
                           .max_norm = in_.config.train.max_grad_norm});
  const kernels::WorkRange updating(in_.hooks.activity, Work::kOptimizer);
  optimizer_->step(queued.learning_rate, gate_);
}

QueuedStep StepQueue::take() {
  QueuedStep queued = std::move(queued_.front());
  queued_.erase(queued_.begin());
  return queued;
}

/// The only wait for the device in a step.
StepReport StepQueue::read(const QueuedStep& queued) {
  const std::vector<RankNumbers> ranks = wait_for_numbers(queued.step);
  name_stragglers(ranks);
  StepDivisors divisors{.num_terms = passes_.num_terms(queued.batch)};
  if (passes_.aux_coef() > 0) divisors.num_micro_batches = passes_.num_micro_batches(queued.batch);
  StepReport report = report_of(ranks, in_.strategy->mesh(), queued, divisors);
  report.skipped = overflows(report);
  if (loss_scale_.is_active()) report.loss_scale = loss_scale_.value();
  return report;
}

std::vector<RankNumbers> StepQueue::wait_for_numbers(int64_t step) {
  if (in_.device().is_cpu()) return numbers_of(step).wait();
  // The GPU's queue holds collectives: if another rank does not come, the host waits here.
  const WaitScope wait(in_.hooks.activity, "device");
  const kernels::ProfileRange range("wait: device");
  std::vector<RankNumbers> numbers = numbers_of(step).wait();
  in_.comm->throw_if_failed();
  return numbers;
}

void StepQueue::name_stragglers(const std::vector<RankNumbers>& ranks) {
  const parallel::MeshSizes& sizes = in_.strategy->mesh().sizes();
  if (sizes.pp > 1 || sizes.tp > 1)
    return;  // stages have different work; parts wait for each other
  std::vector<WorkSeconds> work;
  for (const RankNumbers& rank : ranks) work.push_back(rank.host.work);
  for (const std::string& straggler : stragglers_.add(work))
    if (in_.is_main()) log::warn("{}", straggler);
}

/// fp16: gradients may exceed fp16's range. The step is skipped and the loss scale halved.
bool StepQueue::overflows(const StepReport& report) {
  if (!loss_scale_.is_active() || !std::isfinite(report.loss)) return false;
  const bool accepted = loss_scale_.accept(std::isfinite(report.grad_norm));
  return !accepted && !loss_scale_.is_exhausted();
}

void StepQueue::finish(const QueuedStep& queued, StepReport& report) {
  double update_s = 0;  // that the timer has not seen
  if (!report.skipped && !reads_later_) {
    const kernels::WorkRange updating(in_.hooks.activity, Work::kOptimizer);
    const double factor = clip_factor(report.grad_norm, in_.config.train.max_grad_norm);
    const double began = monotonic_seconds();
    optimizer_->step(queued.learning_rate, factor * (1 / queued.loss_scale));
    update_s = monotonic_seconds() - began;
  }
  report.seconds = reads_later_ ? numbers_of(queued.step).seconds() + queued.prepared_seconds
                                : monotonic_seconds() - queued.started_s;
  if (in_.hooks.activity == nullptr) return;
  observe::StepParts& parts = report.parts.emplace(timer_of(queued.step).read());
  parts.optimizer += update_s;
  const double named =
      parts.data + parts.forward + parts.backward + parts.communication + parts.optimizer;
  parts.other = std::max(0.0, report.seconds - named);
}

}  // namespace sftrun::train
