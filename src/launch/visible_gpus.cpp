#include "visible_gpus.h"

#include <algorithm>
#include <string_view>

#include "parse_int.h"
#include "sftrun/core/error.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/strings.h"

namespace sftrun::launch {
namespace {

int find_gpu(const GpuReport& report, const std::string& word) {
  const auto number = parse_int(word);
  for (size_t i = 0; i < report.gpus.size(); ++i) {
    const GpuInfo& gpu = report.gpus[i];
    if (number ? gpu.index == *number : !word.empty() && gpu.uuid.starts_with(word)) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

/// If the list names a GPU twice, CUDA shows no GPU.
void require_new(const std::vector<VisibleGpu>& visible, int index, const std::string& setting,
                 const std::string& word) {
  for (const VisibleGpu& gpu : visible) {
    if (gpu.index != index) continue;
    throw ConfigError(
        fmt::format("CUDA_VISIBLE_DEVICES names one GPU twice (`{}` and `{}`): CUDA shows no GPU",
                    gpu.id, word),
        "CUDA_VISIBLE_DEVICES=" + setting, "name each GPU once");
  }
}

}  // namespace

std::vector<VisibleGpu> visible_gpus(const GpuReport& report, const Environment& env) {
  std::vector<VisibleGpu> visible;
  const auto setting = env.find("CUDA_VISIBLE_DEVICES");
  if (setting == env.end()) {
    for (size_t i = 0; i < report.gpus.size(); ++i) {
      visible.push_back({std::to_string(report.gpus[i].index), static_cast<int>(i)});
    }
    return visible;
  }
  for (const std::string& part : split(setting->second, ',')) {
    const std::string word(trim(part));
    if (word.starts_with("MIG-") && !report.gpus.empty()) return {{word, -1}};
    const int index = find_gpu(report, word);
    if (index < 0) break;
    require_new(visible, index, setting->second, word);
    visible.push_back({word, index});
  }
  return visible;
}

namespace {

/// The GPU of a MIG slice, where its name says it: MIG-GPU-<uuid>/<gpu instance>/<compute instance>.
/// Other names are the slice's own UUID.
int gpu_of_slice(const GpuReport& report, const std::string& slice) {
  const std::string uuid = slice.substr(std::string_view("MIG-").size());
  return uuid.starts_with("GPU-") ? find_gpu(report, uuid.substr(0, uuid.find('/'))) : -1;
}

/// The first entry that CUDA does not understand; it hides the GPUs behind it, too. Empty: none.
std::string entry_without_gpu(const std::string& setting, size_t num_visible) {
  const std::vector<std::string> entries = split(setting, ',');
  if (num_visible >= entries.size() || trim(setting).empty()) return {};
  return std::string(trim(entries[num_visible]));
}

}  // namespace

std::optional<GpuVisibility> gpu_visibility(const GpuReport& report) {
  const Environment env = current_environment();
  const auto setting = env.find("CUDA_VISIBLE_DEVICES");
  if (setting == env.end()) return std::nullopt;
  GpuVisibility found{.setting = setting->second};
  try {
    for (const VisibleGpu& gpu : visible_gpus(report, env)) {
      if (gpu.index < 0) found.mig_slice = gpu.id;
      const int index = gpu.index < 0 ? gpu_of_slice(report, gpu.id) : gpu.index;
      if (index >= 0) found.visible.push_back(static_cast<size_t>(index));
    }
    const std::string entry = entry_without_gpu(found.setting, found.visible.size());
    if (found.mig_slice.empty() && !report.gpus.empty() && !entry.empty() && entry != "-1") {
      found.problem = fmt::format(
          "`{}` in CUDA_VISIBLE_DEVICES is not a GPU of this machine: CUDA hides it and all later "
          "entries",
          excerpt(entry));
    }
  } catch (const ConfigError& error) {
    found.problem = error.message();
  }
  // The slice may be on any of them.
  const bool is_of_unknown_gpu = !found.mig_slice.empty() && found.visible.empty();
  for (size_t i = 0; i < report.gpus.size() && !is_of_unknown_gpu; ++i) {
    if (std::find(found.visible.begin(), found.visible.end(), i) == found.visible.end())
      found.hidden.push_back(i);
  }
  return found;
}

std::vector<VisibleGpu> select_gpus(const std::vector<VisibleGpu>& visible,
                                    const std::string& gpus) {
  if (gpus.empty() || gpus == "all" || gpus == "auto") return visible;
  const std::string there_are =
      visible.empty() ? "no GPU is visible"
                      : fmt::format("{} visible: 0 to {}", visible.size(), visible.size() - 1);
  if (const auto count = parse_int(gpus)) {
    if (*count < 1 || *count > static_cast<int64_t>(visible.size())) {
      throw ConfigError(
          fmt::format("--gpus {} requests {} ({})", gpus, counted(*count, "GPU"), there_are),
          "--gpus " + gpus, "see `sftrun gpu-info`; --device cpu trains on the CPU");
    }
    return {visible.begin(), visible.begin() + *count};
  }
  std::vector<VisibleGpu> chosen;
  std::vector<int64_t> seen;
  for (const std::string& part : split(gpus, ',')) {
    if (trim(part).empty()) continue;  // "1," is a list of one
    const auto index = parse_int(trim(part));
    if (!index || *index < 0 || *index >= static_cast<int64_t>(visible.size())) {
      throw ConfigError(fmt::format("--gpus names GPU `{}` ({})", trim(part), there_are),
                        "--gpus " + gpus, "write a number of GPUs, or a list such as 0,2,3");
    }
    if (std::find(seen.begin(), seen.end(), *index) != seen.end()) {
      throw ConfigError(fmt::format("--gpus names GPU {} twice", *index), "--gpus " + gpus,
                        "name each GPU once");
    }
    seen.push_back(*index);
    chosen.push_back(visible[static_cast<size_t>(*index)]);
  }
  return chosen;
}

}  // namespace sftrun::launch
