#include "sftrun/spec/quantised_modules.h"
#include "sftrun/spec/blocks.h"

namespace sftrun::spec {

std::vector<std::string> quantised_modules(const ArchSpec& arch) {
  std::vector<std::string> modules;
  if (arch.per_layer_size > 0) modules.push_back(arch.prefix + "per_layer_model_projection");
  for (int64_t layer = 0; layer < arch.num_layers; ++layer) {
    for (const LinearSpec& linear : layer_linears(arch, layer)) {
      if (!linear.is_router) modules.push_back(name_in_layer(arch, layer, linear.module));
    }
  }
  return modules;
}

bool splits_by_expert(const std::vector<int64_t>& shape, int64_t block_size) {
  return shape[1] * shape[2] % block_size == 0;
}

}  // namespace sftrun::spec
