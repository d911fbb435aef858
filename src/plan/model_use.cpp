#include "sftrun/plan/model_use.h"

#include <fmt/format.h>

#include <algorithm>

#include "sftrun/plan/memory_plan.h"
#include "sftrun/plan/refusals.h"
#include "sftrun/plan/stages.h"
#include "sftrun/plan/step_memory.h"

namespace sftrun::plan {
namespace {

using enum config::Strategy;

/// Stages are chosen as for a pipeline, whether they are processes or not.
int64_t ranks_of(const UseDivision& division) {
  return division.strategy == kDeviceMap ? division.pp : division.processes;
}

/// A run that is divided so, and trains nothing that counts.
config::RunConfig run_of(const ModelUse& use, const UseDivision& division, int64_t of_machine) {
  config::RunConfig run;
  run.tuning = use.tuning;
  run.train.batch_size.value = run.train.grad_accum.value = 1;
  run.train.router_aux_loss_coef = 0;  // it is of the loss
  config::ParallelConfig& parallel = run.parallel;
  parallel.strategy = division.strategy == kDeviceMap                          ? kPipeline
                      : division.strategy == kSingle && division.processes > 1 ? kDdp
                                                                               : division.strategy;
  if (division.pp > 1) parallel.pp = division.pp;
  if (division.tp > 1) parallel.tp = division.tp;
  config::resolve_axes(parallel, static_cast<int>(ranks_of(division)),
                       static_cast<int>(of_machine));
  return run;
}

/// Caches of the stage that has most.
int64_t cache_bytes(const spec::ArchSpec& whole, const config::RunConfig& run,
                    const SequencesMemory& sequences) {
  const spec::ArchSpec arch = device_arch(whole, run.parallel.axes);
  if (!run.parallel.axes.has_stages()) return sequences.cache(arch, 0, arch.num_layers);
  const std::vector<int64_t> firsts = stages_of(whole, run);
  const auto layer = [&](int64_t unit) {
    return std::clamp<int64_t>(unit - 1, 0, arch.num_layers);
  };
  int64_t largest = 0;
  for (size_t stage = 0; stage + 1 < firsts.size(); ++stage)
    largest =
        std::max(largest, sequences.cache(arch, layer(firsts[stage]), layer(firsts[stage + 1])));
  return largest;
}

UseMemory memory_of(const ModelFiles& files, const ModelUse& use, const config::RunConfig& run,
                    const UseDevices& devices) {
  constexpr int64_t kMaster = 4;
  const config::Axes& axes = run.parallel.axes;
  const auto ranks = static_cast<int>(axes.devices_of_part() * axes.data_parts());
  const MemoryPlan plan = memory_plan(files.arch, run,
                                      {.memory_bytes = devices.memory_bytes,
                                       .element_bytes = devices.element_bytes,
                                       .on_gpu = devices.on_gpu,
                                       .world_size = ranks,
                                       .local_world_size = ranks},
                                      files.stored);
  const int64_t of_value = kMaster + (devices.element_bytes == kMaster ? 0 : devices.element_bytes);
  return {.weights = plan.held.base +
                     use.adapter_values * of_value / (axes.devices_of_part() * axes.dp_shard),
          .gathered = axes.shards_weights() ? plan.held.gathered : 0,
          .sequences = cache_bytes(files.arch, run, use.sequences) +
                       use.sequences.pass(device_arch(files.arch, axes)),
          .process = plan.context + plan.communication};
}

/// Parts of matrices are computed at the same time, stages one after the other; shards are gathered
/// for each token.
int place_of(const UseDivision& division) {
  switch (division.strategy) {
    case kSingle:
      return 0;
    case kTensor:
      return 1;
    case kAuto:  // both
      return 2;
    case kFsdp:
      return 4;
    default:
      return 3;
  }
}

/// Every way to have a copy on `size` devices.
void add_of_size(int64_t size, int64_t processes, int64_t of_machine, bool in_process,
                 std::vector<UseDivision>& divisions) {
  for (int64_t tp = size; tp > 1; --tp) {
    if (size % tp != 0 || of_machine % tp != 0) continue;  // links between machines are slow
    divisions.push_back({.strategy = tp == size ? kTensor : kAuto,
                         .pp = size / tp,
                         .tp = tp,
                         .processes = processes});
  }
  divisions.push_back({.strategy = in_process ? kDeviceMap : kPipeline,
                       .pp = size,
                       .processes = in_process ? 1 : processes});
}

/// With as many processes as a copy needs, or the GPUs of one.
void add_of_one_copy(const UseDevices& devices, std::vector<UseDivision>& divisions) {
  const int64_t asked = devices.processes.value_or(devices.count);
  const bool may_be_one = devices.is_one_process || devices.processes.value_or(1) == 1;
  if (!may_be_one)
    return add_of_size(asked, asked, devices.of_machine.value_or(asked), false, divisions);
  divisions.push_back({});
  for (int64_t size = 2; size <= devices.count; ++size) {
    if (devices.is_one_process || devices.processes)
      divisions.push_back({.strategy = kDeviceMap, .pp = size});
    else
      add_of_size(size, size, size, /*in_process=*/devices.on_gpu, divisions);
  }
}

/// All processes work, on as many copies as they have room for.
void add_of_copies(int64_t processes, int64_t of_machine, std::vector<UseDivision>& divisions) {
  divisions.push_back({.processes = processes});
  for (int64_t size = 2; size <= processes; ++size)
    if (processes % size == 0) add_of_size(size, processes, of_machine, false, divisions);
  divisions.push_back({.strategy = kFsdp, .processes = processes});
}

std::vector<UseDivision> all_divisions(const ModelUse& use, const UseDevices& devices) {
  std::vector<UseDivision> divisions;
  const int64_t processes = devices.processes.value_or(devices.count);
  if (use.has_one_copy || devices.is_one_process || processes == 1)
    add_of_one_copy(devices, divisions);
  else
    add_of_copies(processes, devices.of_machine.value_or(processes), divisions);
  std::ranges::stable_sort(divisions, {}, place_of);
  return divisions;
}

bool is_as(const config::Axes& hint, const UseDivision& division) {
  const bool in_process = division.strategy == kDeviceMap;
  return division.pp * division.tp > 1 && hint.pp == division.pp && hint.tp == division.tp &&
         hint.stages_in_process == in_process;
}

}  // namespace

int64_t UseMemory::needed() const {
  constexpr double kGaps = 0.05;  // as MemoryPlan::margin
  const int64_t tensors = weights + gathered + sequences;
  return tensors + static_cast<int64_t>(kGaps * static_cast<double>(tensors)) + process;
}

std::string UseDivision::flags() const {
  if (!divides()) return {};
  std::string text;
  if (strategy != kAuto) text += fmt::format(" --strategy {}", config::strategy_name(strategy));
  if (tp > 1) text += fmt::format(" --tp {}", tp);
  if (pp > 1) text += fmt::format(" --pp {}", pp);
  if (strategy != kDeviceMap) text += fmt::format(" --nproc-per-node {}", processes);
  return text.substr(1);
}

std::vector<UseDivision> use_divisions(const ModelFiles& files, const ModelUse& use,
                                       const UseDevices& devices, const config::Axes* hint) {
  std::vector<UseDivision> divisions;
  for (UseDivision& division : all_divisions(use, devices)) {
    const config::RunConfig run =
        run_of(use, division, devices.of_machine.value_or(ranks_of(division)));
    if (!refusal_of(files.arch, run, files.blocks).empty()) continue;
    division.memory = memory_of(files, use, run, devices);
    divisions.push_back(division);
  }
  if (hint == nullptr) return divisions;
  const auto first = std::find_if(divisions.begin(), divisions.end(),
                                  [](const UseDivision& one) { return one.divides(); });
  const auto own = std::find_if(first, divisions.end(),
                                [&](const UseDivision& one) { return is_as(*hint, one); });
  if (own != divisions.end()) std::rotate(first, own, own + 1);
  return divisions;
}

std::optional<UseChoice> choose_division(const ModelFiles& files, const ModelUse& use,
                                         const UseDevices& devices, const config::Axes* hint) {
  const std::vector<UseDivision> divisions = use_divisions(files, use, devices, hint);
  if (divisions.empty()) return std::nullopt;
  const auto needed = [](const UseDivision& division) { return division.memory.needed(); };
  const auto fitting = std::ranges::find_if(divisions, [&](const UseDivision& division) {
    return static_cast<uint64_t>(needed(division)) <= devices.memory_bytes;
  });
  if (fitting != divisions.end()) return UseChoice{*fitting, true};
  return UseChoice{*std::ranges::min_element(divisions, {}, needed), false};
}

}  // namespace sftrun::plan
