#include "sftrun/launch/launch_plan.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <random>

#include "parse_int.h"
#include "sftrun/core/error.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/strings.h"
#include "sftrun/observe/system.h"
#include "visible_gpus.h"

namespace sftrun::launch {
namespace {

constexpr int kTorchrunPort = 29500;

void refuse_old(const GpuReport& report, const std::vector<VisibleGpu>& gpus) {
  for (const VisibleGpu& visible : gpus) {
    if (visible.index < 0) continue;
    const GpuInfo& gpu = report.gpus[static_cast<size_t>(visible.index)];
    if (!gpu.is_too_old()) continue;
    throw ConfigError(
        fmt::format("GPU {} ({}, sm_{}{}) is too old: sm_80 (Ampere) or newer is required",
                    gpu.index, gpu.name, gpu.compute_major, gpu.compute_minor),
        "GPU " + (gpu.pci_bus_id.empty() ? visible.id : gpu.pci_bus_id),
        "choose other GPUs with --gpus, or train on the CPU: --device cpu");
  }
}

bool demands_gpus(const LaunchRequest& request) {
  return request.device == "cuda" || !request.gpus.empty();
}

/// FORCE_SINGLE_GPU=1, also under the name that Unsloth's guides give it; "": not set.
std::string forces_single_gpu(const Environment& env) {
  for (const char* name : {"FORCE_SINGLE_GPU", "UNSLOTH_FORCE_SINGLE_GPU"}) {
    const auto setting = env.find(name);
    if (setting == env.end()) continue;
    const std::string value = ascii_lower(setting->second);
    if (!value.empty() && value != "0" && value != "false" && value != "no")
      return fmt::format("{}={}", name, setting->second);
  }
  return {};
}

/// Leaves one process, unless the command line says how many.
void apply_single_gpu(const LaunchRequest& request, const Environment& env,
                      std::vector<VisibleGpu>& gpus, std::vector<std::string>& notes) {
  const std::string forced = forces_single_gpu(env);
  if (forced.empty()) return;
  if (!request.gpus.empty() ||
      (request.nproc_per_node != "auto" && request.nproc_per_node != "gpu")) {
    notes.push_back(forced + " has no effect: the command line says how many processes to start");
    return;
  }
  if (gpus.size() > 1) gpus.resize(1);
  notes.push_back(fmt::format("{}: one process{}", forced, gpus.empty() ? "" : " on one GPU"));
}

/// The GPUs to train on; empty: the CPU.
std::vector<VisibleGpu> choose_gpus(const LaunchRequest& request, const Machine& machine,
                                    std::vector<std::string>& notes) {
  if (request.device == "cpu" || request.nproc_per_node == "cpu") {
    if (!request.gpus.empty()) {
      throw ConfigError("--gpus cannot be used with --device cpu or --nproc-per-node cpu",
                        "command line", "remove one of them");
    }
    return {};
  }
  const auto visible = visible_gpus(machine.gpus, machine.env);
  const bool demanded = demands_gpus(request);
  if (visible.empty() && demanded) {
    const std::string why = !machine.gpus.gpus.empty()     ? "CUDA_VISIBLE_DEVICES hides every GPU"
                            : machine.gpus.problem.empty() ? "none was found"
                                                           : machine.gpus.problem;
    throw ConfigError("a GPU was requested, but " + why,
                      request.gpus.empty() ? "--device cuda" : "--gpus " + request.gpus,
                      "see `sftrun gpu-info`; --device cpu trains on the CPU");
  }
  if (visible.empty() && !machine.amd.empty()) notes.push_back(machine.amd);
  if (!visible.empty() && !machine.can_use_gpus) {
    const std::string text =
        fmt::format("{} found, but sftrun was built without CUDA", counted(visible.size(), "GPU"));
    if (demanded)
      throw ConfigError(
          text, {}, "build it on a machine with a CUDA compiler (make build), or use --device cpu");
    notes.push_back(text + ": training on the CPU");
    return {};
  }
  auto chosen = select_gpus(visible, request.gpus);
  refuse_old(machine.gpus, chosen);
  return chosen;
}

int num_workers(const LaunchRequest& request, const Machine& machine, size_t num_gpus) {
  if (request.is_one_process &&
      (request.nproc_per_node == "auto" || request.nproc_per_node == "gpu"))
    return 1;
  if (request.nproc_per_node == "auto" || request.nproc_per_node == "gpu") {
    return std::max(1, static_cast<int>(num_gpus));
  }
  if (request.nproc_per_node == "cpu") return std::max(1, static_cast<int>(machine.available_cpus));
  const auto count = parse_int(request.nproc_per_node);
  if (!count || *count < 1 || *count > 4096) {
    throw ConfigError(fmt::format("--nproc-per-node {} is neither auto nor a number of workers",
                                  request.nproc_per_node),
                      "--nproc-per-node " + request.nproc_per_node,
                      "write auto, or a number of at least 1");
  }
  const bool too_many = num_gpus > 0 && *count > static_cast<int64_t>(num_gpus);
  if (too_many && !request.may_share_gpus) {
    throw ConfigError(
        fmt::format("{} workers, but only {}", *count, counted(num_gpus, "GPU")),
        "--nproc-per-node " + request.nproc_per_node,
        "start one worker per GPU (--nproc-per-node auto), train on the CPU (--device cpu), "
        "or let workers share a GPU over Gloo (parallel.backend=gloo)");
  }
  return static_cast<int>(*count);
}

void check_nodes(const LaunchRequest& request) {
  if (request.nnodes < 1 || request.node_rank < 0 || request.node_rank >= request.nnodes) {
    throw ConfigError(
        fmt::format("--node-rank {} with --nnodes {}", request.node_rank, request.nnodes),
        "command line",
        "set --node-rank to a different number from 0 to --nnodes - 1 on each node");
  }
  if (request.nnodes > 1 && request.master_addr.empty()) {
    throw ConfigError("--nnodes requires --master-addr",
                      "--nnodes " + std::to_string(request.nnodes),
                      "set the address of machine 0 on every machine: --master-addr HOST");
  }
  if (request.master_port < 0 || request.master_port > 65535) {
    throw ConfigError(fmt::format("--master-port {} is not a port", request.master_port),
                      "command line", "choose one from 1 to 65535, or remove the flag");
  }
}

/// CPU binding can be switched off, in case another tool does it.
bool may_bind(const Environment& env) {
  const auto setting = env.find("SFTRUN_CPU_BIND");
  return setting == env.end() || setting->second != "none";
}

/// OMP_NUM_THREADS of the user, as workers read it; nullopt: not set, or no number.
std::optional<int> threads_set_by_user(const Environment& env) {
  const auto setting = env.find("OMP_NUM_THREADS");
  if (setting == env.end()) return std::nullopt;
  const std::optional<int64_t> threads = parse_int(setting->second);
  if (!threads || *threads <= 0) return std::nullopt;
  return static_cast<int>(std::min<int64_t>(*threads, std::numeric_limits<int>::max()));
}

void assign_cpus(LaunchPlan& plan, const Machine& machine, const std::vector<VisibleGpu>& gpus) {
  std::vector<int> nodes(static_cast<size_t>(plan.local_world_size), -1);
  for (size_t i = 0; i < nodes.size() && !gpus.empty(); ++i) {
    const int index = gpus[i % gpus.size()].index;
    if (index >= 0) nodes[i] = machine.gpus.gpus[static_cast<size_t>(index)].numa_node;
  }
  if (may_bind(machine.env)) plan.cpus = deal_cpus(machine.cpus, nodes);
  const double share = machine.available_cpus / plan.local_world_size;
  plan.threads_per_worker = std::max(1, static_cast<int>(std::floor(share)));
  for (const auto& cpus : plan.cpus) {
    plan.threads_per_worker = std::min(plan.threads_per_worker, static_cast<int>(cpus.size()));
  }
  plan.threads_per_worker = threads_set_by_user(machine.env).value_or(plan.threads_per_worker);
  if (machine.available_cpus < static_cast<double>(machine.cpus.size())) {
    plan.notes.push_back(fmt::format("the CPU quota of {:g} (of {} CPUs) is shared by {}",
                                     machine.available_cpus, machine.cpus.size(),
                                     counted(plan.local_world_size, "worker")));
  }
}

void name_gpus(LaunchPlan& plan, const Machine& machine, const std::vector<VisibleGpu>& gpus) {
  std::vector<std::string> ids;
  for (const VisibleGpu& gpu : gpus) {
    const bool is_slice = gpu.index < 0;
    const std::string& name =
        is_slice ? gpu.id : machine.gpus.gpus[static_cast<size_t>(gpu.index)].name;
    if (plan.gpu_name.empty()) plan.gpu_name = name;
    ids.push_back(gpu.id);
    plan.gpus.push_back(is_slice ? name : fmt::format("{} ({})", gpu.id, name));
  }
  plan.cuda_visible_devices = join(ids, ",");
  if (!gpus.empty()) plan.device = "cuda";
  if (const std::string complaint = driver_complaint(machine.gpus);
      !complaint.empty() && !gpus.empty()) {
    plan.notes.push_back(complaint);
  }
}

class Socket {
 public:
  Socket() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  /// @return the port bound, 0 if that failed
  int bind(int port) const {
    const int on = 1;
    ::setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);  // as TCPStore does
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    address.sin_port = htons(static_cast<uint16_t>(port));
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = sizeof address;
    if (::bind(fd_, generic, size) != 0 || ::listen(fd_, 1) != 0) return 0;
    if (::getsockname(fd_, generic, &size) != 0) return 0;
    return ntohs(address.sin_port);
  }

