#include "sftrun/plan/device_map.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>

#include "sftrun/core/error.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/strings.h"
#include "sftrun/plan/stages.h"
#include "sftrun/spec/trained_names.h"

namespace sftrun::plan {
namespace {

constexpr const char* kFixNames =
    "name modules as the model does: model.embed_tokens, model.layers.3, model.layers.0-15, "
    "model.norm, lm_head; or `embedding` and `head`";
constexpr const char* kRotary = "rotary_emb";  // maps of transformers name it; it has no weights

/// "a.b" is inside "a" and "".
bool is_inside(const std::string& name, const std::string& module) {
  return module.empty() || name == module ||
         (name.starts_with(module) && name.size() > module.size() && name[module.size()] == '.');
}

std::optional<int64_t> whole_number(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return number;
}

/// The modules of each unit, by their names in files and by short names.
class UnitNames {
 public:
  explicit UnitNames(const spec::ArchSpec& arch) : num_layers_(arch.num_layers) {
    const std::string first = spec::name_in_layer(arch, 0, "x");  // "model.layers.0.x"
    layers_ = first.substr(0, first.size() - 4);
    const std::string root = layers_.substr(0, layers_.rfind("layers"));
    names_ = {{"embedding", 0}, {spec::embedding_module(arch), 0}};
    for (int64_t layer = 0; layer < num_layers_; ++layer)
      names_.emplace_back(fmt::format("{}.{}", layers_, layer), layer + 1);
    for (const std::string& name :
         {std::string("head"), root + "norm", std::string(spec::kHeadModule)})
      names_.emplace_back(name, num_layers_ + 1);
    ignored_ = root + kRotary;
  }

  /// Units of a map's key.
  /// @return empty: the key names nothing
  std::vector<int64_t> units_of(const std::string& key) const {
    if (const auto range = layers_of_range(key)) return *range;
    std::set<int64_t> units;
    for (const std::string& asked : {key, with_root(key)})
      for (const auto& [name, unit] : names_)
        if (is_inside(name, asked)) units.insert(unit);
    return {units.begin(), units.end()};
  }
  bool is_ignored(const std::string& key) const { return key == ignored_ || key == kRotary; }
  /// Whether the key names a part of a layer.
  bool is_inside_layer(const std::string& key) const {
    return std::any_of(names_.begin(), names_.end(), [&](const auto& name) {
      return key != name.first &&
             (is_inside(key, name.first) || is_inside(with_root(key), name.first));
    });
  }
  std::string nearest_to(const std::string& key) const {
    std::vector<std::string> known;
    for (const auto& [name, unit] : names_) known.push_back(name);
    return nearest(key, known);
  }
  int64_t num_units() const { return num_layers_ + 2; }
  std::string name_of(int64_t unit) const {
    return unit == 0            ? "embedding"
           : unit > num_layers_ ? "head"
                                : fmt::format("layers.{}", unit - 1);
  }

 private:
  /// "layers.3" -> "model.layers.3"
  std::string with_root(const std::string& key) const {
    return layers_.substr(0, layers_.rfind("layers")) + key;
  }
  /// "model.layers.0-15", "layers.0-15"
  std::optional<std::vector<int64_t>> layers_of_range(const std::string& key) const {
    const size_t dot = key.rfind('.'), dash = key.find('-', dot == std::string::npos ? 0 : dot);
    if (dot == std::string::npos || dash == std::string::npos) return std::nullopt;
    const std::string before = key.substr(0, dot);
    if (before != layers_ && with_root(before) != layers_) return std::nullopt;
    const auto first = whole_number(std::string_view(key).substr(dot + 1, dash - dot - 1)),
               last = whole_number(std::string_view(key).substr(dash + 1));
    if (!first || !last || *first > *last || *first < 0 || *last >= num_layers_)
      return std::nullopt;
    std::vector<int64_t> units;
    for (int64_t layer = *first; layer <= *last; ++layer) units.push_back(layer + 1);
    return units;
  }

