#include "sftrun/weights/projectors.h"

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "forwarding_checkpoint.h"
#include "saved_rows.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/optional_file.h"
#include "sftrun/core/projector_sizes.h"
#include "sftrun/core/python_json.h"
#include "sftrun/core/rng.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/xxh3.h"
#include "sftrun/spec/feature_projectors.h"
#include "sftrun/weights/convert.h"

namespace sftrun::weights {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

FeatureProjector projector_of(const std::string& name, const ordered_json& sizes,
                              const std::string& where) {
  FeatureProjector projector{.name = name};
  for (const ProjectorSize& size : kProjectorSizes) {
    const bool has_size = sizes.is_object() && sizes.contains(size.key);
    const bool is_required = size.member != &FeatureProjector::tokens;
    if (!has_size && !is_required) continue;
    const bool is_number = has_size && sizes[size.key].is_number_integer() &&
                           sizes[size.key] >= 1 && sizes[size.key] <= kMaxProjectorSize;
    if (!is_number)
      throw DataError(fmt::format("the projector {} has no valid {}", excerpt(name), size.key),
                      where, "copy the file again from the run that trained the projector");
    projector.*(size.member) = sizes[size.key].get<int64_t>();
  }
  return projector;
}

/// A model with projectors that its files do not have.
class ProjectedCheckpoint final : public ForwardingCheckpoint {
 public:
  ProjectedCheckpoint(std::shared_ptr<const Checkpoint> base, spec::ArchSpec arch, uint64_t seed)
      : ForwardingCheckpoint(std::move(base)), seed_(seed) {
    arch_ = std::move(arch);
    for (const spec::TensorSpec& tensor : spec::tensor_specs(arch_)) {
      if (tensor.projector < 0 || base_->has(tensor.name)) continue;
      added_.emplace(tensor.name, tensor);
      add_info(tensor);
    }
  }

  bool has(const std::string& name) const override {
    return added_.contains(name) || ForwardingCheckpoint::has(name);
  }
  uint64_t stored_bytes(const std::string& name) const override {
    return added_.contains(name) ? 0 : ForwardingCheckpoint::stored_bytes(name);
  }
  void read(const std::string& name, DType dtype, void* destination) const override {
    const auto added = added_.find(name);
    if (added == added_.end()) return ForwardingCheckpoint::read(name, dtype, destination);
    const std::vector<float> values = initial_values(added->second);
    convert(DType::kF32, reinterpret_cast<const std::byte*>(values.data()), dtype,
            static_cast<std::byte*>(destination), std::ssize(values));
  }
  std::optional<uint64_t> read_range(const std::string& name, DType dtype, int64_t first,
                                     int64_t count, void* destination) const override {
    if (added_.contains(name)) return std::nullopt;
    return ForwardingCheckpoint::read_range(name, dtype, first, count, destination);
  }
  std::optional<std::span<const std::byte>> mapped(const std::string& name,
                                                   DType dtype) const override {
    return added_.contains(name) ? std::nullopt : ForwardingCheckpoint::mapped(name, dtype);
  }
  std::optional<PackedMatrix> packed(const std::string& name) const override {
    return added_.contains(name) ? std::nullopt : ForwardingCheckpoint::packed(name);
  }

 private:
  /// Behind the text model's tensors, where `tensor_specs` has it.
  void add_info(const spec::TensorSpec& tensor) {
    const auto end = std::find_if(tensors_.begin(), tensors_.end(),
                                  [](const TensorInfo& info) { return info.is_other; });
    tensors_.insert(end, {.name = tensor.name, .shape = tensor.shape, .format = "F32"});
  }
  std::vector<float> initial_values(const spec::TensorSpec& tensor) const {
    const FeatureProjector& projector = arch_.projectors[static_cast<size_t>(tensor.projector)];
    const bool is_first = tensor.name.starts_with(projector.first() + ".");
    const auto inputs = static_cast<double>(is_first ? projector.input_width : projector.hidden);
    RandomStream stream(seed_, xxh3_64(std::as_bytes(std::span(tensor.name))));
    std::vector<float> values(static_cast<size_t>(tensor.numel()));
    for (float& value : values)
      value = static_cast<float>((2 * stream.next_unit() - 1) / std::sqrt(inputs));
    return values;
  }

  uint64_t seed_;
  std::map<std::string, spec::TensorSpec> added_;
};

/// @throws DataError for an adapter whose projectors have no sizes
void require_no_saved_projectors(const fs::path& folder) {
  const fs::path path = folder / "adapter_config.json";
  if (!has_optional_file(path)) return;
  const auto config = parse_python_json<ordered_json>(read_text_file(path));
  if (!config.is_object() || !config.contains("modules_to_save")) return;
  for (const ordered_json& module : config["modules_to_save"]) {
    if (!module.is_string() || !spec::is_projector_name(module.get_ref<const std::string&>()))
      continue;
    throw DataError(fmt::format("the adapter has no {}, and saves {}", kProjectorsFile,
                                excerpt(module.get<std::string>())),
                    folder.string(),
                    "copy this file, too: it has the sizes of projectors of features");
  }
}

}  // namespace

std::vector<FeatureProjector> read_projectors(const fs::path& folder) {
  const fs::path path = folder / kProjectorsFile;
  if (!has_optional_file(path)) {
    require_no_saved_projectors(folder);
    return {};
  }
  const std::string where = path.string();
  const auto json = parse_python_json<ordered_json>(read_text_file(path));
  if (!json.is_object() || json.empty())
    throw DataError("the file has no projectors by name", where, "remove it, or copy it again");
  std::vector<FeatureProjector> projectors;
  for (const auto& [name, sizes] : json.items())
    projectors.push_back(projector_of(name, sizes, where));
  return projectors;
}

std::vector<FeatureProjector> read_adapter_projectors(const Checkpoint& base,
                                                      const fs::path& adapter) {
  const std::vector<FeatureProjector> projectors = read_projectors(adapter);
  const fs::path path = adapter / "adapter_model.safetensors";
  if (projectors.empty() || !has_optional_file(path)) return projectors;
  const SafetensorsFile file = open_adapter_file(path);
  for (const FeatureProjector& projector : projectors) {
    const std::string tensor = projector.first() + ".weight";
    if (base.has(tensor) || file.find(std::string(kPeftPrefix) + tensor) != nullptr) continue;
    throw DataError(
        fmt::format("neither the adapter nor its base has the tensors of the projector {}",
                    excerpt(projector.name)),
        (adapter / kProjectorsFile).string(),
        "use the model that the adapter was trained on, or copy this file and "
        "adapter_model.safetensors again from the run that wrote them");
  }
  return projectors;
}

void write_projectors(const fs::path& folder, const std::vector<FeatureProjector>& projectors) {
  if (projectors.empty()) return;
  ordered_json json = ordered_json::object();
  for (const FeatureProjector& projector : projectors)
    for (const ProjectorSize& size : kProjectorSizes)
      if (projector.*(size.member) != 0) json[projector.name][size.key] = projector.*(size.member);
  write_file_atomically(folder / kProjectorsFile, json.dump(2) + "\n");
}

std::shared_ptr<const Checkpoint> with_projectors(std::shared_ptr<const Checkpoint> model,
                                                  const std::vector<FeatureProjector>& projectors,
                                                  uint64_t seed) {
  spec::ArchSpec arch = model->arch();
  if (spec::add_projectors(arch, projectors) == 0) return model;
  return std::make_shared<const ProjectedCheckpoint>(std::move(model), std::move(arch), seed);
}

}  // namespace sftrun::weights
