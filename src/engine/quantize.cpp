#include "sftrun/export/quantize.h"

#include <cstdio>

#include "commands.h"
#include "session.h"
#include "sftrun/weights/weights_summary.h"

namespace sftrun::engine {

int run_quantize(const app::QuantizeRequest& request) {
  set_threads();
  choose_compute("cpu", "fp32", 0);
  exporting::QuantizeOptions options;
  options.model = request.model;
  options.output = request.output;
  options.method = request.method;
  options.block_size = request.quant.block_size.value_or(options.block_size);
  options.double_quant = !request.quant.no_double_quant;
  options.skip_modules = request.quant.skip_modules;
  options.dtype = request.dtype;
  options.max_shard_bytes = static_cast<uint64_t>(request.max_shard_size);
  options.overwrite = request.overwrite;
  exporting::quantize(options);
  if (request.json) {
    const auto description =
        weights::describe_written(options.output, "safetensors", options.method, nullptr);
    std::printf("%s\n", description.dump().c_str());
  }
  return 0;
}

}  // namespace sftrun::engine