  int64_t num_layers_;
  std::string layers_, ignored_;
  std::vector<std::pair<std::string, int64_t>> names_;
};

/// "cuda:1" -> "1", "cuda" -> "0", "cpu" -> "cpu"
std::string plain_device(std::string device) {
  if (device == "cuda") return "0";
  if (device.starts_with("cuda:")) device = device.substr(5);
  if (const auto number = whole_number(device)) return std::to_string(*number);
  return device;
}

bool is_cpu(const std::string& device) {
  return device.starts_with("cpu");
}

[[noreturn]] void refuse_module(const std::string& key, const UnitNames& names,
                                const std::string& place) {
  if (names.is_inside_layer(key)) {
    throw ConfigError(
        fmt::format("parallel.device_map names `{}`, a part of a layer; a layer is on "
                    "one device",
                    key),
        place, "name the whole layer");
  }
  const std::string near = names.nearest_to(key);
  throw ConfigError(
      fmt::format("parallel.device_map names `{}`, which the model does not have", key), place,
      near.empty() ? kFixNames : fmt::format("did you mean `{}`?", near));
}

/// A key of a map, its device, and the units that it names.
struct Placed {
  std::string key, device;
  std::vector<int64_t> units;
};

/// @param unit that both name; neither names fewer units than the other
[[noreturn]] void refuse_both(const Placed& a, const Placed& b, const std::string& unit,
                              const std::string& place) {
  const bool are_one = a.units.size() == 1;  // the final norm and the head
  throw ConfigError(
      fmt::format("parallel.device_map places `{}` on device {} and `{}` on device {}; {}", a.key,
                  a.device, b.key, b.device,
                  are_one ? "they are one unit" : fmt::format("both name {}", unit)),
      place, are_one ? "place both on the same device" : "name each layer once");
}

/// The keys that name the most units first.
std::vector<Placed> keys_of(const nlohmann::ordered_json& places, const UnitNames& names,
                            const std::string& place) {
  std::vector<Placed> keys;
  for (const auto& [key, device] : places.items()) {
    if (names.is_ignored(key)) continue;
    keys.push_back({key, plain_device(device.get<std::string>()), names.units_of(key)});
    if (keys.back().units.empty()) refuse_module(key, names, place);
  }
  std::stable_sort(keys.begin(), keys.end(), [](const Placed& a, const Placed& b) {
    return a.units.size() > b.units.size();
  });
  return keys;
}

/// The device of each unit. Of several keys that name a unit, the one that names the fewest units
/// counts.
std::vector<std::string> devices_of_units(const nlohmann::ordered_json& places,
                                          const UnitNames& names, const std::string& place) {
  std::vector<std::string> devices(static_cast<size_t>(names.num_units()));
  std::vector<const Placed*> placed_by(devices.size());
  const std::vector<Placed> keys = keys_of(places, names, place);
  for (const Placed& key : keys) {
    for (const int64_t unit : key.units) {
      const Placed*& before = placed_by[static_cast<size_t>(unit)];
      if (before != nullptr && before->units.size() == key.units.size() &&
          before->device != key.device)
        refuse_both(*before, key, names.name_of(unit), place);
      before = &key;
      devices[static_cast<size_t>(unit)] = key.device;
    }
  }
  std::vector<std::string> missing;
  for (int64_t unit = 0; unit < names.num_units(); ++unit)
    if (devices[static_cast<size_t>(unit)].empty()) missing.push_back(names.name_of(unit));
  if (missing.empty()) return devices;
  const size_t count = missing.size();
  if (count > 4) missing.resize(4);
  throw ConfigError(fmt::format("parallel.device_map has no device for {}{}", join(missing, ", "),
                                count > 4 ? fmt::format(" and {} more", count - 4) : ""),
                    place, "name them in the map, or use parallel.device_map: auto");
}

void require_device(const std::string& device, int64_t num_gpus, const std::string& place) {
  if (is_cpu(device)) {
    if (num_gpus == 0) return;
    throw ConfigError(
        "parallel.device_map places layers on the CPU, where they would be computed", place,
        "name GPUs only; parallel.offload.base: cpu keeps frozen weights in the host's "
        "memory; --device cpu computes everything on the CPU");
  }
  const int64_t gpu = whole_number(device).value_or(0);
  if (gpu < num_gpus) return;
  throw ConfigError(
      num_gpus == 0 ? fmt::format("parallel.device_map names GPU {}, and this run has none", gpu)
                    : fmt::format("parallel.device_map names GPU {}, and this run has {} 0{}", gpu,
                                  plural("GPU", num_gpus),
                                  num_gpus == 1 ? "" : fmt::format(" to {}", num_gpus - 1)),
      place,
      num_gpus == 0
          ? "see `sftrun gpu-info`; on a CPU remove it"
          : "GPUs are counted from 0 among those that --gpus or CUDA_VISIBLE_DEVICES select");
}

/// Adjacent units with the same device become a stage.
DeviceStages stages_of_units(const std::vector<std::string>& devices, const UnitNames& names,
                             const std::string& place) {
  DeviceStages stages;
  for (int64_t unit = 0; unit < names.num_units(); ++unit) {
    const std::string& device = devices[static_cast<size_t>(unit)];
    if (!stages.devices.empty() && stages.devices.back() == device) continue;
    if (std::find(stages.devices.begin(), stages.devices.end(), device) != stages.devices.end()) {
      throw ConfigError(
          fmt::format("parallel.device_map returns to device {} with {}; the units of a "
                      "device must be adjacent",
                      device, names.name_of(unit)),
          place,
          "give each device one run of layers: the embedding with the first layers, the "
          "head with the last ones");
    }
    stages.firsts.push_back(unit);
    stages.devices.push_back(device);
  }
  stages.firsts.push_back(names.num_units());
  return stages;
}

/// Fills the first device, then the next; the last one takes the rest.
std::vector<int64_t> filled_stages(int64_t most, const MapDevices& devices) {
  std::vector<int64_t> firsts = {0};
  double held = 0;
  for (size_t unit = 0; unit < devices.unit_bytes.size(); ++unit) {
    const double bytes = devices.unit_bytes[unit];
    const bool is_first = static_cast<int64_t>(unit) == firsts.back();
    if (!is_first && held + bytes > devices.device_bytes &&
        static_cast<int64_t>(firsts.size()) < most) {
      firsts.push_back(static_cast<int64_t>(unit));
      held = 0;
    }
    held += bytes;
  }
  firsts.push_back(static_cast<int64_t>(devices.unit_bytes.size()));
  return firsts;
}

DeviceStages stages_by_rule(const spec::ArchSpec& arch, const config::ParallelConfig& parallel,
                            const MapDevices& devices, const std::string& place) {
  const bool on_cpu = devices.num_gpus == 0;
  const int64_t asked = parallel.pp.value_or(on_cpu ? 1 : devices.num_gpus);
  if (!on_cpu && asked > devices.num_gpus) {
    throw ConfigError(fmt::format("parallel.pp is {}, and this run has {}", asked,
                                  counted(devices.num_gpus, "GPU")),
                      place, "lower parallel.pp, or remove it to use all of them");
  }
  SFTRUN_CHECK_EQ(std::ssize(devices.unit_bytes), arch.num_layers + 2);
  const int64_t most = std::min(asked, arch.num_layers + 2);
  const bool is_sequential = parallel.device_map && parallel.device_map->rule == "sequential";
  DeviceStages stages;
  stages.firsts =
      is_sequential ? filled_stages(most, devices) : balanced_stages(devices.unit_bytes, most);
  for (size_t stage = 0; stage + 1 < stages.firsts.size(); ++stage)
    stages.devices.push_back(fmt::format("{}{}", on_cpu ? "cpu:" : "", stage));
  return stages;
}

}  // namespace

DeviceStages place_units(const spec::ArchSpec& arch, const config::ParallelConfig& parallel,
                         const MapDevices& devices, const std::string& place) {
  if (!parallel.device_map || !parallel.device_map->rule.empty())
    return stages_by_rule(arch, parallel, devices, place);
  const UnitNames names(arch);
  const std::vector<std::string> of_units =
      devices_of_units(parallel.device_map->places, names, place);
  for (const std::string& device : of_units) require_device(device, devices.num_gpus, place);
  return stages_of_units(of_units, names, place);
}

config::DeviceMap as_places(const DeviceStages& stages, const spec::ArchSpec& arch) {
  config::DeviceMap map;
  const int64_t head = arch.num_layers + 1;
  for (size_t stage = 0; stage < stages.devices.size(); ++stage) {
    const int64_t first = stages.firsts[stage], end = stages.firsts[stage + 1];
    const std::string& device = stages.devices[stage];
    if (first == 0) map.places["embedding"] = device;
    const int64_t from = std::max<int64_t>(first, 1) - 1, to = std::min(end, head) - 2;
    if (from <= to) map.places[fmt::format("layers.{}-{}", from, to)] = device;
    if (end > head) map.places["head"] = device;
  }
  return map;
}

DeviceStages device_stages(const spec::ArchSpec& arch, const config::ParallelConfig& parallel) {
  SFTRUN_CHECK(parallel.device_map && parallel.device_map->rule.empty());
  const UnitNames names(arch);
  return stages_of_units(devices_of_units(parallel.device_map->places, names, {}), names, {});
}

int gpu_of(const std::string& device) {
  return static_cast<int>(whole_number(device).value_or(0));
}

}  // namespace sftrun::plan
