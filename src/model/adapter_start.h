#pragma once

#include "sftrun/model/decoder.h"
#include "sftrun/model/pissa.h"
#include "sftrun/weights/safetensors.h"

namespace sftrun::model {

/// Initialises adapters. The frozen weights must be loaded.
class AdapterStart {
 public:
  AdapterStart(const DecoderOptions& options, const WeightSource& source);

  /// @throws ConfigError if the matrix' size or storage format does not allow PiSSA
  void start(layers::Linear& linear);
  void start(layers::Embedding& embedding) const;
  void start(layers::ExpertLora& lora) const;
  /// PiSSA: initial A and B by parameter name.
  const std::map<std::string, at::Tensor>& principal_parts() const { return principal_parts_; }

 private:
  void initialise(layers::Parameter& a, layers::Parameter& b, uint32_t module_number) const;
  void take_principal_part(layers::Linear& linear);
  PrincipalPart stored_part(const layers::LoraAdapter& lora) const;

  const DecoderOptions& options_;
  const WeightSource& source_;
  std::optional<weights::SafetensorsFile> stored_parts_;
  std::map<std::string, at::Tensor> principal_parts_;
};

}  // namespace sftrun::model
