#include "sftrun/train/step_profiler.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <cstdlib>
#include <set>

#include "profile_summary.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/log.h"

namespace sftrun::train {
namespace {

namespace fs = std::filesystem;
namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;

std::set<ActivityType> activities_on(at::Device device) {
  std::set<ActivityType> activities = {ActivityType::CPU};
  if (device.is_cuda()) activities.insert(ActivityType::CUDA);
  return activities;
}

torch::profiler::impl::ProfilerConfig kineto_config() {
  torch::profiler::impl::ExperimentalConfig threads;
  threads.profile_all_threads = true;  // those of a device map's stages
  return torch::profiler::impl::ProfilerConfig(torch::profiler::impl::ProfilerState::KINETO,
                                               /*report_input_shapes=*/false,
                                               /*profile_memory=*/false,
                                               /*with_stack=*/false,
                                               /*with_flops=*/false,
                                               /*with_modules=*/false, threads);
}

bool is_on_device(const profiler::KinetoEvent& event) {
  return event.deviceType() != c10::DeviceType::CPU;
}

std::vector<ProfileEvent> events_of(const profiler::ProfilerResult& result) {
  std::set<std::string> ranges;
  for (const profiler::KinetoEvent& event : result.events()) {
    if (event.scope() == static_cast<uint8_t>(at::RecordScope::USER_SCOPE) && !is_on_device(event))
      ranges.insert(event.name());
  }
  std::vector<ProfileEvent> events;
  for (const profiler::KinetoEvent& event : result.events()) {
    if (event.isAsync()) continue;  // of collectives: their waits are ranges
    if (is_on_device(event) && ranges.contains(event.name())) continue;  // a range's kernels
    events.push_back({event.name(), event.startThreadId(), static_cast<int64_t>(event.startNs()),
                      static_cast<int64_t>(event.endNs()), is_on_device(event)});
  }
  return events;
}

}  // namespace

StepProfiler::StepProfiler(StepRange steps, fs::path folder, int rank, at::Device device)
    : steps_(steps), folder_(std::move(folder)), rank_(rank), device_(device) {}

StepProfiler::~StepProfiler() {
  step_.reset();
  if (is_running_) profiler::disableProfiler();
}

void StepProfiler::start() {
  // LibTorch logs what it does by default.
  ::setenv("KINETO_LOG_LEVEL", "5", /*overwrite=*/0);
  const auto activities = activities_on(device_);
  profiler::prepareProfiler(kineto_config(), activities);
  profiler::enableProfiler(kineto_config(), activities);
  is_running_ = true;
}

void StepProfiler::begin(int64_t step) {
  if (!is_running_ && step >= steps_.first && step <= steps_.last) {
    start();
    began_with_ = step;
  }
  step_.emplace(kStepRange, step);  // tools that read NVTX get every step
}

void StepProfiler::end(int64_t step) {
  step_.reset();
  if (!is_running_) return;
  ended_with_ = step;
  if (step >= steps_.last) write(step);
}

void StepProfiler::finish() {
  if (is_running_) write(ended_with_);
}

void StepProfiler::write(int64_t last) {
  if (device_.is_cuda())
    c10::impl::VirtualGuardImpl(device_.type()).synchronizeDevice(device_.index());
  const std::unique_ptr<profiler::ProfilerResult> result = profiler::disableProfiler();
  is_running_ = false;
  make_directories(folder_);
  const fs::path trace = folder_ / fmt::format("rank-{}.json", rank_),
                 unfinished = folder_ / fmt::format(".unfinished-rank-{}.json", rank_);
  result->save(unfinished.string());
  std::error_code code;
  fs::rename(unfinished, trace, code);
  if (code) throw DeviceError("cannot write the profile: " + code.message(), trace.string());
  write_file_atomically(folder_ / fmt::format("rank-{}.txt", rank_),
                        profile_summary(events_of(*result), rank_));
  if (rank_ != 0) return;
  log::info("profile of {}: {} (open it in https://ui.perfetto.dev); time per operation: {}",
            began_with_ == last ? fmt::format("step {}", last)
                                : fmt::format("steps {} to {}", began_with_, last),
            trace.string(), (folder_ / "rank-0.txt").string());
}

}  // namespace sftrun::train
