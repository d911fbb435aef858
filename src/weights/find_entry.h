#pragma once

#include <functional>
#include <string>

#include "sftrun/weights/safetensors.h"

namespace sftrun::weights {

/// Looks up a tensor of the checkpoint; nullptr: not found.
using FindEntry = std::function<const SafetensorsEntry*(const std::string& name)>;

}  // namespace sftrun::weights
