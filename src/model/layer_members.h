#pragma once

#include "sftrun/model/decoder.h"

/// Maps the slots of the `ArchSpec` to members of a layer.
namespace sftrun::model {

layers::Linear& member(Layer& layer, spec::LinearSlot slot);
layers::Norm& member(Layer& layer, spec::NormSlot slot);

/// Destination of a tensor of the model.
struct Place {
  at::Tensor* weight;
  layers::Parameter** parameter;
};
Place member(Layer& layer, spec::WeightSlot slot);

/// Sets the options of a layer that do not depend on its weights.
void describe(Layer& layer, const spec::ArchSpec& arch, int64_t index);

}  // namespace sftrun::model
