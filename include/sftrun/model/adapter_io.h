#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "sftrun/model/decoder.h"
#include "sftrun/weights/peft.h"
#include "sftrun/weights/safetensors.h"

/// Conversion of a decoder's adapter to and from PEFT's files, and writing of whole models.
namespace sftrun::model {

/// The PEFT adapter_config of what this decoder trained.
weights::AdapterConfig adapter_config_of(Decoder& decoder,
                                         const std::string& base_model_name_or_path);

/// Copies an adapter's values into the decoder's parameters.
/// @throws DataError if the adapter's modules or sizes differ from the decoder's
/// @throws ConfigError if its ranks, or the use of DoRA, differ
void load_adapter_weights(Decoder& decoder, const std::filesystem::path& directory);
/// Sets the fp32 values of a parameter, in its shape.
using SetMaster = std::function<void(layers::Parameter&, const at::Tensor&)>;
/// The same for parameters that are not whole in this process.
void load_adapter_weights(Decoder& decoder, const std::filesystem::path& directory,
                          const SetMaster& set_master);

/// The fp32 values of a parameter, in its shape: of a strategy that divides parameters over the
/// ranks, gathered from them.
using MasterValues = std::function<at::Tensor(const layers::Parameter&)>;
/// For parameters that are whole in this process.
MasterValues own_masters();

/// All trained parameters as fp32 tensors, with PEFT's names for adapters and Hugging Face names
/// for base weights.
/// @param masters called when a tensor is written; copied into the result, so what it refers to
/// must outlive it
std::vector<weights::TensorToWrite> trained_tensors(Decoder& decoder,
                                                    const MasterValues& masters = own_masters());
/// Trained parameters in PEFT's form. A PiSSA adapter is converted to a LoRA of twice the rank on
/// the original base, [A ; A0] and [B | -B0] with the initial A0 and B0, as peft's save_pretrained
/// does (path_initial_model_for_weight_conversion).
std::vector<weights::TensorToWrite> adapter_tensors(Decoder& decoder,
                                                    const MasterValues& masters = own_masters());
/// PiSSA: initial A and B, which were subtracted from the base; empty for other adapters.
std::vector<weights::TensorToWrite> principal_part_tensors(const Decoder& decoder);
at::ScalarType torch_dtype(DType dtype);
/// Adds one tensor of a model to `tensors`, named, split and ordered as in the base's files.
/// @param values the tensor's values, called once per part; empty: the base's own values
void add_stored(const weights::Checkpoint& base, const weights::TensorInfo& info, DType dtype,
                const std::function<at::Tensor()>& values,
                std::vector<weights::TensorToWrite>& tensors);
/// The whole model in `dtype` (contents of model.safetensors); trained parameters come from their
/// fp32 masters.
std::vector<weights::TensorToWrite> model_tensors(Decoder& decoder, const weights::Checkpoint& base,
                                                  DType dtype,
                                                  const MasterValues& masters = own_masters());

/// Copies the tokenizer and chat template of a base model (directory or GGUF) into `directory`.
/// @param trained_with chat template that replaces the base's
void write_text_files(const weights::Checkpoint& base, const std::filesystem::path& base_path,
                      const std::filesystem::path& directory,
                      const std::optional<std::string>& trained_with);
/// Writes the config.json of a model whose weights are stored in `dtype`: a copy of the base's, or
/// for a GGUF base an equivalent one, with dtype, quantisation, vocabulary size and tying of the
/// embeddings updated.
/// @param unties_head the files contain a separate head although the base ties it to the embedding
/// @param quantization value of `quantization_config`; null: none
void write_config(const weights::Checkpoint& base, const std::filesystem::path& base_path,
                  const std::filesystem::path& directory, DType dtype, bool unties_head = false,
                  const nlohmann::ordered_json& quantization = nullptr);

}  // namespace sftrun::model
