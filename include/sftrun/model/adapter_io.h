#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "sftrun/model/decoder.h"
#include "sftrun/weights/peft.h"
#include "sftrun/weights/safetensors.h"

/// A decoder's adapter to and from PEFT's files.
namespace sftrun::model {

/// How to build a decoder that an adapter fits.
LoraOptions lora_options_of(const weights::AdapterConfig& config);
/// The configuration that peft needs to load what this decoder trained.
weights::AdapterConfig adapter_config_of(Decoder& decoder,
                                         const std::string& base_model_name_or_path);

/// Copies an adapter's values into the decoder's parameters.
/// @throws DataError when the adapter's modules or sizes are not those that the decoder was built
/// with.
void load_adapter_weights(Decoder& decoder, const std::filesystem::path& directory);

/// All trained parameters as fp32 tensors under their own names (PEFT's for adapters, Hugging
/// Face's for base weights).
std::vector<weights::TensorToWrite> trained_tensors(Decoder& decoder);
/// The trained parameters as PEFT reads them: PiSSA's as an update of twice the rank of the whole
/// base, A and A0 above each other, B and -B0 side by side, as peft's save_pretrained converts them
/// (path_initial_model_for_weight_conversion).
std::vector<weights::TensorToWrite> adapter_tensors(Decoder& decoder);
/// PiSSA's parts that left the base; of other adapters none.
std::vector<weights::TensorToWrite> principal_part_tensors(const Decoder& decoder);
at::ScalarType torch_dtype(DType dtype);
/// As config.json and bitsandbytes write it: "bfloat16".
const char* torch_dtype_name(DType dtype);
/// Adds a tensor of a model as a directory's files hold it, whole or in parts.
/// @param values its values in fp32, asked for once a part; empty: what the base holds
void add_stored(const weights::Checkpoint& base, const weights::TensorInfo& info, DType dtype,
                const std::function<at::Tensor()>& values,
                std::vector<weights::TensorToWrite>& tensors);
/// The whole model in `dtype`, trained parameters from their fp32 masters: what model.safetensors
/// holds.
std::vector<weights::TensorToWrite> model_tensors(Decoder& decoder, const weights::Checkpoint& base,
                                                  DType dtype);

/// Copies tokenizer and template of a base model (directory or GGUF) into `directory`.
/// @param trained_with the template that takes the place of the base's own, if any
void write_text_files(const weights::Checkpoint& base, const std::filesystem::path& base_path,
                      const std::filesystem::path& directory,
                      const std::optional<std::string>& trained_with);
/// Writes the config.json of a model whose weights are stored in `dtype`: the base's own but for
/// that, or for a GGUF file one that means the same.
/// @param parts_head the files hold a head that was tied to the embedding
/// @param quantization its `quantization_config`; null: none
void write_config(const weights::Checkpoint& base, const std::filesystem::path& base_path,
                  const std::filesystem::path& directory, DType dtype, bool parts_head = false,
                  const nlohmann::ordered_json& quantization = nullptr);

}  // namespace sftrun::model
