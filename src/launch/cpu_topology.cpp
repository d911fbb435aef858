#include "sftrun/launch/cpu_topology.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <tuple>

#include "parse_int.h"
#include "sftrun/core/strings.h"
#include "sftrun/observe/system.h"

namespace sftrun::launch {
namespace fs = std::filesystem;
namespace {

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return std::string(trim(line));
}

auto place_of(const Cpu& cpu) {
  return std::tuple(cpu.node, cpu.package, cpu.core, cpu.id);
}

std::map<int, int> node_of_cpu(const fs::path& system) {
  std::map<int, int> nodes;
  for (const int node : parse_cpu_list(first_line(system / "node/online"))) {
    const fs::path list = system / "node" / ("node" + std::to_string(node)) / "cpulist";
    for (const int cpu : parse_cpu_list(first_line(list))) nodes[cpu] = node;
  }
  return nodes;
}

using Cores = std::vector<std::vector<int>>;

Cores cores_of(const std::vector<Cpu>& cpus, int node) {
  Cores cores;
  const Cpu* last = nullptr;
  for (const Cpu& cpu : cpus) {
    if (node >= 0 && cpu.node != node) continue;
    const bool same_core =
        last && last->node == cpu.node && last->package == cpu.package && last->core == cpu.core;
    if (!same_core) cores.emplace_back();
    cores.back().push_back(cpu.id);
    last = &cpu;
  }
  return cores;
}

/// Part `index` of `count` parts of nearly equal size.
std::vector<int> share(const Cores& cores, size_t index, size_t count) {
  std::vector<int> cpus;
  for (size_t i = cores.size() * index / count; i < cores.size() * (index + 1) / count; ++i) {
    cpus.insert(cpus.end(), cores[i].begin(), cores[i].end());
  }
  std::sort(cpus.begin(), cpus.end());
  return cpus;
}

}  // namespace

std::vector<int> allowed_cpus() {
  for (size_t capacity = 1024; capacity <= (1 << 16); capacity *= 2) {
    cpu_set_t* set = CPU_ALLOC(capacity);
    const size_t num_bytes = CPU_ALLOC_SIZE(capacity);
    std::vector<int> cpus;
    const bool read =
        ::sched_getaffinity(0, num_bytes, set) == 0;  // EINVAL: the machine has more CPUs
    for (size_t cpu = 0; read && cpu < capacity; ++cpu) {
      if (CPU_ISSET_S(cpu, num_bytes, set)) cpus.push_back(static_cast<int>(cpu));
    }
    CPU_FREE(set);
    if (read) return cpus;
  }
  return {};
}

std::vector<Cpu> cpu_topology(const std::vector<int>& ids, const fs::path& system) {
  const auto nodes = node_of_cpu(system);
  std::vector<Cpu> cpus;
  for (const int id : ids) {
    const fs::path topology = system / "cpu" / ("cpu" + std::to_string(id)) / "topology";
    const auto node = nodes.find(id);
    cpus.push_back(
        {.id = id,
         .node = node == nodes.end() ? 0 : node->second,
         .package =
             static_cast<int>(parse_int(first_line(topology / "physical_package_id")).value_or(0)),
         .core = static_cast<int>(parse_int(first_line(topology / "core_id")).value_or(id))});
  }
  std::sort(cpus.begin(), cpus.end(),
            [](const Cpu& a, const Cpu& b) { return place_of(a) < place_of(b); });
  return cpus;
}

std::vector<int> parse_cpu_list(const std::string& list) {
  std::vector<int> cpus;
  for (const std::string& part : split(list, ',')) {
    const auto ends = split(part, '-');
    const auto first = parse_int(trim(ends.front())), last = parse_int(trim(ends.back()));
    if (!first || !last || ends.size() > 2) continue;
    for (int64_t cpu = *first; cpu <= *last; ++cpu) cpus.push_back(static_cast<int>(cpu));
  }
  return cpus;
}

std::string format_cpu_list(const std::vector<int>& cpus) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin < cpus.size();) {
    size_t end = begin;
    while (end + 1 < cpus.size() && cpus[end + 1] == cpus[end] + 1) ++end;
    parts.push_back(std::to_string(cpus[begin]));
    if (end > begin) parts.back() += "-" + std::to_string(cpus[end]);
    begin = end + 1;
  }
  return join(parts, ",");
}

std::vector<std::vector<int>> deal_cpus(const std::vector<Cpu>& cpus,
                                        const std::vector<int>& node_of_worker) {
  const size_t num_workers = node_of_worker.size();
  if (num_workers < 2) return {};
  const bool nodes_known =
      std::all_of(node_of_worker.begin(), node_of_worker.end(), [](int node) { return node >= 0; });
  std::map<int, size_t> workers_on, next_on;
  for (const int node : node_of_worker) ++workers_on[nodes_known ? node : -1];
  std::vector<std::vector<int>> dealt;
  for (const int node_of_device : node_of_worker) {
    const int node = nodes_known ? node_of_device : -1;
    dealt.push_back(share(cores_of(cpus, node), next_on[node]++, workers_on[node]));
    if (dealt.back().size() < 2) return {};
  }
  return dealt;
}

std::vector<std::string> cpu_features(const fs::path& proc) {
  constexpr const char* kWanted[] = {
      "avx2",        "fma",      "f16c",     "avx512f",  "avx512_vnni", "avx512_bf16",
      "avx512_fp16", "avx_vnni", "amx_tile", "amx_bf16", "amx_int8",    "amx_fp16",
      "asimd",       "sve",      "sve2",     "bf16",     "i8mm"};
  std::ifstream file(proc / "cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string_view key = trim(std::string_view(line).substr(0, colon));
    if (key != "flags" && key != "Features") continue;
    std::istringstream words(line.substr(colon + 1));
    std::set<std::string> flags;
    for (std::string word; words >> word;) flags.insert(word);
    std::vector<std::string> features;
    for (const char* name : kWanted) {
      if (flags.contains(name)) features.push_back(name);
    }
    return features;
  }
  return {};
}

int max_threads() {
  constexpr int kAnywhere = 256;
  return std::max(kAnywhere, 2 * observe::logical_cpus());
}

int num_physical_cores(const fs::path& system) {
  const auto online = parse_cpu_list(first_line(system / "cpu/online"));
  return static_cast<int>(cores_of(cpu_topology(online, system), -1).size());
}

}  // namespace sftrun::launch
