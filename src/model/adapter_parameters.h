#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model_tensors.h"
#include "sftrun/layers/linear.h"
#include "sftrun/layers/mixture.h"
#include "sftrun/layers/parameter.h"
#include "sftrun/spec/blocks.h"
#include "sftrun/spec/lora_spec.h"

namespace sftrun::model {

/// Makes parameters, and the adapters that have some.
class AdapterParameters {
 public:
  AdapterParameters(layers::ParameterStore& store, const spec::ArchSpec& arch,
                    const spec::LoraSpec& lora)
      : store_(store), arch_(arch), lora_(lora) {}

  /// @param shape of the whole tensor   @param slice what this rank has of it; null: all
  layers::Parameter* add(const std::string& name, std::vector<int64_t> shape,
                         const TensorSlice* slice, int64_t unit, bool decays);

  /// The update of a matrix.
  struct Update {
    std::string module, pattern_name;
    int64_t in = 0, out = 0, unit = 0;
    uint32_t number = 0;
    bool of_embedding = false;
    ModelPart part = ModelPart::kLanguage;
    Division division = Division::kNone;
    const TensorSlice* slice = nullptr;  ///< of the weight; null: it is not divided
  };
  layers::LoraAdapter lora(const Update& update);

  /// The update of a matrix of every expert.   @param slice of the matrices; null: whole
  layers::ExpertLora experts(const std::string& name, const spec::ExpertSpec& spec,
                             const TensorSlice* slice, int64_t unit, uint32_t number);

 private:
  FileLayout layout_of_b(const spec::ExpertSpec& spec, int64_t r) const;
  /// PEFT's module name for the adapter of an expert tensor.
  std::string peft_module(const std::string& name) const;

  layers::ParameterStore& store_;
  const spec::ArchSpec& arch_;
  const spec::LoraSpec& lora_;
};

}  // namespace sftrun::model
