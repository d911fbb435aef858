#include "sftrun/launch/machine_check.h"

#include <fmt/format.h>

#include <algorithm>

#include "sftrun/core/plural.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"

namespace sftrun::launch {
namespace {

constexpr uint64_t kMiB = 1ULL << 20, kGiB = 1ULL << 30;

class Checks {
 public:
  explicit Checks(const MachineState& state) : state_(state) {}

  std::vector<Check> run() && {
    driver();
    gpus();
    nccl();
    peer_access();
    for (const GpuInfo& gpu : state_.gpus.gpus) gpu_health(gpu);
    cpu();
    memory();
    shared_memory();
    for (const DiskSpace& disk : state_.disks) space(disk);
    limits();
    network();
    variables();
    date();
    return std::move(found_);
  }

 private:
  bool has_gpus() const { return !state_.gpus.gpus.empty(); }
  size_t num_gpus() const { return state_.gpus.gpus.size(); }
  void ok(const char* name, std::string finding) {
    found_.push_back({name, Verdict::kOk, std::move(finding), {}});
  }
  void warn(const char* name, std::string finding, std::string remedy) {
    found_.push_back({name, Verdict::kWarning, std::move(finding), std::move(remedy)});
  }
  void problem(const char* name, std::string finding, std::string remedy) {
    found_.push_back({name, Verdict::kProblem, std::move(finding), std::move(remedy)});
  }

  void driver() {
    if (state_.gpus.driver_version.empty()) {
      if (has_gpus())
        problem(
            "driver",
            "there are NVIDIA GPUs, but the driver's library does not answer: " +
                state_.gpus.problem,
            "install the NVIDIA driver 580 or newer; in a container start it with `--gpus all`");
      else
        ok("driver", "no NVIDIA driver");
      return;
    }
    if (const std::string complaint = driver_complaint(state_.gpus); !complaint.empty())
      return problem("driver", complaint, "update the NVIDIA driver to 580 or newer");
    ok("driver", "NVIDIA " + state_.gpus.driver_version);
  }

  void gpus() {
    if (!has_gpus()) {
      if (!state_.amd.empty())
        return warn("GPUs", state_.amd, "training runs on the CPU; use a machine with NVIDIA GPUs");
      return ok("GPUs",
                fmt::format("no GPU was found: {}; training runs on the CPU", state_.gpus.problem));
    }
    if (!state_.has_cuda_kernels)
      problem(
          "GPUs",
          fmt::format("{} found, but sftrun was built without CUDA", counted(num_gpus(), "GPU")),
          "build it on a machine with a CUDA compiler: `scripts/bootstrap.sh --cuda always`, then "
          "`make build`");
    else
      ok("GPUs", fmt::format("{}: {}", counted(num_gpus(), "GPU"), state_.gpus.gpus.front().name));
    for (const GpuInfo& gpu : state_.gpus.gpus) {
      if (gpu.is_too_old())
        problem("GPUs",
                fmt::format("GPU {} ({}) is older than sm_80 (Ampere)", gpu.index, gpu.name),
                "leave it out with --gpus, or train on the CPU with --device cpu");
      if (gpu.name != state_.gpus.gpus.front().name)
        warn("GPUs",
             fmt::format("GPU {} is another model ({}): the slowest sets the pace", gpu.index,
                         gpu.name),
             "train on GPUs of one model, with --gpus");
    }
  }

  void nccl() {
    if (num_gpus() < 2) return;
    if (state_.nccl_version.empty())
      return warn("NCCL", "NCCL was not found next to LibTorch",
                  "use the torch package with CUDA: `scripts/bootstrap.sh`");
    ok("NCCL", state_.nccl_version);
  }

  /// The pairs of GPUs for which `holds`, as "0-1, 0-2".
  template <class Holds>
  std::vector<std::string> pairs(Holds&& holds) const {
    std::vector<std::string> found;
    for (size_t i = 0; i < num_gpus(); ++i)
      for (size_t j = i + 1; j < num_gpus(); ++j)
        if (holds(i, j)) found.push_back(fmt::format("{}-{}", i, j));
    return found;
  }

