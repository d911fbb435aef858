#include "sftrun/config/reference_model.h"

namespace sftrun::config {

ReferenceModel TrainConfig::reference_model() const {
  if (reference == "start") return ReferenceModel::kStart;
  return reference == "base" ? ReferenceModel::kBase : ReferenceModel::kPath;
}

bool is_base_without_adapters(const TuningConfig& tuning) {
  return tuning.trains_adapter() && tuning.lora.init != LoraInit::kPissa &&
         tuning.lora.modules_to_save.empty() && !tuning.full_parts().any();
}

bool starts_as_base(const TuningConfig& tuning) {
  return is_base_without_adapters(tuning) && tuning.lora.init_from.empty();
}

bool starts_as_reference(const RunConfig& run) {
  return run.train.needs_reference() && run.train.reference_model() == ReferenceModel::kStart;
}

bool precomputes_reference(const TrainConfig& train) {
  return train.needs_reference() && (train.reference_model() == ReferenceModel::kPath ||
                                     train.reference_logps == ReferenceLogps::kPrecomputed);
}

bool keeps_start(const RunConfig& run) {
  return starts_as_reference(run) && !precomputes_reference(run.train) &&
         !starts_as_base(run.tuning);
}

}  // namespace sftrun::config
