#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "sftrun/weights/checkpoint.h"
#include "sftrun/weights/safetensors.h"

namespace sftrun::train {

class DividedTensors;

/// The base weights that a checkpoint of full or partial training holds, whichever ranks wrote them.
class TrainedValues {
 public:
  /// @param checkpoint checkpoints/step-…   @param base the model that the run began with
  /// @throws DataError if it is damaged, holds an adapter, or began from another model
  TrainedValues(const std::filesystem::path& checkpoint, const weights::Checkpoint& base);
  TrainedValues(TrainedValues&&) noexcept;
  ~TrainedValues();

  bool is_empty() const;
  bool has(const std::string& tensor) const;
  /// @return fp32, of the shape that `info` has   @pre has(info.name)
  at::Tensor read(const weights::TensorInfo& info) const;

 private:
  std::filesystem::path checkpoint_;
  std::optional<weights::SafetensorsFile> whole_;  // one of these two is set
  std::unique_ptr<DividedTensors> divided_;
};

}  // namespace sftrun::train
