#include <fmt/format.h>

#include "cli.h"
#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"
#include "sftrun/launch/launch_plan.h"

/// Flags of the commands that run on several devices.
namespace sftrun::app {

launch::LaunchRequest LaunchFlags::request() const {
  return {.nproc_per_node = nproc_per_node,
          .gpus = gpus,
          .device = device,
          .nnodes = nnodes,
          .node_rank = node_rank,
          .master_addr = master_addr,
          .master_port = master_port};
}

int64_t to_number(const std::string& text, int64_t fallback) {
  int64_t number = fallback;
  if (!other_base_error(text).empty()) return fallback;
  return CLI::detail::lexical_cast(text, number) ? number : fallback;
}

namespace {

constexpr int64_t kMaxProcesses = 65536;  // of a machine; their products are numbers of ranks

bool is_count(const std::string& text) {
  return to_number(text, 0) >= 1 && to_number(text, 0) <= kMaxProcesses;
}

}  // namespace

CLI::Validator process_count() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        if (std::string error = other_base_error(text); !error.empty()) return error;
        if (text == "auto" || text == "gpu" || text == "cpu" || is_count(text)) return {};
        return fmt::format("`{}` is neither auto nor a whole number from 1 to {}", excerpt(text),
                           kMaxProcesses);
      },
      "auto|N");
}

namespace {

CLI::Validator gpu_list() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        for (const std::string& item : split(text, ',')) {
          if (std::string error = other_base_error(item); !error.empty()) return error;
          if (to_number(item, -1) < 0 || to_number(item, -1) > kMaxProcesses)
            return fmt::format("`{}` is neither a number of GPUs nor a list like 0,2,3",
                               excerpt(text));
        }
        if (text == "0")
          return "0 would be a number of GPUs; to use only GPU 0 set CUDA_VISIBLE_DEVICES=0, to "
                 "use none "
                 "--device cpu";
        return {};
      },
      "N|0,2,3");
}

void add_division_flags(CLI::App& command, DivisionFlags& flags) {
  command
      .add_option(
          "--strategy", flags.strategy,
          "How to divide a model that is too large for one device. Over processes: tensor (parts "
          "of each matrix), pipeline (layers), fsdp (shards). Over the GPUs of one process: "
          "device_map (layers). auto: by the memory of the devices; not divided if it fits on one")
      ->check(one_of({"auto", "tensor", "pipeline", "fsdp", "device_map"}))
      ->capture_default_str();
  command
      .add_option("--tp", flags.tp,
                  "Number of processes that divide each matrix [tensor: all processes / --pp]")
      ->check(at_least(1, kMaxProcesses));
  command
      .add_option(
          "--pp", flags.pp,
          "Number of pipeline stages [pipeline: all processes / --tp; device_map: all GPUs]")
      ->check(at_least(1, kMaxProcesses));
  command
      .add_option("--device-map", flags.device_map,
                  "Place the layers on the GPUs of one process, as in Accelerate; auto: on as few "
                  "GPUs as needed, balanced: on all")
      ->check(one_of({"auto", "balanced"}));
}

}  // namespace

void add_launch_flags(CLI::App& command, LaunchFlags& flags) {
  command
      .add_option("--nproc-per-node", flags.nproc_per_node,
                  "Worker processes on this machine; auto: one per GPU; without a GPU, one")
      ->check(process_count())
      ->capture_default_str();
  command.add_option("--gpus", flags.gpus, "Number of GPUs, or their indices [all visible]")
      ->check(gpu_list())
      ->type_name("N|0,2,3");
  command.add_option("--nnodes", flags.nnodes, "Machines in the run")
      ->check(at_least(1, kMaxMachines))
      ->capture_default_str();
  command.add_option("--node-rank", flags.node_rank, "Number of this machine, from 0")
      ->check(at_least(0, kMaxMachines))
      ->capture_default_str();
  command.add_option("--master-addr", flags.master_addr, "Address of machine 0")
      ->capture_default_str();
  command
      .add_option("--master-port", flags.master_port,
                  "Port on machine 0; 0: a free one (one machine only)")
      ->check(at_least(0, kMaxPort))
      ->capture_default_str();
}

void add_ranks_flags(CLI::App& command, LaunchFlags& launch, DivisionFlags& division,
                     std::filesystem::path& worker_request) {
  constexpr const char* kHidden = "";
  add_launch_flags(command, launch);
  add_division_flags(command, division);
  command
      .add_option("--worker-request", worker_request, "Request, from the launcher to its workers")
      ->group(kHidden);
}

void put_division(const DivisionFlags& flags, const LaunchFlags& launch, RanksRequest& request) {
  if (!flags.is_given()) return;
  if (flags.strategy == "device_map" && (launch.asks_for_several() || flags.tp)) {
    throw ConfigError(
        fmt::format("--strategy device_map divides the layers over the GPUs of one process, and "
                    "{} asks for more",
                    flags.tp ? "--tp" : "a launch flag"),
        "--strategy on the command line", "leave it out, or use --strategy pipeline");
  }
  request.parallel = {.tp = flags.tp, .pp = flags.pp};
  if (flags.strategy != "auto") request.parallel->strategy = flags.strategy;
  // Where an error about a size comes from.
  const auto flag = [](const char* name, bool is_given) {
    return fmt::format("--{} on the command line", is_given ? name : "strategy");
  };
  request.places["parallel.strategy"] = flag("strategy", true);
  request.places["parallel.tp"] = flag("tp", flags.tp.has_value());
  request.places["parallel.pp"] = flag("pp", flags.pp.has_value());
}

void check_launch_flags(const LaunchFlags& flags) {
  if (flags.node_rank >= flags.nnodes) {
    throw ConfigError(
        fmt::format("--node-rank {} is not below --nnodes {}", flags.node_rank, flags.nnodes),
        "the command line", "machines are numbered from 0");
  }
}

}  // namespace sftrun::app
