#include "saved_rows.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "sftrun/core/error.h"
#include "sftrun/core/finite.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/strings.h"
#include "sftrun/spec/trained_names.h"
#include "sftrun/weights/convert.h"
#include "shape_math.h"

namespace sftrun::weights {
namespace {

/// Names under which PEFT saves the base's embedding or head, depending on how it wraps the module.
/// The first one found is used; if there are two, the second is a copy.
constexpr std::array<std::string_view, 6> kRows = {"weight",
                                                   "base_layer.weight",
                                                   "token_adapter.base_layer.weight",
                                                   "original_module.weight",
                                                   "modules_to_save.weight",
                                                   "modules_to_save.default.weight"};
constexpr std::string_view kTokens = "token_adapter.trainable_tokens_delta";

/// Fully trained modules have their trained weight under these names.
bool is_trained(std::string_view ending) {
  return ending == "weight" || ending.starts_with("modules_to_save.");
}

bool trains_whole(const AdapterConfig& config, const std::string& module) {
  return spec::is_saved(config.lora.modules_to_save, module + ".weight");
}

bool same_bytes(const SafetensorsEntry* a, const SafetensorsEntry* b) {
  if (a == nullptr || b == nullptr) return a == b;
  return a->dtype == b->dtype && a->shape == b->shape &&
         (a->bytes.empty() || std::memcmp(a->bytes.data(), b->bytes.data(), a->bytes.size()) == 0);
}

void require_rows(const SafetensorsEntry& entry, const std::string& where, int64_t hidden_size) {
  const auto fail = [&](const std::string& what, const char* fix) {
    throw DataError(fmt::format("tensor `{}` {}", entry.name, what), where, fix);
  };
  if (entry.shape.size() != 2 || entry.shape[1] != hidden_size || entry.shape[0] == 0) {
    fail(fmt::format("has the shape {}, expected [tokens, {}]", shape_text(entry.shape),
                     hidden_size),
         "adapter_config.json, adapter_model.safetensors and the model must belong together");
  }
  const std::optional<DType> dtype = float_dtype(entry.dtype);
  if (!dtype) fail(fmt::format("is stored as {}, which is not supported", entry.dtype), "");
  std::vector<float> row(static_cast<size_t>(hidden_size));
  for (int64_t i = 0; i < entry.shape[0]; ++i) {
    convert(*dtype, entry.bytes.data() + i * hidden_size * size_of(*dtype), DType::kF32,
            reinterpret_cast<std::byte*>(row.data()), hidden_size);
    if (!all_finite(row))
      fail("has NaN or infinite values",
           "the training that wrote it diverged: use an earlier checkpoint");
  }
}

void require_rows_of_base(const SafetensorsEntry& entry, const std::string& where,
                          const spec::ArchSpec& arch) {
  if (entry.shape == std::vector<int64_t>{arch.vocab_size, arch.hidden_size}) return;
  throw DataError(
      fmt::format("tensor `{}` has the shape {}, but the base's has [{}, {}]: the vocabulary was "
                  "resized before PiSSA changed the rows",
                  entry.name, shape_text(entry.shape), arch.vocab_size, arch.hidden_size),
      where, "save the adapter in PEFT with path_initial_model_for_weight_conversion");
}

/// A plain list in adapter_config.json is for the embedding, and for a head tied to it.
const std::vector<int64_t>* indices_for(const AdapterConfig& config, const spec::ArchSpec& arch,
                                        const std::string& module) {
  const auto named = [&](const std::string& wanted) -> const std::vector<int64_t>* {
    for (const auto& [name, indices] : config.trainable_tokens) {
      if (ends_with_name(wanted, name)) return &indices;
    }
    return nullptr;
  };
  const std::vector<int64_t>* own = named(module);
  return own != nullptr || !arch.tie_word_embeddings ? own : named(spec::embedding_module(arch));
}

/// Without the name that PEFT gives to an adapter that has none of its own.
std::string without_adapter_name(const std::string& name) {
  constexpr std::string_view kName = ".default";
  for (const std::string_view part :
       {".lora_A", ".lora_B", ".lora_embedding_A", ".lora_embedding_B", ".lora_magnitude_vector"}) {
    const std::string with_name = std::string(part) + std::string(kName);
    const size_t at = name.rfind(with_name);
    if (at == std::string::npos) continue;
    const std::string end = name.substr(at + with_name.size());
    const bool is_vector = part == ".lora_magnitude_vector" && end == ".weight";
    if (end.empty() || is_vector) return name.substr(0, at + part.size());
    if (end == ".weight") return name.substr(0, at + part.size()) + end;
  }
  return name;
}

}  // namespace

SafetensorsFile open_adapter_file(const std::filesystem::path& path) {
  SafetensorsFile file(path);
  file.rename(without_adapter_name, path.string());
  return file;
}

bool SavedRows::has_same_values(const SavedRows& other) const {
  return same_bytes(rows, other.rows) && same_bytes(tokens, other.tokens) &&
         indices == other.indices;
}

bool is_embedding_or_head(const std::string& name, const AdapterConfig& config,
                          const spec::ArchSpec& arch) {
  for (const std::string& module : {spec::embedding_module(arch), std::string(spec::kHeadModule)}) {
    if (!name.starts_with(module + ".")) continue;
    const std::string_view ending = std::string_view(name).substr(module.size() + 1);
    if (ending == kTokens) return true;
    const bool is_rows = std::find(kRows.begin(), kRows.end(), ending) != kRows.end();
    return is_rows && !(is_trained(ending) && trains_whole(config, module));
  }
  return false;
}

SavedRows find_saved_rows(const SafetensorsFile& file, const std::string& where,
                          const AdapterConfig& config, const spec::ArchSpec& arch,
                          const std::string& module) {
  SavedRows end{.module = module};
  const std::string prefix = std::string(kPeftPrefix) + module + ".";
  for (const std::string_view ending : kRows) {
    if (is_trained(ending) && trains_whole(config, module)) continue;
    const SafetensorsEntry* found = file.find(prefix + std::string(ending));
    // With PiSSA this is the residual of the base's rows, which is computed again from them.
    if (found != nullptr && config.lora.pissa && ending == "base_layer.weight")
      require_rows_of_base(*found, where, arch);
    else if (end.rows == nullptr)
      end.rows = found;
  }
  // Older versions save only the trained weight, so a resized one also replaces the base's rows.
  if (end.rows == nullptr && trains_whole(config, module)) {
    const SafetensorsEntry* trained = file.find(prefix + "weight");
    const bool is_resized =
        trained != nullptr && !trained->shape.empty() && trained->shape[0] != arch.vocab_size;
    if (is_resized) end.rows = trained;
  }
  end.tokens = file.find(prefix + std::string(kTokens));
  for (const SafetensorsEntry* entry : {end.rows, end.tokens}) {
    if (entry != nullptr) require_rows(*entry, where, arch.hidden_size);
  }
  if (end.tokens == nullptr) return end;
  const std::vector<int64_t>* indices = indices_for(config, arch, module);
  const int64_t count = end.rows != nullptr ? end.rows->shape[0] : arch.vocab_size;
  const auto fail = [&](const std::string& what, const char* fix) {
    throw DataError(fmt::format("tensor `{}` has {}; {}", end.tokens->name,
                                counted(end.tokens->shape[0], "row"), what),
                    where, fix);
  };
  if (indices == nullptr || static_cast<int64_t>(indices->size()) != end.tokens->shape[0]) {
    fail("`trainable_token_indices` of adapter_config.json has a different number of tokens",
         "adapter_config.json and adapter_model.safetensors must belong together");
  }
  for (const int64_t index : *indices) {
    if (index >= count) {
      fail(fmt::format("one is for token {}, but the model has only {} tokens", index, count),
           "if the vocabulary was resized, save it with the adapter: save_pretrained(…, "
           "save_embedding_layers=True)");
    }
  }
  end.indices = *indices;
  return end;
}

}  // namespace sftrun::weights
