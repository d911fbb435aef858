#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "sftrun/spec/arch_spec.h"
#include "sftrun/weights/peft.h"

namespace sftrun::weights {

/// A base, and what an adapter changes of it.
struct AdaptedBase {
  std::filesystem::path path;  ///< a directory, or the .gguf file
  const spec::ArchSpec& arch;
  std::function<bool(const std::string& module)> is_adapted;  ///< also of an experts' tensor
};

/// Whether llama.cpp can apply such an adapter beside its base.
/// @param directory the adapter's
/// @throws DataError where it cannot: for a model that it has no word for, whole modules
/// (modules_to_save), DoRA, PiSSA, an embedding or head that the base ties, and a base file that
/// holds adapted tensors together with others
void require_gguf_lora(const AdapterConfig& config, const std::filesystem::path& directory,
                       const AdaptedBase& base);

/// Writes the adapter in `directory` as llama.cpp reads one beside its base (llama-server --lora,
/// llama-cpp-python's lora_path): general.type "adapter", adapter.type "lora", and of each adapted
/// tensor `<name>.lora_a` [r, in] and `<name>.lora_b` [out, r], in the order of rows and columns
/// that the base's file has. llama.cpp multiplies by adapter.lora.alpha / r; where that is not this
/// adapter's scale (rsLoRA, alphas or ranks by pattern), B is multiplied by what is missing.
///     experts: a tensor for all of them, gate and up with the same A each
///     the embedding: `lora_a` is [vocab, r], of which llama.cpp looks tokens' rows up
/// @param base the model: a directory, or the .gguf file, whose tensors must then be those adapted
/// @param dtype "f32", "f16" or "bf16"   @param file in a directory that is made where it is not
/// there, once everything is found good
/// @throws DataError as load_adapter and require_gguf_lora
void write_gguf_lora(const std::filesystem::path& directory, const std::filesystem::path& base,
                     const spec::ArchSpec& arch, const std::string& dtype,
                     const std::filesystem::path& file);

}  // namespace sftrun::weights
