#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "fields.h"
#include "layers.h"
#include "parse_field.h"
#include "sftrun/config/machine_file.h"
#include "sftrun/config/yaml_reader.h"
#include "sftrun/core/file.h"
#include "sftrun/core/optional_file.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/user_path.h"

namespace sftrun::config {
namespace {

constexpr std::string_view kExample =
    "devices: 2, dtype: bf16, strategy: ddp, nodes: 2, master: node-a:29500";

std::string variable(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

/// Empty if there is no machine file. A file that SFTRUN_MACHINE_CONFIG names must exist.
std::filesystem::path machine_file_to_read() {
  const std::filesystem::path path = machine_file_path();
  const bool is_named = !variable("SFTRUN_MACHINE_CONFIG").empty();
  return is_named || has_optional_file(path) ? path : std::filesystem::path();
}

/// "2", "0,2,3", "1,", "auto" or "cpu" from a scalar or a list of numbers.
std::optional<Complaint> parse_devices(const Value& value, std::optional<std::string>& member) {
  std::string text = value.text;
  if (value.kind == Value::Kind::kList) {
    for (const Value& item : value.items) text += (text.empty() ? "" : ",") + item.text;
    if (value.items.size() == 1) text += ',';  // one GPU by its number
  }
  if (!is_device_list(text)) {
    return Complaint{fmt::format("is {}; it takes auto, cpu, a number or a list like [0, 2, 3]",
                                 describe(value)),
                     {}};
  }
  member = text;
  return std::nullopt;
}

std::optional<Complaint> parse_setting(const std::string& key, const Value& value,
                                       MachineSettings& settings) {
  if (value.kind == Value::Kind::kNull) return std::nullopt;
  if (key == "devices") return parse_devices(value, settings.devices);
  if (key == "nodes") return parse_field(value, between(1, kMaxDevices), settings.nodes);
  if (key == "node_rank") return parse_field(value, between(0, kMaxDevices), settings.node_rank);
  return parse_field(value, any(), settings.master);
}

/// Keys that say which machine this is, in a file that does not say how many there are: each machine
/// would train by itself.
void require_nodes(const MachineSettings& settings, Problems& problems) {
  if (settings.nodes) return;
  const bool has_rank = settings.node_rank.value_or(0) > 0;
  const bool has_host = settings.master && !settings.master->starts_with(':');
  if (!has_rank && !has_host) return;
  problems.push_back(
      {fmt::format("`{}` has no effect without `nodes`", has_rank ? "node_rank" : "master"),
       settings.file.string(),
       fmt::format("add nodes: N, the number of machines, or remove `{}`",
                   has_rank ? "node_rank" : "master")});
}

}  // namespace

std::filesystem::path machine_file_path() {
  if (const std::string given = variable("SFTRUN_MACHINE_CONFIG"); !given.empty())
    return expanded_home(given);
  std::filesystem::path base = variable("XDG_CONFIG_HOME");
  if (base.empty()) {
    const std::string home = variable("HOME");
    if (home.empty()) return {};
    base = std::filesystem::path(home) / ".config";
  }
  return base / "sftrun" / "machine.yaml";
}

bool is_device_list(const std::string& text) {
  if (text == "auto" || text == "cpu") return true;
  std::vector<std::string> numbers = split(text, ',');
  if (numbers.size() > 1 && numbers.back().empty()) numbers.pop_back();  // "1,": a list of one
  return std::all_of(numbers.begin(), numbers.end(), [](const std::string& number) {
    return !number.empty() && number.find_first_not_of("0123456789") == std::string::npos;
  });
}

std::string to_yaml(const MachineAnswers& answers) {
  std::string text =
      "# Launch settings of this machine. Every run on it reads them. Flags, environment variables "
      "and\n# the run's YAML come first (docs/configuration.md). `sftrun config init --machine` "
      "writes this file.\n";
  const auto line = [&](const char* key, const std::string& value, const char* meaning) {
    const bool is_auto = value == "auto";  // as without the key
    text += fmt::format("{}{:<24} # {}\n", is_auto ? "# " : "", fmt::format("{}: {}", key, value),
                        meaning);
  };
  line("devices", answers.devices, "auto: all GPUs; 2; 0,2,3; 1, for GPU 1; or cpu");
  line("dtype", answers.dtype, "auto: bf16 if the hardware supports it, else fp32");
  line("strategy", answers.strategy, "auto: ddp, or a sharded strategy if the model does not fit");
  if (answers.nodes == 1) return text;
  line("nodes", std::to_string(answers.nodes), "machines of each run");
  line("node_rank", std::to_string(answers.node_rank), "number of this machine, from 0");
  line("master", answers.master, "address of machine 0, the same on all of them");
  return text;
}

std::vector<Assignment> from_machine_file(MachineSettings& settings, Problems& problems) {
  settings.file = machine_file_to_read();
  if (settings.file.empty()) return {};
  const std::string file = settings.file.string();
  const Value document = parse_yaml(read_text_file(settings.file), file, problems);
  if (document.kind != Value::Kind::kNull && document.kind != Value::Kind::kMap) {
    problems.push_back({fmt::format("the machine file is {}, not a map", describe(document)), file,
                        fmt::format("write keys such as {}", kExample)});
  }
  const std::vector<std::string> known = {"devices", "dtype",     "strategy",
                                          "nodes",   "node_rank", "master"};
  std::vector<Assignment> assignments;
  for (size_t i = 0; i < document.keys.size(); ++i) {
    const auto& [key, mark] = document.keys[i];
    const Value& value = document.items[i];
    const std::string place = fmt::format("{}:{}:{}", file, mark.line, mark.column);
    if (key == "dtype" || key == "strategy") {
      assignments.push_back({key == "dtype" ? "model.dtype" : "parallel.strategy", value,
                             Layer::kMachine, place, place, fmt::format("{}:{}", file, mark.line)});
    } else if (std::find(known.begin(), known.end(), key) == known.end()) {
      const std::string near = nearest(key, known);
      problems.push_back({fmt::format("unknown key `{}` in the machine file", excerpt(key)), place,
                          near.empty() ? fmt::format("its keys are {}", join(known, ", "))
                                       : fmt::format("did you mean `{}`?", near)});
    } else if (const auto complaint = parse_setting(key, value, settings)) {
      problems.push_back(
          {fmt::format("`{}` {}", key, complaint->what), place, std::string(complaint->fix)});
    }
  }
  require_nodes(settings, problems);
  return assignments;
}

MachineSettings load_machine_settings() {
  MachineSettings settings;
  Problems problems;
  from_machine_file(settings, problems);
  throw_if_any(problems);
  return settings;
}

}  // namespace sftrun::config
