#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <thread>

#include "commands.h"
#include "gpu_view.h"
#include "sftrun/core/error.h"
#include "sftrun/core/standard_streams.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"
#include "sftrun/launch/cpu_topology.h"
#include "sftrun/launch/gpu.h"
#include "sftrun/observe/system.h"

namespace sftrun::app {
namespace {

using Json = nlohmann::ordered_json;
using launch::GpuInfo;
using launch::GpuReport;

struct HostInfo {
  std::string model;
  int physical_cores = 0, logical_cpus = 0;
  std::vector<int> allowed;
  double available_cpus = 1;
  std::vector<std::string> features;
  observe::MemoryInfo memory;
};

HostInfo host_info() {
  return {.model = observe::cpu_model(),
          .physical_cores = launch::num_physical_cores(),
          .logical_cpus = observe::logical_cpus(),
          .allowed = launch::allowed_cpus(),
          .available_cpus = observe::available_cpus(),
          .features = launch::cpu_features(),
          .memory = observe::memory_info()};
}

std::string cuda_version(int packed) {
  return fmt::format("{}.{}", packed / 1000, packed % 1000 / 10);
}

template <typename T>
Json json_of(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

Json json_of(const GpuInfo& gpu) {
  return {{"index", gpu.index},
          {"name", gpu.name},
          {"uuid", gpu.uuid},
          {"pci_bus_id", gpu.pci_bus_id},
          {"numa_node", gpu.numa_node},
          {"compute_capability", fmt::format("{}.{}", gpu.compute_major, gpu.compute_minor)},
          {"usable", !gpu.is_too_old()},
          {"memory_total_bytes", json_of(gpu.memory_total_bytes)},
          {"memory_free_bytes", json_of(gpu.memory_free_bytes)},
          {"utilization_percent", json_of(gpu.utilization_percent)},
          {"temperature_c", json_of(gpu.temperature_c)},
          {"power_w", json_of(gpu.power_w)},
          {"power_limit_w", json_of(gpu.power_limit_w)},
          {"sm_clock_mhz", json_of(gpu.sm_clock_mhz)},
          {"sm_clock_max_mhz", json_of(gpu.sm_clock_max_mhz)},
          {"memory_clock_mhz", json_of(gpu.memory_clock_mhz)},
          {"pcie_gen", json_of(gpu.pcie_gen)},
          {"pcie_gen_max", json_of(gpu.pcie_gen_max)},
          {"pcie_width", json_of(gpu.pcie_width)},
          {"pcie_width_max", json_of(gpu.pcie_width_max)},
          {"nvlinks", gpu.num_nvlinks}};
}

Json json_of(const HostInfo& host) {
  return {{"cpu",
           {{"model", host.model},
            {"physical_cores", host.physical_cores},
            {"logical_cpus", host.logical_cpus},
            {"allowed_cpus", host.allowed.size()},
            {"available_cpus", host.available_cpus},
            {"features", host.features}}},
          {"memory",
           {{"total_bytes", host.memory.total_bytes},
            {"available_bytes", host.memory.available_bytes},
            {"limited_by_cgroup", host.memory.limited_by_cgroup}}}};
}

Json as_json(const GpuView& view, const HostInfo& host) {
  const GpuReport& report = view.shown;
  const std::string versions = version_text();
  Json gpus = Json::array();
  for (const GpuInfo& gpu : report.gpus) gpus.push_back(json_of(gpu));
  Json problems = Json::array();
  if (view.visibility && !view.visibility->problem.empty())
    problems.push_back(view.visibility->problem);
  if (!report.problem.empty()) problems.push_back(report.problem);
  if (const auto complaint = launch::driver_complaint(report); !complaint.empty())
    problems.push_back(complaint);
  Json answer = {
      {"num_gpus", view.num_gpus()},
      {"gpus", gpus},
      {"cuda_visible_devices", view.visibility ? Json(view.visibility->setting) : Json()},
      {"hidden_gpus", view.hidden_json()},
      {"mig_slice", view.has_slice() ? Json(view.visibility->mig_slice) : Json()},
      {"links", report.links},
      {"driver_version", report.driver_version},
      {"cuda_driver_version",
       report.cuda_driver_version ? Json(cuda_version(report.cuda_driver_version)) : Json()},
      {"libtorch", version_of(versions, "LibTorch")},
      {"cuda", version_of(versions, "CUDA")},
      {"nccl", version_of(versions, "NCCL")},
      {"problems", problems}};
  answer.update(json_of(host));
  return answer;
}

/// "12 unit", or "?" if the driver does not report the value.
template <typename T>
std::string shown(const std::optional<T>& value, std::string_view unit) {
  return value ? fmt::format("{}{}", *value, unit) : "?";
}
std::string shown_bytes(const std::optional<uint64_t>& value) {
  return value ? format_bytes(*value) : "?";
}
std::string shown_watts(const std::optional<double>& value) {
  return value ? fmt::format("{:.0f} W", *value) : "?";
}

std::string text_of(const GpuInfo& gpu) {
  std::string text = fmt::format("\nGPU {}: {}", gpu.index, gpu.name);
  if (gpu.compute_major > 0)
    text += fmt::format(" (sm_{}{})", gpu.compute_major, gpu.compute_minor);
  if (gpu.is_too_old()) text += "  NOT SUPPORTED: older than sm_80 (Ampere)";
  text += fmt::format("\n  memory       {} total, {} free\n", shown_bytes(gpu.memory_total_bytes),
                      shown_bytes(gpu.memory_free_bytes));
  text += fmt::format("  utilization  {}\n", shown(gpu.utilization_percent, "%"));
  text += fmt::format("  temperature  {}\n", shown(gpu.temperature_c, " °C"));
  text += fmt::format("  power        {} of {}\n", shown_watts(gpu.power_w),
                      shown_watts(gpu.power_limit_w));
  text += fmt::format("  clocks       SM {} of {}, memory {}\n", shown(gpu.sm_clock_mhz, " MHz"),
                      shown(gpu.sm_clock_max_mhz, " MHz"), shown(gpu.memory_clock_mhz, " MHz"));
  text += fmt::format("  PCIe         gen {} x{} (up to gen {} x{}), {}\n", shown(gpu.pcie_gen, ""),
                      shown(gpu.pcie_width, ""), shown(gpu.pcie_gen_max, ""),
                      shown(gpu.pcie_width_max, ""),
                      gpu.pci_bus_id.empty() ? "bus id unknown" : gpu.pci_bus_id);
  text += fmt::format("  NVLink       {}\n",
                      gpu.num_nvlinks == 0 ? "none" : fmt::format("{} links", gpu.num_nvlinks));
  return text + fmt::format("  UUID         {}\n", gpu.uuid.empty() ? "?" : gpu.uuid);
}

std::string matrix_text(const GpuReport& report) {
  if (report.gpus.size() < 2) return {};
  std::string text =
      "\nTopology (NV#: NVLinks, PIX: one PCIe switch, PXB: several, PHB: host bridge, NODE, SYS: "
      "between sockets)\n      ";
  for (const GpuInfo& gpu : report.gpus)
    text += fmt::format(" {:>5}", fmt::format("GPU{}", gpu.index));
  for (size_t i = 0; i < report.gpus.size(); ++i) {
    text += fmt::format("\n{:>6}", fmt::format("GPU{}", report.gpus[i].index));
    for (const std::string& link : report.links[i]) text += fmt::format(" {:>5}", link);
    if (report.gpus[i].numa_node >= 0) text += fmt::format("  NUMA {}", report.gpus[i].numa_node);
  }
  return text + "\n";
}

std::string versions_text(const GpuReport& report) {
  const std::string versions = version_text();
  std::string text = "\n";
  if (!report.driver_version.empty()) text += fmt::format("Driver: {}\n", report.driver_version);
  if (report.cuda_driver_version)
    text += fmt::format("CUDA of the driver: {}\n", cuda_version(report.cuda_driver_version));
  for (const auto* name : {"LibTorch", "CUDA", "NCCL"}) {
    if (const std::string version = version_of(versions, name); !version.empty()) {
      text += fmt::format("{}{}: {}\n", name,
                          std::string_view(name) == "CUDA" ? " of LibTorch" : "", version);
    }
  }
  if (const auto complaint = launch::driver_complaint(report); !complaint.empty())
    text += "warning: " + complaint + "\n";
  return text == "\n" ? "" : text;
}

std::string text_of(const HostInfo& host) {
  std::string text = fmt::format("\nCPU: {}\n", host.model.empty() ? "unknown model" : host.model);
  const std::string physical =  // unknown if /sys is not mounted
      host.physical_cores > 0 ? fmt::format("{} physical, ", host.physical_cores) : "";
  text += fmt::format("  cores        {}{} logical; this process may use {}", physical,
                      host.logical_cpus, host.allowed.size());
  if (host.available_cpus < static_cast<double>(host.allowed.size()))
    text += fmt::format(", with a quota of {:g}", host.available_cpus);
  text += fmt::format("\n  features     {}\n",
                      host.features.empty() ? "none known" : join(host.features, " "));
  text += fmt::format("Memory: {} total{}, {} available\n", format_bytes(host.memory.total_bytes),
                      host.memory.limited_by_cgroup ? " (limit of the control group)" : "",
                      format_bytes(host.memory.available_bytes));
  return text;
}

std::string as_text(const GpuView& view, const HostInfo& host) {
  const GpuReport& report = view.shown;
  std::string text = fmt::format("Number of GPUs: {}\n", view.num_gpus());
  if (report.gpus.empty() && view.hidden.empty())
    text += fmt::format("No GPU was found: {}. Training runs on the CPU.\n", report.problem);
  else if (report.gpus.empty())
    text += "No GPU is visible. Training runs on the CPU.\n";
  else if (!report.problem.empty())
    text += fmt::format("warning: {}\n", report.problem);
  text += view.visibility_text();
  for (const GpuInfo& gpu : report.gpus) text += text_of(gpu);
  return text + matrix_text(report) + versions_text(report) + text_of(host);
}

void print_once(const GpuInfoOptions& options) {
  const GpuView view = view_of(launch::query_gpus());
  const HostInfo host = host_info();
  const bool clear = options.watch && !options.json && ::isatty(STDOUT_FILENO);
  if (clear) fmt::print("\x1b[H\x1b[2J");
  if (options.json) {
    fmt::print("{}\n",
               as_json(view, host).dump(options.watch ? -1 : 2));  // watched: an object a line
  } else {
    fmt::print("{}", as_text(view, host));
  }
  require_standard_output();
}

}  // namespace

int run_gpu_info(const GpuInfoOptions& options) {
  print_once(options);
  while (options.watch) {
    std::this_thread::sleep_for(std::chrono::seconds(1));
    print_once(options);
  }
  return static_cast<int>(ExitCode::kDone);
}

}  // namespace sftrun::app
