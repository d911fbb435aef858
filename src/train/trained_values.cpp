#include "sftrun/train/trained_values.h"

#include <ATen/ATen.h>

#include "checkpoint_parts.h"
#include "checkpoint_state.h"
#include "sftrun/core/error.h"
#include "sftrun/core/presence.h"
#include "sftrun/layers/parameter.h"
#include "sftrun/weights/fingerprint.h"

namespace sftrun::train {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;

/// Whether the files' data have the hashes that the run recorded, where it did.
bool has_recorded_weights(const Json& recorded, const weights::Checkpoint& base) {
  if (!recorded.is_array()) return true;
  const auto files = weights::hash_weights(base, weights::remembered_hashes());
  if (files.size() != recorded.size()) return false;
  for (size_t i = 0; i < files.size(); ++i) {
    if (recorded[i].at(1) != files[i].hash) return false;
  }
  return true;
}

void require_base_of(const fs::path& checkpoint, const weights::Checkpoint& base) {
  const Json identity = read_state_json(checkpoint)["identity"];
  const Json model = identity.value("model", Json::object());
  if (model.value("layout", Json()) == weights::layout_fingerprint(base) &&
      has_recorded_weights(model.value("weights", Json()), base))
    return;
  throw DataError("the checkpoint is of a run that began with another model", checkpoint.string(),
                  "name the model that the run began with: --model MODEL");
}

}  // namespace

TrainedValues::TrainedValues(const fs::path& checkpoint, const weights::Checkpoint& base)
    : checkpoint_(checkpoint) {
  verify_checkpoint(checkpoint);
  if (leads_to_file(checkpoint / "adapter_config.json")) {
    throw DataError("the checkpoint holds an adapter, and no base weights", checkpoint.string(),
                    "name it with --adapter");
  }
  require_base_of(checkpoint, base);
  if (leads_to_file(checkpoint / kPartsIndex)) {
    divided_ = std::make_unique<DividedTensors>(checkpoint, kTrainableParts);
  } else {
    whole_.emplace(checkpoint / kTrainableFile);
  }
  if (is_empty())
    throw DataError("the checkpoint has no trained weights", checkpoint.string(), kDamageFix);
}

TrainedValues::TrainedValues(TrainedValues&&) noexcept = default;
TrainedValues::~TrainedValues() = default;

bool TrainedValues::is_empty() const {
  return whole_ ? whole_->entries().empty() : divided_->is_empty();
}

bool TrainedValues::has(const std::string& tensor) const {
  return whole_ ? whole_->find(tensor) != nullptr : divided_->has(tensor);
}

at::Tensor TrainedValues::read(const weights::TensorInfo& info) const {
  const at::Tensor values = at::empty(info.shape, at::kFloat);
  if (divided_) {
    divided_->read({.name = info.name}, values);
    return values;
  }
  const at::Tensor stored = values_in(*whole_, checkpoint_ / kTrainableFile, info.name,
                                      info.shape_in_files(), at::kFloat);
  const at::Tensor ordered = layers::in_file_order(values, info.layout);
  ordered.copy_(stored.view(ordered.sizes()));
  return values;
}

}  // namespace sftrun::train
