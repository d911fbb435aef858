#include "merge_writers.h"
#include "quantized_tensors.h"
#include "sftrun/core/plural.h"
#include "sftrun/images/caps_file.h"
#include "sftrun/model/adapter_io.h"
#include "sftrun/weights/hf_text_files.h"
#include "sftrun/weights/projectors.h"
#include "stored_dtype.h"

namespace sftrun::exporting {
namespace fs = std::filesystem;
namespace {

/// How a merged directory's weights are stored: as `sftrun quantize` would store the dense one's.
struct Storage {
  DType dtype = DType::kF32;  ///< of what is not quantised, and of what is when it is unpacked
  std::optional<QuantOptions> quant;
  QuantizedModules modules;  ///< of quant
};

/// Blocks are those of a base that is quantised itself, and its modules that are not stay so.
/// @param dense names or parts of names of others
void take_from_base(Storage& storage, const weights::Checkpoint& base,
                    std::vector<std::string> dense) {
  bool is_quantised = false;
  for (const weights::TensorInfo& info : base.tensors()) {
    if (!storage.modules.take(info)) continue;
    const auto packed = base.packed(info.name);
    const auto* matrix = packed ? std::get_if<weights::CodedMatrix>(&*packed) : nullptr;
    if (matrix == nullptr) {
      dense.push_back(info.name.substr(0, info.name.rfind('.')));
      continue;
    }
    is_quantised = true;
    if (matrix->block_size == 0) continue;  // scales of rows
    storage.quant->block_size = matrix->block_size;
    storage.quant->nested = matrix->is_nested;
  }
  if (is_quantised) storage.modules = choose_modules(base.arch(), dense);
}

Storage storage_of(const MergeOptions& options, const weights::Checkpoint& base) {
  const QuantFormatInfo* format = find_quant_format(options.dtype);
  if (format == nullptr) return {.dtype = dtype_to_store(options.dtype, base)};
  Storage storage{.dtype = dtype_to_store("auto", base),
                  .quant = QuantOptions{.format = format->format},
                  .modules = choose_modules(base.arch(), options.skip_modules)};
  storage.modules.require_used();
  take_from_base(storage, base, options.skip_modules);
  if (options.block_size) storage.quant->block_size = *options.block_size;
  if (options.no_double_quant) storage.quant->nested = false;
  return storage;
}

/// The tokenizer that tokens were added to, where the adapter brings one; else the base's.
void write_texts(const MergeOptions& options, const weights::AdapterBase& base,
                 const fs::path& directory) {
  const weights::Checkpoint& checkpoint = *base.checkpoint;
  auto chat_template = chat_template_of(options);
  if (base.text_directory && !chat_template) chat_template = checkpoint.chat_template();
  model::write_text_files(checkpoint, base.text_directory.value_or(options.base), directory,
                          chat_template);
  weights::write_template_variables(directory, template_variables_of(options));
  if (const images::ImageCaps caps = image_caps_of(options); caps.any()) {
    images::write_caps(directory, caps);
    images::lower_limits(directory, options.base, caps);
  }
  weights::write_projectors(directory, base.checkpoint->arch().projectors);
  if (const auto embedding = embedding_of(options))
    weights::write_embedding_files(directory, *embedding, checkpoint.arch().hidden_size);
  if (base.text_directory) weights::copy_generation_config(options.base, directory);
  if (base.new_eos) weights::add_eos(directory, *base.new_eos);
}

/// @return how the weights are stored, in words
std::string write_directory(const MergeOptions& options, const weights::AdapterBase& opened,
                            MergedWeights& merged, const Storage& storage,
                            const fs::path& directory) {
  const weights::Checkpoint& base = *opened.checkpoint;
  std::optional<QuantizedTensors> quantised;
  if (storage.quant) quantised.emplace(base, *storage.quant, storage.dtype);
  std::vector<weights::TensorToWrite> tensors;
  const size_t last_of_text = spec::tensor_specs(base.arch()).size() - 1;
  for (size_t i = 0; i < base.tensors().size(); ++i) {
    const weights::TensorInfo& info = base.tensors()[i];
    std::function<at::Tensor()> values;
    if (merged.is_changed(info.name)) values = [&merged, &info] { return merged.of(info); };
    if (storage.quant && storage.modules.take(info))
      quantised->add(info, values, tensors);
    else
      model::add_stored(base, info, storage.dtype, values, tensors);
    if (i == last_of_text && merged.unties_head()) tensors.push_back(merged.head(storage.dtype));
  }
  weights::refuse_overflow(tensors);
  weights::write_sharded_safetensors(directory, tensors, options.max_shard_bytes);
  model::write_config(base, options.base, directory, storage.dtype, merged.unties_head(),
                      quantised ? quantised->config(storage.modules) : nullptr);
  write_texts(options, opened, directory);
  return quantised ? fmt::format("{} in {}, the rest in {}",
                                 counted(storage.modules.quantised.size(), "matrix"), options.dtype,
                                 name_of(storage.dtype))
                   : std::string(name_of(storage.dtype));
}

bool is_below_8_bits(const Storage& storage) {
  return storage.quant && quant_info(storage.quant->format).bits < 8;
}

}  // namespace

WrittenModel write_safetensors_model(const MergeOptions& options, const weights::AdapterBase& base,
                                     MergedWeights& merged) {
  const Storage storage = storage_of(options, *base.checkpoint);
  WrittenModel written{.path = options.output,
                       .dtype = storage.quant ? options.dtype : dtype_word(storage.dtype),
                       .is_below_8_bits = is_below_8_bits(storage),
                       .in_more_than_base = options.dtype == "auto"};
  write_merged_directory(options, [&](const fs::path& directory) {
    written.stored = write_directory(options, base, merged, storage, directory);
  });
  return written;
}

}  // namespace sftrun::exporting
