#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "sftrun/spec/arch_spec.h"
#include "sftrun/weights/peft.h"

namespace sftrun::weights {

/// A base model and the modules that an adapter changes.
struct AdaptedBase {
  std::filesystem::path path;  ///< a directory, or the .gguf file
  const spec::ArchSpec& arch;
  std::function<bool(const std::string& module)> is_adapted;  ///< also for experts' tensors
};

/// Why llama.cpp cannot apply an adapter to its base, and what to do.
struct GgufLoraRefusal {
  std::string what;
  std::string where;  ///< the adapter's directory, or the base file
  std::string fix;    ///< before the command, if there is one
  /// Flags of the `sftrun merge` that writes the merged model as a GGUF file, without the adapter
  /// and the output; empty: llama.cpp cannot run the merged model either.
  std::string merge_flags;
};

/// nullopt: it can. It cannot: fully trained modules (modules_to_save), DoRA, PiSSA, an adapted
/// embedding or head that the base ties, a base file that stores adapted tensors fused with others.
/// @param directory the adapter's
/// @throws DataError for a model that GGUF cannot express
std::optional<GgufLoraRefusal> gguf_lora_refusal(const AdapterConfig& config,
                                                 const std::filesystem::path& directory,
                                                 const AdaptedBase& base);

/// Writes the adapter in `directory` for use with llama.cpp (llama-server --lora,
/// llama-cpp-python's lora_path): general.type "adapter", adapter.type "lora", and for each adapted
/// tensor `<name>.lora_a` [r, in] and `<name>.lora_b` [out, r], with rows and columns in the order
/// of the base's GGUF file. llama.cpp multiplies by adapter.lora.alpha / r; if the adapter has
/// another scale (rsLoRA, alpha or rank by pattern), the remaining factor is multiplied into B.
///     experts: one tensor for all experts; gate and up have the same A
///     the embedding: `lora_a` is [vocab, r], because llama.cpp looks up the rows of tokens
/// @param base the model: a directory, or the .gguf file, which must contain the adapted tensors
/// @param dtype "f32", "f16" or "bf16"   @param file its directory is created if needed, after all
/// checks have passed
/// @throws DataError as load_adapter, and if llama.cpp cannot apply the adapter
void write_gguf_lora(const std::filesystem::path& directory, const std::filesystem::path& base,
                     const spec::ArchSpec& arch, const std::string& dtype,
                     const std::filesystem::path& file);

}  // namespace sftrun::weights