  void peer_access() {
    if (num_gpus() < 2) return;
    const auto& access = state_.gpus.peer_access;
    const auto without = pairs([&](size_t i, size_t j) {
      return i < access.size() && access[i][j].has_value() && !*access[i][j];
    });
    if (!without.empty())
      warn("peer access",
           fmt::format("the driver allows no direct copies between GPUs {}", join(without, ", ")),
           "switch off IOMMU and ACS in the BIOS if the mainboard allows it; GeForce cards of the "
           "40 "
           "and 50 series have no peer access, and copy through the host");
    const auto far = pairs([&](size_t i, size_t j) { return state_.gpus.links[i][j] == "SYS"; });
    if (!far.empty())
      warn("peer access",
           fmt::format("GPUs {} are connected through the link between the CPU sockets (SYS)",
                       join(far, ", ")),
           "prefer GPUs of one socket, with --gpus; `sftrun gpu-info` shows the topology");
    if (without.empty() && far.empty()) ok("peer access", "the GPUs reach each other directly");
  }

  void gpu_health(const GpuInfo& gpu) {
    constexpr int kHot = 85, kBusyPercent = 50;
    constexpr double kSlowClock = 0.6, kMinFree = 0.9;
    const auto named = [&](const char* what) { return fmt::format("GPU {} {}", gpu.index, what); };
    if (gpu.temperature_c.value_or(0) >= kHot)
      warn("clocks", fmt::format("{} {} °C: it lowers its clock", named("has"), *gpu.temperature_c),
           "check fans and air flow, or lower its power limit with `nvidia-smi -pl`");
    if (gpu.utilization_percent.value_or(0) > kBusyPercent && gpu.sm_clock_mhz &&
        gpu.sm_clock_max_mhz && *gpu.sm_clock_mhz < kSlowClock * *gpu.sm_clock_max_mhz)
      warn("clocks",
           fmt::format("{} {} of {} MHz while it works", named("runs at"), *gpu.sm_clock_mhz,
                       *gpu.sm_clock_max_mhz),
           "check power limit, temperature and locked clocks with `nvidia-smi -q -d PERFORMANCE`");
    if (gpu.pcie_width && gpu.pcie_width_max && *gpu.pcie_width < *gpu.pcie_width_max)
      warn("PCIe",
           fmt::format("{} x{} of x{}", named("is connected with PCIe"), *gpu.pcie_width,
                       *gpu.pcie_width_max),
           "put the card into a slot with all lanes; data and offloaded weights move slower");
    if (gpu.memory_free_bytes && gpu.memory_total_bytes &&
        static_cast<double>(*gpu.memory_free_bytes) <
            kMinFree * static_cast<double>(*gpu.memory_total_bytes))
      warn("GPU memory",
           fmt::format("{} {} of {} free: other programs use it", named("has"),
                       format_bytes(*gpu.memory_free_bytes), format_bytes(*gpu.memory_total_bytes)),
           "end them (`nvidia-smi` lists them), or choose other GPUs with --gpus");
  }

  void cpu() {
    const bool has_quota = state_.available_cpus < static_cast<double>(state_.allowed_cpus);
    const std::string usable = fmt::format(
        "{}: {:g} of {} may be used", state_.cpu_model.empty() ? "CPU" : state_.cpu_model,
        state_.available_cpus, counted(state_.logical_cpus, "logical processor"));
    const auto has = [&](const char* feature) {
      return std::find(state_.cpu_features.begin(), state_.cpu_features.end(), feature) !=
             state_.cpu_features.end();
    };
    if (!state_.cpu_features.empty() && !has("avx2"))
      warn("CPU", usable + ", without AVX2: training on it is slow",
           "use a CPU from 2015 or newer");
    else if (has_gpus() && state_.available_cpus < 2 * static_cast<double>(num_gpus()))
      warn("CPU",
           fmt::format("{}, fewer than two for each of {}", usable, counted(num_gpus(), "GPU")),
           has_quota ? "raise the CPU quota of the container" : "give the job more processors");
    else
      ok("CPU", usable);
  }

