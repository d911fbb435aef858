#pragma once

#include "sftrun/model/decoder.h"

/// Which member of a layer a slot of the `ArchSpec` is.
namespace sftrun::model {

kernels::Linear& member(Layer& layer, spec::LinearSlot slot);
kernels::Norm& member(Layer& layer, spec::NormSlot slot);

/// Where a tensor of the model goes.
struct Place {
  at::Tensor* weight;
  kernels::Parameter** parameter;
};
Place member(Layer& layer, spec::WeightSlot slot);

/// What a layer does beside its weights.
void describe(Layer& layer, const spec::ArchSpec& arch, int64_t index);

}  // namespace sftrun::model
