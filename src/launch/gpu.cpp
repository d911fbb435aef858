#include "sftrun/launch/gpu.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>

#include "nvml_library.h"
#include "parse_int.h"
#include "sftrun/core/error.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"

namespace sftrun::launch {
namespace fs = std::filesystem;
namespace {

/// The value that an NVML function writes to its last argument.
template <typename Value, typename Function, typename... Args>
std::optional<Value> ask(Function* function, Args... args) {
  Value value{};
  if (!function || function(args..., &value) != kNvmlSuccess) return std::nullopt;
  return value;
}

template <typename Function, typename... Args>
std::string ask_text(Function* function, Args... args) {
  char text[128] = {};
  if (!function || function(args..., text, sizeof text) != kNvmlSuccess) return {};
  return text;
}

std::optional<double> watts(const std::optional<unsigned>& milliwatts) {
  if (!milliwatts) return std::nullopt;
  return *milliwatts / 1000.0;
}

/// sysfs writes bus ids in lower case with a domain of four digits; NVML's has eight digits.
int numa_node_of(const std::string& bus_id) {
  if (bus_id.size() < 12) return -1;
  std::string name = bus_id.substr(bus_id.size() - 12);
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  std::ifstream file("/sys/bus/pci/devices/" + name + "/numa_node");
  int node = -1;
  file >> node;
  return file ? node : -1;
}

std::vector<GpuProcess> processes_on(const NvmlLibrary& nvml, NvmlDevice device) {
  if (!nvml.compute_processes) return {};
  constexpr unsigned kMax = 256;
  std::vector<NvmlProcess> found(kMax);
  unsigned count = kMax;
  if (nvml.compute_processes(device, &count, found.data()) != kNvmlSuccess) return {};
  std::vector<GpuProcess> processes;
  for (unsigned i = 0; i < std::min(count, kMax); ++i) {
    const bool is_known = found[i].used_bytes != kNvmlNotAvailable;
    processes.push_back({static_cast<int>(found[i].pid),
                         is_known ? std::optional<uint64_t>(found[i].used_bytes) : std::nullopt});
  }
  return processes;
}

GpuInfo describe(const NvmlLibrary& nvml, NvmlDevice device, int index) {
  GpuInfo gpu{
      .index = index, .name = ask_text(nvml.name, device), .uuid = ask_text(nvml.uuid, device)};
  if (const auto pci = ask<NvmlPciInfo>(nvml.pci_info, device)) gpu.pci_bus_id = pci->bus_id;
  gpu.numa_node = numa_node_of(gpu.pci_bus_id);
  if (nvml.compute_capability) {
    nvml.compute_capability(device, &gpu.compute_major, &gpu.compute_minor);
  }
  if (const auto memory = ask<NvmlMemory>(nvml.memory, device)) {
    gpu.memory_total_bytes = memory->total;
    gpu.memory_free_bytes = memory->free;
  }
  gpu.processes = processes_on(nvml, device);
  if (const auto utilization = ask<NvmlUtilization>(nvml.utilization, device)) {
    gpu.utilization_percent = static_cast<int>(utilization->gpu);
  }
  gpu.temperature_c = ask<unsigned>(nvml.temperature, device, kNvmlTemperatureGpu);
  gpu.power_w = watts(ask<unsigned>(nvml.power_usage, device));
  gpu.power_limit_w = watts(ask<unsigned>(nvml.power_limit, device));
  gpu.sm_clock_mhz = ask<unsigned>(nvml.clock, device, kNvmlClockSm);
  gpu.sm_clock_max_mhz = ask<unsigned>(nvml.max_clock, device, kNvmlClockSm);
  gpu.memory_clock_mhz = ask<unsigned>(nvml.clock, device, kNvmlClockMem);
  gpu.pcie_gen = ask<unsigned>(nvml.pcie_gen, device);
  gpu.pcie_gen_max = ask<unsigned>(nvml.pcie_gen_max, device);
  gpu.pcie_width = ask<unsigned>(nvml.pcie_width, device);
  gpu.pcie_width_max = ask<unsigned>(nvml.pcie_width_max, device);
  return gpu;
}

struct NvLinks {
  std::vector<std::string> to_gpus;  ///< PCI bus id of the other end, one entry per link
  int to_switch = 0, up = 0;
};

NvLinks nvlinks_of(const NvmlLibrary& nvml, NvmlDevice device) {
  NvLinks links;
  for (unsigned link = 0; nvml.nvlink_state && link < kNvmlMaxLinks; ++link) {
    if (ask<unsigned>(nvml.nvlink_state, device, link) != 1u) continue;
    ++links.up;
    const auto type = ask<unsigned>(nvml.nvlink_remote_type, device, link);
    if (type == kNvmlRemoteSwitch) {
      ++links.to_switch;
      continue;
    }
    const auto remote = ask<NvmlPciInfo>(nvml.nvlink_remote_pci, device, link);
    if (remote) links.to_gpus.emplace_back(remote->bus_id);
  }
  return links;
}

std::string pcie_path(const NvmlLibrary& nvml, NvmlDevice a, NvmlDevice b) {
  const auto level = ask<unsigned>(nvml.common_ancestor, a, b);
  switch (level.value_or(~0u)) {  // nvmlGpuTopologyLevel_t
    case 0:
      return "PIX";  // two GPUs of one board
    case 10:
      return "PIX";
    case 20:
      return "PXB";
    case 30:
      return "PHB";
    case 40:
      return "NODE";
    case 50:
      return "SYS";
    default:
      return "?";
  }
}

void describe_links(const NvmlLibrary& nvml, const std::vector<NvmlDevice>& devices,
                    GpuReport& report) {
  const size_t count = devices.size();
  std::vector<NvLinks> nvlinks;
  for (size_t i = 0; i < count; ++i) {
    nvlinks.push_back(nvlinks_of(nvml, devices[i]));
    report.gpus[i].num_nvlinks = nvlinks[i].up;
  }
  report.links.assign(count, std::vector<std::string>(count, "X"));
  for (size_t i = 0; i < count; ++i) {
    for (size_t j = 0; j < count; ++j) {
      if (i == j) continue;
      const auto& ends = nvlinks[i].to_gpus;
      const auto direct = std::count(ends.begin(), ends.end(), report.gpus[j].pci_bus_id);
      const auto num_links = direct + std::min(nvlinks[i].to_switch, nvlinks[j].to_switch);
      report.links[i][j] =
          num_links > 0 ? fmt::format("NV{}", num_links) : pcie_path(nvml, devices[i], devices[j]);
    }
  }
}

void describe_peer_access(const NvmlLibrary& nvml, const std::vector<NvmlDevice>& devices,
                          GpuReport& report) {
  const size_t count = devices.size();
  report.peer_access.assign(count, std::vector<std::optional<bool>>(count, true));
  for (size_t i = 0; i < count; ++i) {
    for (size_t j = 0; j < count; ++j) {
      if (i == j) continue;
      const auto status = ask<unsigned>(nvml.p2p_status, devices[i], devices[j], kNvmlP2pRead);
      report.peer_access[i][j] = status ? std::optional<bool>(*status == kNvmlP2pOk) : std::nullopt;
    }
  }
}

/// Containers may have the devices but not NVML.
GpuReport count_device_files(std::string problem) {
  if (std::string amd = amd_complaint(); !amd.empty()) problem = std::move(amd);
  GpuReport report{.problem = std::move(problem)};
  for (int index = 0; leads_to_file(fmt::format("/dev/nvidia{}", index)); ++index) {
    report.gpus.push_back({.index = index, .name = "NVIDIA GPU (driver's NVML library not found)"});
  }
  report.links.assign(report.gpus.size(), std::vector<std::string>(report.gpus.size(), "?"));
  return report;
}

}  // namespace

GpuReport query_gpus(const std::string& library) {
  GpuReport report;
  const NvmlLibrary nvml = load_nvml(nvml_file(library), report.problem);
  if (!nvml.handle) return count_device_files(std::move(report.problem));
  if (const int error = nvml.init(); error != kNvmlSuccess) {
    const char* text = nvml.error_string ? nvml.error_string(error) : nullptr;
    return count_device_files(
        fmt::format("the NVIDIA driver does not respond: {}", text ? text : "unknown NVML error"));
  }
  report.driver_version = ask_text(nvml.driver_version);
  report.cuda_driver_version = ask<int>(nvml.cuda_driver_version).value_or(0);
  unsigned count = 0;
  nvml.device_count(&count);
  std::vector<NvmlDevice> devices;
  for (unsigned index = 0; index < count; ++index) {
    NvmlDevice device = nullptr;
    // A GPU that is lost has no handle; the others still work.
    if (nvml.device_by_index(index, &device) != kNvmlSuccess) continue;
    devices.push_back(device);
    report.gpus.push_back(describe(nvml, device, static_cast<int>(index)));
  }
  describe_links(nvml, devices, report);
  describe_peer_access(nvml, devices, report);
  if (report.gpus.empty()) report.problem = "the NVIDIA driver reports no GPU";
  if (nvml.shutdown) nvml.shutdown();
  return report;
}

std::string amd_complaint(const fs::path& root) {
  const fs::path kfd = root / "dev/kfd";  // the compute device of AMD's kernel driver
  if (!leads_to_file(kfd)) return {};
  return "this machine has AMD GPUs (" + kfd.string() +
         "), which sftrun does not support: it computes on NVIDIA GPUs and on the CPU";
}

std::string driver_complaint(const GpuReport& report) {
  constexpr int64_t kDriverForCuda13 = 580;
  const auto major = parse_int(split(report.driver_version, '.').front());
  if (!major || *major >= kDriverForCuda13) return {};
  return fmt::format("NVIDIA driver {} is too old for CUDA 13, which needs {} or newer",
                     report.driver_version, kDriverForCuda13);
}

}  // namespace sftrun::launch
