#pragma once

#include "sftrun/model/decoder.h"
#include "sftrun/model/pissa.h"
#include "sftrun/weights/safetensors.h"

namespace sftrun::model {

/// What updates are before the first step; frozen weights are loaded already.
class AdapterStart {
 public:
  AdapterStart(const DecoderOptions& options, const WeightSource& source);

  /// @throws ConfigError where PiSSA does not suit the matrix or its form
  void start(kernels::Linear& linear);
  void start(kernels::Embedding& embedding) const;
  void start(kernels::ExpertLora& lora) const;
  /// What PiSSA took from the base, by the names of the updates' parameters.
  const std::map<std::string, at::Tensor>& principal_parts() const { return principal_parts_; }

 private:
  void initialise(kernels::Parameter& a, kernels::Parameter& b, uint32_t module_number) const;
  void take_principal_part(kernels::Linear& linear);
  PrincipalPart stored_part(const kernels::LoraAdapter& lora) const;

  const DecoderOptions& options_;
  const WeightSource& source_;
  std::optional<weights::SafetensorsFile> stored_parts_;
  std::map<std::string, at::Tensor> principal_parts_;
};

}  // namespace sftrun::model
