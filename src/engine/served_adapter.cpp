#include "served_adapter.h"

#include <fmt/format.h>

#include <utility>

#include "sftrun/core/entries.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/hash.h"
#include "sftrun/core/log.h"
#include "sftrun/core/presence.h"
#include "sftrun/model/adapter_io.h"
#include "sftrun/weights/adapter_file.h"
#include "sftrun/weights/safetensors.h"

namespace sftrun::engine {
namespace {

constexpr int64_t kSlots = 2;

/// Runs of the same name in other places have other prefixes.
std::string prefix_of(const std::filesystem::path& run_dir) {
  constexpr size_t kDigits = 8;
  const std::string path = run_dir.lexically_normal().string();
  return fmt::format("sftrun-{}-{}-", run_dir.filename().string(),
                     Fingerprint().add(path).hex().substr(0, kDigits));
}

void remove_folder(const std::filesystem::path& folder) {
  std::error_code ignored;
  std::filesystem::remove_all(folder, ignored);
}

}  // namespace

ServedAdapter::ServedAdapter(Inputs inputs) : in_(std::move(inputs)) {
  in_.run_dir = absolute_path(in_.run_dir);
  prefix_ = prefix_of(in_.run_dir);
}

ServedAdapter::~ServedAdapter() {
  try {
    finish();
  } catch (const std::exception& error) {
    log::warn("the adapter {}: {}", name_, error.what());
  }
}

std::filesystem::path ServedAdapter::slot() const {
  return in_.run_dir / "rollouts" / fmt::format("adapter-{}", num_written_ % kSlots);
}

bool ServedAdapter::write(int64_t step) {
  if (step_ == step) return false;
  step_ = step;
  ++num_written_;
  name_ = fmt::format("{}{}", prefix_, step);
  if (!in_.rank.is_main() && !in_.strategy.divides_parameters()) return false;
  const auto tensors = model::adapter_tensors(in_.decoder, [&](const layers::Parameter& parameter) {
    return in_.strategy.master_of(parameter);
  });
  if (!in_.rank.is_main()) {
    weights::produce_without_file(tensors);
    return false;
  }
  const std::filesystem::path target = slot(),
                              unfinished = target.parent_path() / ".unfinished-adapter";
  remove_folder(unfinished);
  make_directories(unfinished);
  weights::write_adapter(unfinished, in_.config, tensors);
  remove_folder(target);
  move_entry(unfinished, target);
  return true;
}

void ServedAdapter::load() {
  if (!loaded_.empty()) in_.server.unload_adapter(loaded_);
  loaded_ = name_;  // also a request that fails may have loaded it
  in_.server.load_adapter(name_, slot().string());
}

void ServedAdapter::unload_left(const std::vector<ListedModel>& models) const {
  for (const ListedModel& model : models)
    if (model.id.starts_with(prefix_)) in_.server.unload_adapter(model.id);
}

void ServedAdapter::finish() {
  if (!in_.rank.is_main()) return;
  const std::string name = std::exchange(loaded_, {});
  try {
    if (!name.empty()) in_.server.unload_adapter_at_end(name);
  } catch (const Error& error) {
    log::warn(
        "the adapter {} stays at the server: {}; free its memory with a POST of {{\"lora_name\": "
        "\"{}\"}} to {}/unload_lora_adapter, or resume the run",
        name, error.message(), name, in_.server.url());
  }
  for (num_written_ = 0; num_written_ < kSlots; ++num_written_) remove_folder(slot());
}

}  // namespace sftrun::engine
