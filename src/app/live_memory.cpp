#include "live_memory.h"

#include <fmt/format.h>

#include "sftrun/core/units.h"

namespace sftrun::app {
namespace {

using LiveJson = nlohmann::ordered_json;

/// A process of a run; null members: not one.
struct ProcessOfRun {
  const launch::RunningRun* run = nullptr;
  const launch::RunningProcess* process = nullptr;
};

ProcessOfRun find_process(const std::vector<launch::RunningRun>& runs, int pid) {
  for (const launch::RunningRun& run : runs)
    for (const launch::RunningProcess& process : run.processes)
      if (process.pid == pid) return {&run, &process};
  return {};
}

std::string described(const launch::RunningProcess& process) {
  return fmt::format("{} (pid {})",
                     process.rank ? fmt::format("rank {}", *process.rank) : "launcher",
                     process.pid);
}

std::string text_of_gpu(const launch::GpuInfo& gpu, const LiveMemory& memory) {
  std::string text = fmt::format("GPU {}: {}", gpu.index, gpu.name);
  if (gpu.memory_total_bytes && gpu.memory_free_bytes) {
    text +=
        fmt::format(": {} of {} in use, {} free",
                    format_bytes(*gpu.memory_total_bytes - *gpu.memory_free_bytes),
                    format_bytes(*gpu.memory_total_bytes), format_bytes(*gpu.memory_free_bytes));
  }
  text += "\n";
  for (const launch::GpuProcess& process : gpu.processes) {
    const ProcessOfRun found = find_process(memory.runs, process.pid);
    text += fmt::format("  {}: {}\n",
                        found.run ? found.run->run_dir + ", " + described(*found.process)
                                  : fmt::format("another program (pid {})", process.pid),
                        process.used_bytes ? format_bytes(*process.used_bytes) : "not reported");
  }
  return text;
}

LiveJson of_gpu(const launch::GpuInfo& gpu, const LiveMemory& memory) {
  const auto or_nothing = [](const auto& value) { return value ? LiveJson(*value) : LiveJson(); };
  LiveJson processes = LiveJson::array();
  for (const launch::GpuProcess& process : gpu.processes) {
    const ProcessOfRun found = find_process(memory.runs, process.pid);
    processes.push_back({{"pid", process.pid},
                         {"used_bytes", or_nothing(process.used_bytes)},
                         {"run_dir", found.run ? LiveJson(found.run->run_dir) : LiveJson()},
                         {"rank", found.process ? or_nothing(found.process->rank) : LiveJson()}});
  }
  return {{"index", gpu.index},
          {"name", gpu.name},
          {"memory_total_bytes", or_nothing(gpu.memory_total_bytes)},
          {"memory_free_bytes", or_nothing(gpu.memory_free_bytes)},
          {"processes", processes}};
}

}  // namespace

LiveMemory live_memory() {
  return {view_of(launch::query_gpus()), launch::running_runs(), observe::memory_info()};
}

std::string as_text(const LiveMemory& memory) {
  const launch::GpuReport& shown = memory.gpus.shown;
  std::string text;
  if (shown.gpus.empty())
    text += memory.gpus.hidden.empty() ? fmt::format("No GPU was found: {}.\n", shown.problem)
                                       : "No GPU is visible.\n";
  text += memory.gpus.visibility_text();
  for (const launch::GpuInfo& gpu : shown.gpus) text += text_of_gpu(gpu, memory);
  text +=
      fmt::format("Memory of the host: {} of {} in use, {} available{}\n",
                  format_bytes(memory.host.total_bytes - memory.host.available_bytes),
                  format_bytes(memory.host.total_bytes), format_bytes(memory.host.available_bytes),
                  memory.host.limited_by_cgroup ? " (limit of the control group)" : "");
  for (const launch::RunningRun& run : memory.runs) {
    text += fmt::format("  {}\n", run.run_dir);
    for (const launch::RunningProcess& process : run.processes)
      text += fmt::format("    {}: {}\n", described(process), format_bytes(process.resident_bytes));
  }
  if (memory.runs.empty()) text += "  no run of sftrun\n";
  return text + "To estimate a run before it starts: sftrun memory-check --config run.yaml\n";
}

nlohmann::ordered_json as_json(const LiveMemory& memory) {
  LiveJson gpus = LiveJson::array(), runs = LiveJson::array();
  for (const launch::GpuInfo& gpu : memory.gpus.shown.gpus) gpus.push_back(of_gpu(gpu, memory));
  for (const launch::RunningRun& run : memory.runs) {
    LiveJson processes = LiveJson::array();
    for (const launch::RunningProcess& process : run.processes) {
      processes.push_back({{"pid", process.pid},
                           {"rank", process.rank ? LiveJson(*process.rank) : LiveJson()},
                           {"resident_bytes", process.resident_bytes}});
    }
    runs.push_back({{"run_dir", run.run_dir}, {"processes", processes}});
  }
  return {{"gpus", gpus},
          {"hidden_gpus", memory.gpus.hidden_json()},
          {"host",
           {{"total_bytes", memory.host.total_bytes},
            {"available_bytes", memory.host.available_bytes},
            {"limited_by_cgroup", memory.host.limited_by_cgroup}}},
          {"runs", runs}};
}

}  // namespace sftrun::app
