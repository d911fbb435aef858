#include <cstdio>
#include <filesystem>

#include "commands.h"
#include "quantized_tensors.h"
#include "session.h"
#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/core/new_directory.h"
#include "sftrun/kernels/quant.h"
#include "sftrun/model/adapter_io.h"
#include "sftrun/weights/safetensors.h"
#include "sftrun/weights/weights_summary.h"

/// A model in fewer bits on disk. One matrix at a time is in memory.
namespace sftrun::engine {
namespace fs = std::filesystem;
namespace {

void refuse_quantised(const weights::Checkpoint& base, const fs::path& path) {
  for (const weights::TensorInfo& tensor : base.tensors()) {
    const auto packed = base.packed(tensor.name);
    if (!packed) continue;
    const bool is_four = std::holds_alternative<weights::FourBits>(*packed);
    if (!is_four && !std::holds_alternative<weights::EightBitRows>(*packed)) continue;
    throw DataError(fmt::format("the model is in {} bits already", is_four ? 4 : 8), path.string(),
                    "quantise the model that it was made from");
  }
}

}  // namespace

int run_quantize(const nlohmann::json& request) {
  set_threads(request);
  choose_compute("cpu", "fp32", 0);
  const fs::path base_path = request.at("model").get<std::string>(),
                 output = request.at("output").get<std::string>();
  const auto base = weights::Checkpoint::open(base_path);
  refuse_quantised(*base, base_path);
  const auto method = request.at("method").get<std::string>();
  const QuantOptions options{.format = find_quant_format(method)->format,
                             .block_size = request.at("block_size").get<int64_t>(),
                             .nested = request.at("double_quant").get<bool>()};
  const QuantizedModules modules =
      choose_modules(base->arch(), request.at("skip_modules").get<std::vector<std::string>>());
  modules.require_used();
  const DType dtype = dtype_to_store(request.at("dtype").get<std::string>(), *base);
  QuantizedTensors quantised(*base, options, dtype);
  std::vector<weights::TensorToWrite> tensors;
  for (const weights::TensorInfo& info : base->tensors()) {
    if (modules.take(info))
      quantised.add(info, {}, tensors);
    else
      model::add_stored(*base, info, dtype, {}, tensors);
  }
  weights::refuse_overflow(tensors);
  const auto write = [&](const fs::path& directory) {
    weights::write_sharded_safetensors(
        directory, tensors, static_cast<uint64_t>(request.at("max_shard_size").get<int64_t>()));
    model::write_config(*base, base_path, directory, dtype, /*parts_head=*/false,
                        quantised.config(modules));
    model::write_text_files(*base, base_path, directory, std::nullopt);
  };
  write_new_directory(
      output, "the quantised model", write,
      request.at("overwrite").get<bool>() ? Existing::kReplace : Existing::kMustBeEmpty);
  const auto method = request.at("method").get<std::string>();
  log::info("wrote {}: {} matrices in {}, the rest in {}", output.string(),
            modules.quantised.size(), method, name_of(dtype));
  if (request.at("json").get<bool>()) {
    const auto description = weights::describe_written(output, "safetensors", method, nullptr);
    std::printf("%s\n", description.dump().c_str());
  }
  return 0;
}

}  // namespace sftrun::engine