  void memory() {
    constexpr uint64_t kMin = 2 * kGiB;
    const std::string finding =
        fmt::format("{} available of {}{}", format_bytes(state_.memory.available_bytes),
                    format_bytes(state_.memory.total_bytes),
                    state_.memory.limited_by_cgroup ? " (limit of the control group)" : "");
    if (state_.memory.available_bytes < kMin)
      return warn("memory", finding,
                  "end other programs, or raise the memory limit of the container");
    ok("memory", finding);
  }

  void shared_memory() {
    constexpr uint64_t kMin = 512 * kMiB;
    if (!state_.shm_free_bytes)
      return num_gpus() < 2
                 ? ok("/dev/shm", "not found; only NCCL on several GPUs needs it")
                 : problem("/dev/shm", "not found, and NCCL needs it", "mount a tmpfs at /dev/shm");
    const std::string finding = format_bytes(*state_.shm_free_bytes) + " free";
    if (num_gpus() >= 2 && *state_.shm_free_bytes < kMin)
      return warn("/dev/shm", finding + ": NCCL may fail between GPUs without peer access",
                  "start the container with `--shm-size 8g` or `--ipc host`");
    ok("/dev/shm", finding);
  }

  void space(const DiskSpace& disk) {
    constexpr uint64_t kMin = kGiB, kUsual = 20 * kGiB;
    const std::string finding = fmt::format("{} free for {} in {}", format_bytes(disk.free_bytes),
                                            disk.use, disk.path.string());
    const char* remedy = disk.use == "runs" ? "free space, or set output.dir to another disk"
                                            : "free space, or set HF_HOME to another disk";
    if (disk.free_bytes < kMin)
      problem("disk", finding, remedy);
    else if (disk.free_bytes < kUsual)
      warn("disk", finding + ": little for checkpoints and models", remedy);
    else
      ok("disk", finding);
  }

  void limits() {
    constexpr uint64_t kOpenFiles = 4096, kProcesses = 4096;
    const ProcessLimits& limits = state_.limits;
    if (limits.open_files && *limits.open_files < kOpenFiles)
      warn("open files",
           fmt::format("at most {}: data sets of many files and runs of many ranks need "
                       "more",
                       *limits.open_files),
           "raise it: `ulimit -n 65536`, or nofile in /etc/security/limits.conf");
    else
      ok("open files",
         limits.open_files ? fmt::format("at most {}", *limits.open_files) : "unlimited");
    if (limits.processes && *limits.processes < kProcesses)
      warn("processes",
           fmt::format("at most {} processes and threads of this user", *limits.processes),
           "raise it: `ulimit -u 65536`, or nproc in /etc/security/limits.conf");
    else
      ok("processes",
         limits.processes ? fmt::format("at most {}", *limits.processes) : "unlimited");
    if (!limits.locked_memory_bytes)
      ok("locked memory", "unlimited");
    else if (state_.has_infiniband)
      problem("locked memory",
              fmt::format("at most {}, and InfiniBand registers more",
                          format_bytes(*limits.locked_memory_bytes)),
              "set memlock to unlimited in /etc/security/limits.conf; in a container `--ulimit "
              "memlock=-1`");
    else
      ok("locked memory", fmt::format("at most {}; only InfiniBand needs more",
                                      format_bytes(*limits.locked_memory_bytes)));
  }

  std::string variable_of(const std::string& name) const {
    const auto found = state_.env.find(name);
    return found == state_.env.end() ? "" : found->second;
  }

