#pragma once

#include <map>
#include <string>

#include "adapter_modules.h"
#include "adapter_values.h"
#include "sftrun/spec/lora_spec.h"
#include "sftrun/weights/adapter_file.h"

namespace sftrun::weights {

/// Reads the adapters of experts: of all experts of a layer (PEFT's `target_parameters`), or of the
/// single experts that older transformers versions have as modules.
class ExpertAdapters {
 public:
  /// Arguments outlive this.   @param specs, old_modules of the model, by name
  ExpertAdapters(const AdapterValues& values, const spec::LoraSpec& lora,
                 const std::map<std::string, spec::TensorSpec>& specs,
                 const std::map<std::string, OldModule>& old_modules)
      : values_(values), lora_(lora), specs_(specs), old_modules_(old_modules) {}

  /// @param name of the tensor, without PEFT's prefix   @return whether it belongs to experts
  bool read(const SafetensorsEntry& entry, const std::string& name, AdapterTensors& result);
  /// @throws DataError if only some single experts of a layer had adapters
  void require_all() const;

 private:
  bool read_single(const SafetensorsEntry& entry, const std::string& name, AdapterTensors& result);
  bool read_layers(const SafetensorsEntry& entry, const std::string& name,
                   AdapterTensors& result) const;
  const spec::TensorSpec* experts_of(const std::string& module) const;
  bool is_target(const std::string& parameter) const;

  const AdapterValues& values_;
  const spec::LoraSpec& lora_;
  const std::map<std::string, spec::TensorSpec>& specs_;
  const std::map<std::string, OldModule>& old_modules_;
  std::map<std::string, size_t> old_tensors_;  ///< tensors read, by experts' tensor
};

}  // namespace sftrun::weights
