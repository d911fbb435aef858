#pragma once

#include <functional>
#include <string>

#include "sftrun/weights/safetensors.h"

namespace sftrun::weights {

/// How to look a tensor of the checkpoint up; null: not there.
using FindEntry = std::function<const SafetensorsEntry*(const std::string& name)>;

}  // namespace sftrun::weights