  void network() {
    const auto has = [&](const std::string& name) {
      return std::find(state_.interfaces.begin(), state_.interfaces.end(), name) !=
             state_.interfaces.end();
    };
    if (!has("lo"))
      problem("network", "the loopback interface is down: the ranks of one machine use it",
              "ip link set lo up");
    else
      ok("network", fmt::format("interfaces {}{}", join(state_.interfaces, ", "),
                                state_.has_infiniband ? ", InfiniBand" : ""));
    if (const std::string name = variable_of("GLOO_SOCKET_IFNAME"); !name.empty() && !has(name))
      problem("network", fmt::format("GLOO_SOCKET_IFNAME={}, and no such interface is up", name),
              "unset it, or name one of " + join(state_.interfaces, ", "));
    if (const std::string names = variable_of("NCCL_SOCKET_IFNAME");
        !names.empty() && !leaves_nccl_an_interface(names))
      problem("network", fmt::format("NCCL_SOCKET_IFNAME={} leaves no interface that is up", names),
              "unset it, or name one of " + join(state_.interfaces, ", "));
  }

  /// NCCL's documentation of NCCL_SOCKET_IFNAME: beginnings of names, separated by commas; with `=`
  /// before them whole names, with `^` those that are not used.
  bool leaves_nccl_an_interface(std::string_view names) const {
    const bool excludes = names.starts_with('^');
    if (excludes) names.remove_prefix(1);
    const bool is_whole = names.starts_with('=');
    if (is_whole) names.remove_prefix(1);
    const std::vector<std::string> listed = split(names, ',');
    return std::any_of(
        state_.interfaces.begin(), state_.interfaces.end(), [&](const std::string& interface) {
          const bool is_listed =
              std::any_of(listed.begin(), listed.end(), [&](const std::string& name) {
                return is_whole ? interface == name : interface.starts_with(name);
              });
          return is_listed != excludes;
        });
  }

  void variables() {
    struct Setting {
      const char *name, *value, *effect, *remedy;
    };
    constexpr Setting kSlow[] = {
        {"NCCL_P2P_DISABLE", "1", "NCCL copies between GPUs through the host",
         "unset it, unless runs hang without it"},
        {"NCCL_IB_DISABLE", "1", "NCCL does not use InfiniBand", "unset it where InfiniBand works"},
        {"NCCL_SHM_DISABLE", "1", "NCCL does not use shared memory", "unset it"},
        {"CUDA_LAUNCH_BLOCKING", "1", "the CPU waits for every CUDA kernel",
         "unset it after debugging"},
        {"OMP_NUM_THREADS", "1", "each process computes on one CPU thread",
         "unset it: sftrun divides the processors itself"}};
    bool is_fine = true;
    for (const Setting& setting : kSlow) {
      if (variable_of(setting.name) != setting.value) continue;
      is_fine = false;
      warn("environment", fmt::format("{}={}: {}", setting.name, setting.value, setting.effect),
           setting.remedy);
    }
    const auto visible = state_.env.find("CUDA_VISIBLE_DEVICES");
    if (visible != state_.env.end() && has_gpus() && visible->second.empty()) {
      is_fine = false;
      warn("environment", "CUDA_VISIBLE_DEVICES is empty: no GPU is used", "unset it");
    }
    if (is_fine) ok("environment", "no variable that makes runs slow");
  }

  void date() {
    constexpr int64_t kEarliest = 2025;
    if (state_.year < kEarliest)
      warn("date",
           fmt::format("the system's clock says {}: certificates of downloads are refused",
                       state_.year),
           "set the clock");
  }

  const MachineState& state_;
  std::vector<Check> found_;
};

}  // namespace

std::string_view verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kOk:
      return "ok";
    case Verdict::kWarning:
      return "warning";
    case Verdict::kProblem:
      return "problem";
  }
  return "";
}

std::vector<Check> check_machine(const MachineState& state) {
  return Checks(state).run();
}

}  // namespace sftrun::launch
