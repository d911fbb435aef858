#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "conversion.h"
#include "fsdp.h"
#include "sftrun/core/error.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/short_quotes.h"
#include "sftrun/core/strings.h"

/// Values of Accelerate's YAML that depend on others (tools/accelerate.yaml).
namespace sftrun::foreign {

extern const std::string_view kAccelerateTable;  // its table

namespace {

constexpr std::string_view kMegatron =
    "remove it, and use distributed_type FSDP, or MULTI_GPU and in the run `parallel.strategy: "
    "pipeline` with `parallel.pp`, or `tensor` with `parallel.tp`";
constexpr std::string_view kDevices = "devices are NVIDIA GPUs and CPUs";

void accelerate_mixed_precision(Conversion& conversion, const SourceKey& key) {
  const std::string word = ascii_lower(key.value.text);
  if (parse_bool(key.value.text) == false)
    return conversion.set(key, "model.dtype", "fp32", /*is_firm=*/false);
  if (word == "bf16" || word == "fp16") return conversion.set(key, "model.dtype", word);
  if (word == "fp8") {
    return conversion.refuse(
        key, "`mixed_precision` is fp8, which is not supported",
        "set it to bf16; `tuning.quant: fp8` in the run stores a frozen base in "
        "FP8 and multiplies in FP8");
  }
  conversion.refuse(key, fmt::format("`mixed_precision` is {}", describe(key.value)),
                    "write no, fp16 or bf16");
}

void accelerate_environment(Conversion& conversion, const SourceKey& key) {
  if (key.value.text == "LOCAL_MACHINE")
    return conversion.note_no_meaning(key, "sftrun starts its processes on this machine");
  conversion.refuse(key, fmt::format("`compute_environment` is {}", describe(key.value)),
                    "set it to LOCAL_MACHINE");
}

/// A file of DeepSpeed, beside this one or in the current directory.
void accelerate_deepspeed_file(Conversion& conversion, const SourceKey& key) {
  if (is_off(key.value)) return;
  const std::filesystem::path path = conversion.source().path_beside(key.value.text);
  if (!is_plain_file(path)) {
    return conversion.refuse(
        key, fmt::format("`{}`: no such file: {}", key.name, shown_path(key.value.text)),
        "paths are relative to the current directory, or to the directory of this "
        "file");
  }
  conversion.include(read_foreign_file(path, Tool::kDeepSpeed));
}

/// The size of an axis.
struct Division {
  const char *key, *field;
  const char* strategy;  ///< of a run that has this axis alone; "": what `distributed_type` says
};
constexpr const char* kCopies = "parallelism_config.parallelism_config_dp_replicate_size";
constexpr const char* kShards = "parallelism_config.parallelism_config_dp_shard_size";
constexpr std::array<Division, 6> kDivisions = {
    {{kCopies, "parallel.dp_replicate", ""},
     {kShards, "parallel.dp_shard", ""},
     {"parallelism_config.parallelism_config_pp_size", "parallel.pp", "pipeline"},
     {"parallelism_config.parallelism_config_cp_size", "parallel.cp", ""},
     {"parallelism_config.parallelism_config_sp_size", "parallel.cp", ""},
     {"parallelism_config.parallelism_config_tp_size", "parallel.tp", "tensor"}}};

int64_t size_of(Conversion& conversion, const char* key) {
  return conversion.count_of(key, 1).value_or(1);
}

int64_t product_of_sizes(Conversion& conversion) {
  int64_t product = 1;
  for (const Division& division : kDivisions) product *= size_of(conversion, division.key);
  return product;
}

/// Whether the file says that several groups of devices have a copy each. Without their number and
/// that of the processes it is not known, and `hybrid` is right for one copy, too.
bool may_have_copies(Conversion& conversion) {
  if (conversion.find(kCopies)) return size_of(conversion, kCopies) > 1;
  const auto processes = conversion.count_of("num_processes", 1);
  return conversion.has("parallel.dp_shard") &&
         processes.value_or(0) != product_of_sizes(conversion);
}

void set_fsdp_strategy(Conversion& conversion, const SourceKey& type) {
  constexpr const char* kSharding = "fsdp_config.fsdp_sharding_strategy";
  constexpr const char* kReshard = "fsdp_config.fsdp_reshard_after_forward";
  if (may_have_copies(conversion)) return conversion.set(type, "parallel.strategy", "hybrid");
  bool is_set = false;
  for (const char* name : {kSharding, kReshard}) {
    const auto key = conversion.find(name);
    if (!key) continue;
    is_set = true;
    const std::string_view strategy = strategy_of_fsdp(key->value.text);
    if (strategy.empty()) {
      conversion.refuse(
          *key, fmt::format("`{}` is {}", name, describe(key->value)),
          "write FULL_SHARD, SHARD_GRAD_OP, NO_SHARD or HYBRID_SHARD; for FSDP 2 true or "
          "false");
      continue;
    }
    conversion.set(*key, "parallel.strategy", strategy);
    if (ascii_lower(key->value.text) == "hybrid_shard_zero2" || key->value.text == "5")
      conversion.note_lost(*key,
                           "hybrid gathers weights again for the backward pass: less memory, the "
                           "same losses");
  }
  if (!is_set) conversion.set(type, "parallel.strategy", "fsdp");
}

void set_deepspeed_strategy(Conversion& conversion, const SourceKey& type) {
  constexpr int64_t kDefaultStage = 2;
  constexpr std::array<std::string_view, 4> kStrategies = {"ddp", "zero1", "zero2", "zero3"};
  const auto key = conversion.find("deepspeed_config.zero_stage");
  if (!key) {
    if (!conversion.has("parallel.strategy"))
      conversion.set(type, "parallel.strategy", kStrategies[kDefaultStage]);
    return;
  }
  const auto stage = conversion.count_of(key->name, 0);
  if (!stage) return;
  if (*stage >= static_cast<int64_t>(kStrategies.size()))
    return conversion.refuse(*key, fmt::format("`{}` is {}", key->name, *stage),
                             "write 0, 1, 2 or 3");
  conversion.set(*key, "parallel.strategy", kStrategies[static_cast<size_t>(*stage)]);
}

/// A section that belongs to another distributed_type.
void refuse_section_of_another_type(Conversion& conversion, const SourceKey& type) {
  constexpr auto kOwners = std::to_array<WordPair>({{"fsdp_config", "FSDP"},
                                                    {"deepspeed_config", "DEEPSPEED"},
                                                    {"megatron_lm_config", "MEGATRON_LM"}});
  for (const WordPair& owner : kOwners) {
    const auto section = conversion.find(owner.theirs);
    if (!section || is_off(section->value) || type.value.text == owner.ours) continue;
    const std::string first =
        section->value.keys.empty() ? "" : "." + section->value.keys.front().text;
    conversion.refuse(
        type, *section,
        fmt::format("`distributed_type` is {}, but `{}{}` is given", type.value.text, owner.theirs,
                    first),
        fmt::format("set distributed_type to {}, or remove {}", owner.ours, owner.theirs));
  }
}

/// The sizes of the axes, beside what `distributed_type` says of the copies.
/// @return the strategy of a run that has stages or parts of matrices; empty: none, or both
std::string set_divisions(Conversion& conversion, const SourceKey& type) {
  const std::string& word = type.value.text;
  std::vector<std::string> strategies;
  const bool divides = product_of_sizes(conversion) > 1;
  for (const Division& division : kDivisions) {
    const bool is_one_copy =
        divides && division.key == kCopies && conversion.find(kCopies).has_value();
    if (size_of(conversion, division.key) == 1 && !is_one_copy) continue;
    const SourceKey size = *conversion.find(division.key);
    if (word == "NO" || parse_bool(word) == false) {
      conversion.refuse(
          type, size,
          fmt::format("`{}` is {}, but `distributed_type` is {}", size.name, size.value.text, word),
          "set distributed_type to MULTI_GPU, FSDP or DEEPSPEED, or the size to 1");
      continue;
    }
    conversion.set(size, division.field, size.value);
    if (*division.strategy != '\0') strategies.emplace_back(division.strategy);
  }
  return strategies.size() == 1 ? strategies.front() : "";
}

void set_strategy(Conversion& conversion, const SourceKey& type) {
  const std::string& word = type.value.text;
  const std::string division = set_divisions(conversion, type);
  if (word == "NO" || parse_bool(word) == false) return;
  if (word == "MULTI_GPU" || word == "MULTI_CPU")
    return conversion.set(type, "parallel.strategy",
                          conversion.has("parallel.dp_shard")
                              ? (may_have_copies(conversion) ? "hybrid" : "fsdp")
                          : division.empty() ? "ddp"
                                             : division);
  if (word == "FSDP") return set_fsdp_strategy(conversion, type);
  if (word == "DEEPSPEED") return set_deepspeed_strategy(conversion, type);
  if (word == "MEGATRON_LM")
    return conversion.refuse(type, "`distributed_type` is MEGATRON_LM", std::string(kMegatron));
  conversion.refuse(type, fmt::format("`distributed_type` is {}", describe(type.value)),
                    fmt::format("{}: write NO, MULTI_GPU, MULTI_CPU, FSDP or DEEPSPEED", kDevices));
}

/// Sizes whose product is not the number of processes. Axes that the file does not name have what the
/// others leave.
void refuse_sizes_that_do_not_fit(Conversion& conversion, const SourceKey& type) {
  const auto processes = conversion.count_of("num_processes", 1);
  const int64_t product = product_of_sizes(conversion);
  if (!processes || product == 1) return;
  const bool shards_rest =
      !conversion.find(kShards) && (type.value.text == "FSDP" || type.value.text == "DEEPSPEED");
  const bool is_complete = conversion.find(kCopies) && !shards_rest;
  if (is_complete ? *processes == product : *processes % product == 0) return;
  std::vector<std::string> sizes;
  std::optional<SourceKey> first;
  for (const Division& division : kDivisions) {
    const int64_t size = size_of(conversion, division.key);
    if (size == 1) continue;
    const SourceKey key = *conversion.find(division.key);
    if (!first) first.emplace(key);
    sizes.push_back(fmt::format("`{}` {}", key.name.substr(key.name.rfind('.') + 1), size));
  }
  conversion.refuse(*first, *conversion.find("num_processes"),
                    fmt::format("{} need {}, but `num_processes` is {}", join(sizes, " x "),
                                counted(product, "process"), *processes),
                    fmt::format("set num_processes to {}{}, or change the sizes",
                                is_complete ? "" : "a multiple of ", product));
}

/// num_processes counts the processes of all machines.
void set_processes(Conversion& conversion, const SourceKey& type) {
  const auto processes = conversion.count_of("num_processes", 1);
  const int64_t machines = conversion.count_of("num_machines", 1).value_or(1);
  const bool is_one = type.value.text == "NO" || parse_bool(type.value.text) == false;
  if (is_one) {
    if (processes.value_or(1) > 1)
      conversion.refuse(
          type, *conversion.find("num_processes"),
          fmt::format("`distributed_type` is NO, but `num_processes` is {}", *processes),
          "set distributed_type to MULTI_GPU, or num_processes to 1");
    conversion.launch.processes = 1;
    return;
  }
  if (!processes) return;
  if (*processes % machines != 0) {
    return conversion.refuse(
        *conversion.find("num_processes"), *conversion.find("num_machines"),
        fmt::format("`num_processes` {} is not a multiple of `num_machines` {}", *processes,
                    machines),
        fmt::format("set num_processes to a multiple of {}: it counts the "
                    "processes of all machines",
                    machines));
  }
  conversion.launch.processes = *processes / machines;
}

void set_machines(Conversion& conversion) {
  const auto machines = conversion.count_of("num_machines", 1);
  const auto rank = conversion.count_of("machine_rank", 0);
  const auto port = conversion.count_of("main_process_port", 0);
  const std::string address = conversion.text_of("main_process_ip");
  if (rank && *rank >= machines.value_or(1)) {
    conversion.refuse(*conversion.find("machine_rank"),
                      fmt::format("`machine_rank` {} is not below `num_machines` {}", *rank,
                                  machines.value_or(1)),
                      "number the machines from 0, or raise num_machines");
  }
  const std::string suffix = port.value_or(0) > 0 ? fmt::format(":{}", *port) : "";
  if (machines.value_or(1) == 1) {
    if (!suffix.empty()) conversion.launch.master = suffix;
    return;
  }
  conversion.launch.nodes = machines;
  conversion.launch.node_rank = rank;
  if (!address.empty()) conversion.launch.master = address + suffix;
}

void set_devices(Conversion& conversion, const SourceKey& type) {
  const auto cpu = conversion.find("use_cpu");
  if (cpu && !parse_bool(cpu->value.text))
    conversion.refuse(*cpu, fmt::format("`use_cpu` is {}", describe(cpu->value)),
                      "write true or false");
  if (type.value.text == "MULTI_CPU" || (cpu && parse_bool(cpu->value.text) == true)) {
    if (type.value.text == "MULTI_GPU")
      conversion.refuse(type, *cpu, "`distributed_type` is MULTI_GPU, but `use_cpu` is true",
                        "set distributed_type to MULTI_CPU, or use_cpu to false");
    conversion.launch.devices = "cpu";
    return;
  }
  const auto ids = conversion.find("gpu_ids");
  if (!ids || ids->value.text == "all") return;
  const auto count = static_cast<int64_t>(split(ids->value.text, ',').size());
  if (count < conversion.launch.processes.value_or(count)) {
    conversion.refuse(*ids,
                      fmt::format("`gpu_ids` names {}, but a machine has {} processes",
                                  counted(count, "GPU"), *conversion.launch.processes),
                      "name as many GPUs as processes, or write all");
  }
  if (count > 1)
    conversion.launch.devices = ids->value.text;
  else if (ids->value.text != "0")
    conversion.note_lost(
        *ids, fmt::format("set CUDA_VISIBLE_DEVICES={} in the environment", ids->value.text));
}

void accelerate_finish(Conversion& conversion) {
  const auto type = conversion.find("distributed_type");
  if (!type) {
    conversion.problems.push_back({"`distributed_type` is missing", conversion.file().string(),
                                   "write NO, MULTI_GPU, MULTI_CPU, FSDP or DEEPSPEED"});
    return;
  }
  refuse_section_of_another_type(conversion, *type);
  set_strategy(conversion, *type);
  set_processes(conversion, *type);
  refuse_sizes_that_do_not_fit(conversion, *type);
  set_machines(conversion);
  set_devices(conversion, *type);
  conversion.launch.file = conversion.file();
}

constexpr auto kAccelerateConverters = std::to_array<Converter>({
    {"environment", accelerate_environment},
    {"mixed_precision", accelerate_mixed_precision},
    {"deepspeed_file", accelerate_deepspeed_file},
});

}  // namespace

const ToolCode& accelerate() {
  static const ToolCode code{.tool = Tool::kAccelerate,
                             .name = "Accelerate",
                             .word = "accelerate",
                             .table = kAccelerateTable,
                             .converters = kAccelerateConverters,
                             .finish = accelerate_finish,
                             .is_strict = true};
  return code;
}

}  // namespace sftrun::foreign