 private:
  int fd_;
};

}  // namespace

Machine this_machine(bool can_use_gpus) {
  return {.gpus = query_gpus(),
          .env = current_environment(),
          .cpus = cpu_topology(allowed_cpus()),
          .available_cpus = observe::available_cpus(),
          .can_use_gpus = can_use_gpus,
          .amd = amd_complaint()};
}

LaunchPlan make_plan(const LaunchRequest& request, const Machine& machine) {
  check_nodes(request);
  LaunchPlan plan{
      .nnodes = request.nnodes, .node_rank = request.node_rank, .master_port = request.master_port};
  if (!request.master_addr.empty()) plan.master_addr = request.master_addr;
  if (plan.nnodes > 1 && plan.master_port == 0) plan.master_port = kTorchrunPort;
  auto gpus = choose_gpus(request, machine, plan.notes);
  apply_single_gpu(request, machine.env, gpus, plan.notes);
  plan.local_world_size = num_workers(request, machine, gpus.size());
  name_gpus(plan, machine, gpus);
  plan.workers_device = gpus.empty() || demands_gpus(request) ? plan.device : "auto";
  assign_cpus(plan, machine, gpus);
  const auto run_id = machine.env.find("TORCHELASTIC_RUN_ID");
  plan.run_id = run_id != machine.env.end() ? run_id->second : fmt::format("sftrun-{}", ::getpid());
  return plan;
}

