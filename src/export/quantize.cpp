#include "sftrun/export/quantize.h"

#include "quantized_tensors.h"
#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/core/new_directory.h"
#include "sftrun/core/plural.h"
#include "sftrun/images/caps_file.h"
#include "sftrun/model/adapter_io.h"
#include "sftrun/weights/embedding_files.h"
#include "sftrun/weights/hf_text_files.h"
#include "sftrun/weights/projectors.h"
#include "stored_dtype.h"

namespace sftrun::exporting {
namespace fs = std::filesystem;
namespace {

void refuse_quantised(const weights::Checkpoint& base, const fs::path& path) {
  for (const weights::TensorInfo& tensor : base.tensors()) {
    const auto packed = base.packed(tensor.name);
    const weights::CodedMatrix* coded = packed ? weights::first_coded(*packed) : nullptr;
    if (coded == nullptr) continue;
    throw DataError(
        fmt::format("the model is already quantised to {} bits", quant_info(coded->format).bits),
        path.string(), "quantise the model that it was made from");
  }
}

}  // namespace

void quantize(const QuantizeOptions& options) {
  const auto base = weights::Checkpoint::open(options.model);
  refuse_quantised(*base, options.model);
  const auto embedding = weights::read_embedding_files(options.model);
  const QuantizedModules modules = choose_modules(base->arch(), options.skip_modules);
  modules.require_used();
  const DType dtype = dtype_to_store(options.dtype, *base);
  QuantizedTensors quantised(*base,
                             {.format = find_quant_format(options.method)->format,
                              .block_size = options.block_size,
                              .nested = options.double_quant},
                             dtype);
  std::vector<weights::TensorToWrite> tensors;
  for (const weights::TensorInfo& info : base->tensors()) {
    if (modules.take(info))
      quantised.add(info, {}, tensors);
    else
      model::add_stored(*base, info, dtype, {}, tensors);
  }
  weights::refuse_overflow(tensors);
  const auto write = [&](const fs::path& directory) {
    weights::write_sharded_safetensors(directory, tensors, options.max_shard_bytes);
    model::write_config(*base, options.model, directory, dtype, /*unties_head=*/false,
                        quantised.config(modules));
    model::write_text_files(*base, options.model, directory, std::nullopt);
    weights::write_template_variables(directory, weights::read_template_variables(options.model));
    images::write_caps(directory, images::read_caps(options.model));  // its other files have them
    weights::write_projectors(directory, base->arch().projectors);
    if (embedding) weights::write_embedding_files(directory, *embedding, base->arch().hidden_size);
  };
  write_new_directory(options.output, "the quantised model", write,
                      existing_with(options.overwrite));
  log::info("wrote {}: {} in {}, the rest in {}", options.output.string(),
            counted(modules.quantised.size(), "matrix"), options.method, name_of(dtype));
}

}  // namespace sftrun::exporting
