#include "sftrun/train/checkpoint.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/strings.h"
#include "sftrun/model/adapter_io.h"
#include "sftrun/weights/adapter_file.h"
#include "sftrun/weights/safetensors.h"

namespace sftrun::train {
namespace fs = std::filesystem;
namespace {

constexpr const char* kStateFile = "state.json";
constexpr const char* kOptimizerFile = "optimizer.safetensors";
constexpr const char* kTrainableFile = "trainable.safetensors";
constexpr const char* kAdapterFile = "adapter_model.safetensors";
constexpr const char* kUnfinished = ".unfinished-";

std::string step_name(int64_t step) {
  return fmt::format("step-{:06}", step);
}

/// The step of "step-000100"; nullopt for other names.
std::optional<int64_t> step_of(const fs::path& path) {
  const std::string name = path.filename().string();
  if (!name.starts_with("step-") || name.size() < 6) return std::nullopt;
  const std::string digits = name.substr(5);
  if (digits.find_first_not_of("0123456789") != std::string::npos || digits.size() > 12)
    return std::nullopt;
  return std::stoll(digits);
}

/// step, path of every complete checkpoint, ascending.
std::vector<std::pair<int64_t, fs::path>> list(const fs::path& directory) {
  std::vector<std::pair<int64_t, fs::path>> found;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(directory, code)) {
    const auto step = step_of(entry.path());
    if (step && fs::exists(entry.path() / kStateFile)) found.emplace_back(*step, entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

/// Renamed first: a crash in the middle of removing must not leave half a checkpoint under its
/// name.
void discard(const fs::path& directory, const fs::path& checkpoint) {
  const fs::path doomed =
      directory / fmt::format("{}old-{}", kUnfinished, checkpoint.filename().string());
  std::error_code code;
  fs::remove_all(doomed, code);
  fs::rename(checkpoint, doomed, code);
  if (!code) fs::remove_all(doomed, code);
}

std::vector<weights::TensorToWrite> optimizer_tensors(model::Decoder& decoder, AdamW& optimizer) {
  std::vector<weights::TensorToWrite> tensors;
  const auto add = [&](const std::string& prefix, const at::Tensor& flat,
                       const kernels::Parameter& parameter) {
    const at::Tensor view = flat.narrow(0, parameter.offset, parameter.numel);
    tensors.push_back(
        {prefix + parameter.name, DType::kF32, parameter.shape, [view](void* destination) {
           at::from_blob(destination, view.sizes(), at::kFloat).copy_(view);
         }});
  };
  for (const kernels::Parameter& parameter : decoder.parameters().parameters()) {
    add("exp_avg.", optimizer.exp_avg(), parameter);
    add("exp_avg_sq.", optimizer.exp_avg_sq(), parameter);
  }
  return tensors;
}

void write_state(const fs::path& directory, const TrainState& state, int64_t optimizer_steps) {
  nlohmann::ordered_json json;
  json["format"] = 1;
  json["step"] = state.step;
  json["optimizer_steps"] = optimizer_steps;
  json["tokens"] = state.tokens;
  json["trained_seconds"] = state.trained_seconds;
  json["rendered_at_unix_s"] = state.rendered_at_unix_s;
  json["identity"] = state.identity;
  nlohmann::ordered_json files;  // lengths, so that a file cut short by a copy is noticed
  for (const auto& entry : fs::directory_iterator(directory))
    files[entry.path().filename().string()] = entry.file_size();
  json["files"] = files;
  write_file_atomically(directory / kStateFile, json.dump(2) + "\n");
}

nlohmann::ordered_json read_state_json(const fs::path& checkpoint) {
  const fs::path path = checkpoint / kStateFile;
  nlohmann::ordered_json json =
      nlohmann::ordered_json::parse(read_text_file(path), nullptr, /*allow_exceptions=*/false);
  const std::string fix = "remove this checkpoint folder to resume from the one before it";
  const auto is = [&](const char* key, auto has_type) {
    return json.contains(key) && (json[key].*has_type)();
  };
  using Json = nlohmann::ordered_json;
  const bool usable = json.is_object() && is("step", &Json::is_number_unsigned) &&
                      is("optimizer_steps", &Json::is_number_unsigned) &&
                      is("tokens", &Json::is_number_unsigned) &&
                      is("trained_seconds", &Json::is_number) &&
                      is("rendered_at_unix_s", &Json::is_number_integer) &&
                      is("identity", &Json::is_object) && is("files", &Json::is_object);
  if (!usable) throw DataError("the checkpoint's state file is damaged", path.string(), fix);
  for (const auto& [name, bytes] : json["files"].items()) {
    if (!bytes.is_number_unsigned())
      throw DataError("the checkpoint's state file is damaged", path.string(), fix);
    std::error_code code;
    const auto size = fs::file_size(checkpoint / name, code);
    if (code || size != bytes.get<uint64_t>()) {
      throw DataError(
          fmt::format("the checkpoint is not whole: {} has {} bytes, expected {}", name,
                      code ? std::string("no") : std::to_string(size), bytes.get<uint64_t>()),
          checkpoint.string(), fix);
    }
  }
  return json;
}

void copy_into(const weights::SafetensorsFile& file, const fs::path& path, const std::string& name,
               const at::Tensor& destination) {
  const weights::SafetensorsEntry* entry = file.find(name);
  if (entry == nullptr || entry->dtype != "F32" || entry->bytes.size() != destination.nbytes()) {
    throw DataError(
        fmt::format("the checkpoint lacks {} or holds it in another size", name), path.string(),
        "it was made by another configuration; use another output.dir or --resume never");
  }
  auto* data = const_cast<std::byte*>(entry->bytes.data());
  destination.copy_(at::from_blob(data, destination.sizes(), at::kFloat));
}

}  // namespace

std::optional<fs::path> CheckpointStore::latest() const {
  const auto found = list(directory_);
  if (found.empty()) return std::nullopt;
  return found.back().second;
}

void CheckpointStore::remove_leftovers() const {
  std::error_code code;
  std::vector<fs::path> leftovers;
  for (const auto& entry : fs::directory_iterator(directory_, code)) {
    if (entry.path().filename().string().starts_with(kUnfinished))
      leftovers.push_back(entry.path());
  }
  for (const fs::path& path : leftovers) fs::remove_all(path, code);
}

void CheckpointStore::save(model::Decoder& decoder, AdamW& optimizer,
                           const std::optional<weights::AdapterConfig>& adapter,
                           const TrainState& state, std::optional<int64_t> total_limit) const {
  const fs::path target = directory_ / step_name(state.step);
  const fs::path temporary =
      directory_ / fmt::format("{}{}-{}", kUnfinished, step_name(state.step), ::getpid());
  make_directories(temporary);
  if (adapter) {
    weights::write_adapter(temporary, *adapter, model::trained_tensors(decoder));
  } else {
    weights::write_safetensors(temporary / kTrainableFile, model::trained_tensors(decoder));
  }
  weights::write_safetensors(temporary / kOptimizerFile, optimizer_tensors(decoder, optimizer));
  write_state(temporary, state, optimizer.steps());
  sync_directory(temporary);
  // Where a run went back to an earlier checkpoint, its steps replace those of the abandoned
  // course.
  if (fs::exists(target)) discard(directory_, target);
  if (std::rename(temporary.c_str(), target.c_str()) != 0) {
    throw DeviceError("cannot rename the finished checkpoint into place", target.string(),
                      "is the folder writable?");
  }
  sync_directory(directory_);
  if (!total_limit) return;
  const auto found = list(directory_);
  for (size_t i = 0; i + static_cast<size_t>(*total_limit) < found.size(); ++i)
    discard(directory_, found[i].second);
}

TrainState read_train_state(const fs::path& checkpoint) {
  const auto json = read_state_json(checkpoint);
  TrainState state;
  state.step = json["step"].get<int64_t>();
  state.identity = json["identity"];
  state.trained_seconds = json["trained_seconds"].get<double>();
  state.tokens = json["tokens"].get<int64_t>();
  state.rendered_at_unix_s = json["rendered_at_unix_s"].get<int64_t>();
  return state;
}

void restore(const fs::path& checkpoint, model::Decoder& decoder, AdamW& optimizer) {
  const at::NoGradGuard no_grad;
  const auto json = read_state_json(checkpoint);
  const bool is_adapter = fs::exists(checkpoint / kAdapterFile);
  const fs::path values_path = checkpoint / (is_adapter ? kAdapterFile : kTrainableFile);
  const weights::SafetensorsFile values(values_path);
  const weights::SafetensorsFile moments(checkpoint / kOptimizerFile);
  for (kernels::Parameter& parameter : decoder.parameters().parameters()) {
    copy_into(values, values_path, parameter.name, parameter.master.detach());
    const auto moment = [&](const std::string& prefix, const at::Tensor& flat) {
      copy_into(moments, checkpoint / kOptimizerFile, prefix + parameter.name,
                flat.narrow(0, parameter.offset, parameter.numel).view(parameter.shape));
    };
    moment("exp_avg.", optimizer.exp_avg());
    moment("exp_avg_sq.", optimizer.exp_avg_sq());
  }
  decoder.parameters().refresh_compute();
  optimizer.set_steps(json["optimizer_steps"].get<int64_t>());
}

}  // namespace sftrun::train
