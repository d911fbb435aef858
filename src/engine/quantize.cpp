#include "sftrun/export/quantize.h"

#include <cstdio>

#include "commands.h"
#include "session.h"
#include "sftrun/weights/weights_summary.h"

namespace sftrun::engine {

int run_quantize(const nlohmann::ordered_json& request) {
  set_threads(request);
  choose_compute("cpu", "fp32", 0);
  exporting::QuantizeOptions options;
  options.model = request.at("model").get<std::string>();
  options.output = request.at("output").get<std::string>();
  options.method = request.at("method").get<std::string>();
  options.block_size = request.at("block_size").get<int64_t>();
  options.double_quant = request.at("double_quant").get<bool>();
  options.skip_modules = request.at("skip_modules").get<std::vector<std::string>>();
  options.dtype = request.at("dtype").get<std::string>();
  options.max_shard_bytes = static_cast<uint64_t>(request.at("max_shard_size").get<int64_t>());
  options.overwrite = request.at("overwrite").get<bool>();
  exporting::quantize(options);
  if (request.at("json").get<bool>()) {
    const auto description =
        weights::describe_written(options.output, "safetensors", options.method, nullptr);
    std::printf("%s\n", description.dump().c_str());
  }
  return 0;
}

}  // namespace sftrun::engine
