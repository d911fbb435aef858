#include "sftrun/train/checkpoint.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "checkpoint_parts.h"
#include "checkpoint_state.h"
#include "sftrun/core/entries.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/interruption.h"
#include "sftrun/core/log.h"
#include "sftrun/core/new_directory.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"
#include "sftrun/images/caps_file.h"
#include "sftrun/model/adapter_io.h"
#include "sftrun/weights/adapter_file.h"
#include "sftrun/weights/hf_text_files.h"
#include "sftrun/weights/safetensors.h"
#include "sftrun/weights/score_head.h"

namespace sftrun::train {
namespace fs = std::filesystem;
namespace {

constexpr const char* kOptimizerFile = "optimizer.safetensors";
constexpr const char* kAdapterFile = "adapter_model.safetensors";
constexpr const char* kPrincipalPartsFile = "principal_parts.safetensors";
constexpr const char* kAbandoned = "abandoned-";

std::string step_name(int64_t step) {
  return fmt::format("step-{:06}", step);
}

/// 100 for "step-000100"; nullopt for other names.
std::optional<int64_t> step_of(const fs::path& path) {
  const std::string name = path.filename().string();
  if (!name.starts_with("step-") || name.size() < 6) return std::nullopt;
  const std::string digits = name.substr(5);
  if (digits.find_first_not_of("0123456789") != std::string::npos || digits.size() > 12)
    return std::nullopt;
  return std::stoll(digits);
}

/// (step, path) of every folder with a checkpoint's name, ascending.
std::vector<std::pair<int64_t, fs::path>> list(const fs::path& directory) {
  std::vector<std::pair<int64_t, fs::path>> found;
  for (const fs::path& entry : readable_entries_of(directory)) {
    const auto step = step_of(entry);
    if (step) found.emplace_back(*step, entry);
  }
  std::sort(found.begin(), found.end());
  return found;
}

void require_own_name(const fs::path& checkpoint, int64_t step) {
  const auto saved = read_state_json(checkpoint)["step"].get<int64_t>();
  if (saved == step) return;
  throw DataError(fmt::format("the folder was renamed: the checkpoint is of step {}", saved),
                  checkpoint.string(), "rename it to " + step_name(saved));
}

/// @param why as "is newer than …"
void set_aside(const fs::path& directory, const fs::path& checkpoint, const char* why) {
  const fs::path aside = directory / (kAbandoned + checkpoint.filename().string());
  std::error_code code;
  fs::remove_all(aside, code);
  fs::rename(checkpoint, aside, code);
  if (code) throw DeviceError("cannot rename: " + code.message(), checkpoint.string());
  log::warn("{} {}: renamed to {}", checkpoint.string(), why, aside.filename().string());
}

/// Whether the run of `newest` has written this folder: of one run, also if it was resumed, all
/// checkpoints have one time of rendering.
bool is_of_run(const fs::path& checkpoint, int64_t step, const TrainState& newest) {
  if (step > newest.step) return false;
  try {
    const auto json = read_state_json(checkpoint, /*checks_lengths=*/false);
    return json["step"].get<int64_t>() == step &&
           json["rendered_at_unix_s"].get<int64_t>() == newest.rendered_at_unix_s;
  } catch (const Error&) {
    return false;
  }
}

/// Renamed before it is removed: a crash must not leave an incomplete checkpoint under its final
/// name.
void discard(const fs::path& directory, const fs::path& checkpoint) {
  const fs::path doomed =
      directory / fmt::format("{}old-{}", kUnfinishedPrefix, checkpoint.filename().string());
  std::error_code code;
  fs::remove_all(doomed, code);
  fs::rename(checkpoint, doomed, code);
  if (!code) fs::remove_all(doomed, code);
}

/// Every rank knows this name.
fs::path parts_folder(const fs::path& directory, int64_t step) {
  return directory / fmt::format("{}{}", kUnfinishedPrefix, step_name(step));
}

[[noreturn]] void fail_no_folder(const fs::path& folder, const std::error_code& code) {
  throw DeviceError("cannot make a folder for the checkpoint: " + code.message(), folder.string(),
                    "is the disk full, or the folder not writable?");
}

/// Removes the temporary folder when writing fails, for example because the disk is full.
struct RemovedUnlessRenamed {
  const fs::path& path;
  ~RemovedUnlessRenamed() {
    std::error_code code;
    fs::remove_all(path, code);
  }
};

std::vector<weights::TensorToWrite> optimizer_tensors(const Optimizer& optimizer,
                                                      parallel::Strategy& strategy) {
  std::vector<weights::TensorToWrite> tensors;
  for (const StateTensor& part : optimizer.state()) {
    tensors.push_back(
        {part.name, part.values.scalar_type() == at::kByte ? DType::kU8 : DType::kF32, part.shape,
         [part, &strategy](void* destination) {
           at::Tensor whole = strategy.whole(part.values.flatten(), part.begin, part.own_numel());
           if (part.parameter != nullptr)
             whole = strategy.joined(*part.parameter, whole.view(part.parameter->shape));
           at::from_blob(destination, whole.sizes(), whole.scalar_type()).copy_(whole);
         }});
  }
  return tensors;
}

/// A parameter's values in the order of its elements in memory.
at::Tensor parameter_in(const weights::SafetensorsFile& file, const fs::path& path,
                        const layers::Parameter& parameter) {
  const at::Tensor stored =
      values_in(file, path, parameter.name, parameter.shape_in_files(), at::kFloat);
  return parameter
      .part_of(layers::in_memory_order(stored, parameter.layout, parameter.whole_shape()))
      .flatten();
}

}  // namespace

std::optional<fs::path> CheckpointStore::latest() const {
  const auto found = list(directory_);
  std::optional<DataError> newest_damage;
  for (auto checkpoint = found.rbegin(); checkpoint != found.rend(); ++checkpoint) {
    try {
      verify_checkpoint(checkpoint->second);
      require_own_name(checkpoint->second, checkpoint->first);
      return checkpoint->second;
    } catch (const DataError& error) {
      log::warn("skipping {}: {}", checkpoint->second.string(), error.message());
      if (!newest_damage) newest_damage = error;
    }
  }
  if (!newest_damage) return std::nullopt;
  throw DataError(
      fmt::format("no checkpoint of the run is complete ({} checked); the newest: {}", found.size(),
                  newest_damage->message()),
      directory_.string(),
      "restore one from a copy; to start over choose another output.dir, or move this run "
      "aside with --overwrite");
}

fs::path CheckpointStore::path_of(int64_t step) const {
  return directory_ / step_name(step);
}

int64_t CheckpointStore::newest_step(int64_t up_to) const {
  int64_t newest = 0;
  for (const auto& [step, checkpoint] : list(directory_))
    if (step <= up_to) newest = step;
  return newest;
}

bool CheckpointStore::holds_any() const {
  return !list(directory_).empty();
}

void CheckpointStore::set_later_aside(int64_t step) const {
  for (const auto& [later, checkpoint] : list(directory_)) {
    if (later > step)
      set_aside(directory_, checkpoint, "is newer than the checkpoint that the run resumes from");
  }
}

void CheckpointStore::require_writable() const {
  const AtomicFile probe(directory_ / "probe");  // removed at the end of this scope
}

void CheckpointStore::remove_leftovers() const {
  remove_entries(directory_, kUnfinishedPrefix);
}

CheckpointContents checkpoint_contents(model::Decoder& decoder, parallel::Strategy& strategy,
                                       const Optimizer& optimizer, bool is_adapter,
                                       config::CheckpointFormat format) {
  const model::MasterValues masters = [&strategy](const layers::Parameter& parameter) {
    return strategy.master_of(parameter);
  };
  // With PiSSA the trained parameters are not the exported adapter, so both are stored.
  const bool has_principal_parts = !decoder.principal_parts().empty();
  CheckpointContents contents;
  contents.projectors = decoder.arch().projectors;
  contents.arch = decoder.arch();
  // Nothing to put together, so rank 0 writes alone.
  if (!strategy.divides_parameters() && strategy.mesh().rank() != 0) return contents;
  // Parts are ranges of a tensor's values. Those of tensor parallelism may be columns.
  if (!is_adapter && strategy.divides_parameters() && strategy.mesh().sizes().tp == 1 &&
      format == config::CheckpointFormat::kAuto) {
    const std::vector<StateTensor> trained = trained_parts(strategy), state = optimizer.state();
    contents.parts = {
        .rank = strategy.mesh().rank(),
        .shapes = {{kTrainableParts, shapes_of(trained)}, {kOptimizerParts, shapes_of(state)}}};
    if (!writes_parts(strategy)) return contents;
    contents.trainable = tensors_of_parts(trained);
    contents.optimizer = tensors_of_parts(state);
    return contents;
  }
  if (is_adapter) contents.adapter = model::adapter_tensors(decoder, masters);
  if (has_principal_parts) contents.principal_parts = model::principal_part_tensors(decoder);
  if (!is_adapter || has_principal_parts)
    contents.trainable = model::trained_tensors(decoder, masters);
  contents.optimizer = optimizer_tensors(optimizer, strategy);
  return contents;
}

void CheckpointContents::take_part() const {
  for (const auto* tensors : {&adapter, &principal_parts, &trainable, &optimizer})
    weights::produce_without_file(*tensors);
}

void CheckpointContents::hold() {
  for (auto* tensors : {&adapter, &principal_parts, &trainable, &optimizer})
    *tensors = weights::held_in_memory(*tensors);
}

void CheckpointContents::release() {
  for (auto* tensors : {&adapter, &principal_parts, &trainable, &optimizer}) tensors->clear();
}

uint64_t CheckpointContents::bytes() const {
  uint64_t bytes = 0;
  for (const auto* tensors : {&adapter, &principal_parts, &trainable, &optimizer})
    bytes += weights::total_bytes(*tensors);
  return bytes;
}

void CheckpointStore::write_parts_of(const CheckpointContents& contents, int64_t step) const {
  if (contents.trainable.empty() && contents.optimizer.empty()) return;
  const fs::path folder = parts_folder(directory_, step);
  std::error_code code;
  if (!fs::create_directories(folder, code) && code) fail_no_folder(folder, code);
  const int rank = contents.parts.value().rank;
  write_parts(folder, rank,
              {{kTrainableParts, contents.trainable}, {kOptimizerParts, contents.optimizer}});
}

void CheckpointStore::save(const CheckpointContents& contents,
                           const std::optional<weights::AdapterConfig>& adapter,
                           const TrainState& state, int64_t optimizer_steps,
                           std::optional<int64_t> total_limit) const {
  const fs::path target = path_of(state.step);
  const fs::path temporary = contents.parts
                                 ? parts_folder(directory_, state.step)
                                 : directory_ / fmt::format("{}{}-{}", kUnfinishedPrefix,
                                                            step_name(state.step), ::getpid());
  const RemovedUnlessRenamed cleanup{temporary};
  std::error_code code;
  if (!fs::create_directories(temporary, code) && code) fail_no_folder(temporary, code);
  if (adapter) weights::write_adapter(temporary, *adapter, contents.adapter);
  if (contents.chat_template)
    write_file_atomically(temporary / "chat_template.jinja", *contents.chat_template);
  weights::write_template_variables(temporary, contents.template_variables);
  images::write_caps(temporary, contents.image_caps);
  weights::write_projectors(temporary, contents.projectors);
  weights::write_labels(temporary, contents.arch);
  if (contents.embedding)
    weights::write_embedding_files(temporary, *contents.embedding, contents.arch.hidden_size);
  if (!contents.principal_parts.empty())
    weights::write_safetensors(temporary / kPrincipalPartsFile, contents.principal_parts);
  FileRecords records;
  if (contents.parts) {
    records = take_records_of_parts(temporary);
    write_parts_index(temporary, contents.parts->shapes);
  } else {
    if (!contents.trainable.empty())
      weights::write_safetensors(temporary / kTrainableFile, contents.trainable);
    weights::write_safetensors(temporary / kOptimizerFile, contents.optimizer);
  }
  write_state(temporary, state, optimizer_steps, std::move(records));
  sync_directory(temporary);
  if (has_entry(target))
    set_aside(directory_, target, "is not of this run, which writes a checkpoint of this name");
  if (std::rename(temporary.c_str(), target.c_str()) != 0) {
    throw DeviceError("cannot rename the finished checkpoint into place", target.string(),
                      "is the folder writable?");
  }
  sync_directory(directory_);
  keep_newest(total_limit, state);
}

void CheckpointStore::keep_newest(std::optional<int64_t> total_limit,
                                  const TrainState& newest) const {
  if (!total_limit) return;
  auto found = list(directory_);
  std::erase_if(found, [&](const auto& one) { return !is_of_run(one.second, one.first, newest); });
  if (found.empty()) return;
  auto kept = static_cast<size_t>(*total_limit);
  const auto best = std::find_if(found.begin(), found.end() - 1,
                                 [&](const auto& one) { return one.first == newest.best_step(); });
  if (best != found.end() - 1) {
    found.erase(best);
    kept = std::max<size_t>(1, kept - 1);
  }
  for (size_t i = 0; i + kept < found.size(); ++i) discard(directory_, found[i].second);
}

TrainState read_train_state(const fs::path& checkpoint) {
  const auto json = read_state_json(checkpoint);
  TrainState state;
  state.step = json["step"].get<int64_t>();
  state.identity = json["identity"];
  state.trained_seconds = json["trained_seconds"].get<double>();
  state.tokens = json["tokens"].get<int64_t>();
  state.rendered_at_unix_s = json["rendered_at_unix_s"].get<int64_t>();
  if (json.contains("loss_scale")) {
    const auto& scale = json["loss_scale"];
    state.loss_scale = {.value = scale["value"].get<double>(),
                        .finite_steps = scale["finite_steps"].get<int64_t>(),
                        .skipped_steps = scale["skipped_steps"].get<int64_t>()};
  }
  state.data_position = json.value("data_position", nlohmann::ordered_json());
  state.best = best_in(json);
  state.evaluation_due = json.value("evaluation_due", false);
  state.answer_seconds = json.value("answer_seconds", 0.0);
  state.builds = builds_in(json);
  return state;
}

fs::path principal_parts_of(const fs::path& checkpoint) {
  return checkpoint / kPrincipalPartsFile;
}

namespace {

/// @param whole of shape `part.shape`: what this rank owns of it is taken
void take_own(const StateTensor& part, const at::Tensor& whole) {
  const at::Tensor of_rank = part.parameter != nullptr ? part.parameter->part_of(whole) : whole;
  at::Tensor own = part.values;
  own.copy_(of_rank.flatten().narrow(0, part.begin, own.numel()).view(own.sizes()));
}

void read_part(const DividedTensors& tensors, const StateTensor& part) {
  interruption_point();
  if (part.parameter == nullptr || !part.parameter->slice) return tensors.read(part, part.values);
  if (part.values.numel() == 0) return;
  StateTensor whole = part;
  whole.begin = 0;
  whole.values = at::empty(part.shape, part.values.scalar_type());
  tensors.read(whole, whole.values);
  take_own(part, whole.values);
}

void restore_whole_parameters(const fs::path& checkpoint, const layers::OwnedValues& owned) {
  const bool is_adapter = !leads_to_file(checkpoint / kTrainableFile);
  const fs::path values_path = checkpoint / (is_adapter ? kAdapterFile : kTrainableFile);
  const weights::SafetensorsFile values(values_path);
  for (const layers::OwnedValues::Piece& piece : owned.pieces) {
    interruption_point();
    owned.flat.master.narrow(0, piece.offset, piece.numel)
        .copy_(parameter_in(values, values_path, *piece.parameter)
                   .narrow(0, piece.begin, piece.numel));
  }
}

void restore_optimizer(const fs::path& checkpoint, Optimizer& optimizer) {
  if (leads_to_file(checkpoint / kPartsIndex)) {
    const DividedTensors moments(checkpoint, kOptimizerParts);
    for (const StateTensor& part : optimizer.state()) read_part(moments, part);
    return;
  }
  const weights::SafetensorsFile moments(checkpoint / kOptimizerFile);
  for (const StateTensor& part : optimizer.state()) {
    interruption_point();
    take_own(part, values_in(moments, checkpoint / kOptimizerFile, part.name, part.shape,
                             part.values.scalar_type()));
  }
}

}  // namespace

void restore_parameters(const fs::path& checkpoint, parallel::Strategy& strategy) {
  const at::NoGradGuard no_grad;
  const layers::OwnedValues& owned = strategy.owned();
  if (leads_to_file(checkpoint / kPartsIndex)) {
    const DividedTensors trainable(checkpoint, kTrainableParts);
    for (const StateTensor& part : trained_parts(strategy)) read_part(trainable, part);
  } else {
    restore_whole_parameters(checkpoint, owned);
  }
  if (!owned.flat.compute.is_same(owned.flat.master)) owned.flat.compute.copy_(owned.flat.master);
  owned.store->compute_changed();
}

void restore(const fs::path& checkpoint, parallel::Strategy& strategy, Optimizer& optimizer) {
  const at::NoGradGuard no_grad;
  const auto json = read_state_json(checkpoint);
  restore_parameters(checkpoint, strategy);
  restore_optimizer(checkpoint, optimizer);
  optimizer.set_steps(json["optimizer_steps"].get<int64_t>());
}

}  // namespace sftrun::train