Environment worker_environment(const LaunchPlan& plan, const Environment& base, int local_rank,
                               int master_port) {
  Environment env = base;
  env["RANK"] = std::to_string(plan.rank_of(local_rank));
  env["LOCAL_RANK"] = std::to_string(local_rank);
  env["WORLD_SIZE"] = std::to_string(plan.world_size());
  env["LOCAL_WORLD_SIZE"] = std::to_string(plan.local_world_size);
  env["GROUP_RANK"] = env["NODE_RANK"] = std::to_string(plan.node_rank);
  env["GROUP_WORLD_SIZE"] = std::to_string(plan.nnodes);
  env["MASTER_ADDR"] = plan.master_addr;
  env["MASTER_PORT"] = std::to_string(master_port);
  env["TORCHELASTIC_RUN_ID"] = plan.run_id;
  env.try_emplace("OMP_NUM_THREADS", std::to_string(plan.threads_per_worker));
  if (!plan.gpus.empty()) {
    // Indices are NVML's, in PCI order. A list that the user set keeps CUDA's own order.
    if (!base.contains("CUDA_VISIBLE_DEVICES")) env.try_emplace("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
    env["CUDA_VISIBLE_DEVICES"] = plan.cuda_visible_devices;
  }
  return env;
}

std::string describe(const LaunchPlan& plan) {
  std::string text = fmt::format("{} on {}", counted(plan.local_world_size, "worker"),
                                 plan.gpus.empty() ? "the CPU" : "GPU " + join(plan.gpus, ", "));
  if (plan.nnodes > 1) {
    text += fmt::format(", node {} of {} (world size {})", plan.node_rank, plan.nnodes,
                        plan.world_size());
  }
  text += fmt::format("; {} each", counted(plan.threads_per_worker, "thread"));
  text += fmt::format("; rendezvous {}:{}", plan.master_addr,
                      plan.master_port == 0 ? "<a free port>" : std::to_string(plan.master_port));
  for (size_t i = 0; i < plan.cpus.size(); ++i) {
    text += fmt::format("\n  rank {}: CPUs {}", plan.rank_of(static_cast<int>(i)),
                        format_cpu_list(plan.cpus[i]));
  }
  for (const std::string& note : plan.notes) text += "\n  note: " + note;
  return text;
}

int pick_free_port() {
  // Below the range from which systems take ports of outgoing connections: between this probe and
  // the workers' start, another program could get a port of that range.
  constexpr int kFirst = 15000, kCount = 15000, kTries = 64;
  std::random_device random;
  for (int i = 0; i < kTries; ++i) {
    const int candidate = kFirst + static_cast<int>(random() % kCount);
    if (is_port_free(candidate)) return candidate;
  }
  const int port = Socket().bind(0);
  if (port == 0)
    throw CommError("no free TCP port on this machine", "bind", "choose one with --master-port");
  return port;
}

bool is_port_free(int port) {
  return Socket().bind(port) == port;
}

}  // namespace sftrun::launch
