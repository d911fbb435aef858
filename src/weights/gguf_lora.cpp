#include "sftrun/weights/gguf_lora.h"

#include <cmath>

#include "gguf_mix.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"
#include "sftrun/spec/gguf_description.h"
#include "sftrun/spec/trained_names.h"
#include "sftrun/weights/adapter_file.h"
#include "sftrun/weights/gguf_export.h"
#include "sftrun/weights/gguf_quantize.h"

namespace sftrun::weights {
namespace {

namespace fs = std::filesystem;

/// A row-major tensor.
struct FloatMatrix {
  std::vector<int64_t> shape;
  std::vector<float> values;
};

/// A tensor's module name in the adapter.
std::string module_of_tensor(const std::string& tensor) {
  constexpr std::string_view kWeight = ".weight";
  return tensor.ends_with(kWeight) ? tensor.substr(0, tensor.size() - kWeight.size()) : tensor;
}

/// In gpt-oss files gate and up alternate, and PEFT's B has the same order.
bool has_rows_in_turn(const spec::TensorSpec& spec) {
  return spec.layout.view.size() == 4;
}

/// A of all experts or of one matrix: [r, in], with the columns in the file's order.
FloatMatrix a_of(const GgufPiece& piece, const LoraPair& pair) {
  FloatMatrix a{.values = pair.a};
  if (pair.num_experts > 0) a.shape.push_back(pair.num_experts);
  a.shape.insert(a.shape.end(), {pair.r, pair.in_features});
  if (piece.columns.empty()) return a;
  for (size_t i = 0; i < a.values.size(); ++i) {
    const size_t row = i / piece.columns.size(), column = i % piece.columns.size();
    a.values[i] = pair.a[row * piece.columns.size() + static_cast<size_t>(piece.columns[column])];
  }
  return a;
}

/// Converts an expert's output row from the checkpoint's order to the adapter's.
int64_t row_in_adapter(const spec::TensorSpec& spec, const LoraPair& pair, int64_t row) {
  if (!has_rows_in_turn(spec)) return row;
  const int64_t inner = pair.out_features / 2;
  return row < inner ? 2 * row : 2 * (row - inner) + 1;
}

/// B: [out, r], or [experts, out, r], times `factor`.
FloatMatrix b_of(const GgufPiece& piece, const spec::TensorSpec& spec, const LoraPair& pair,
                 double factor) {
  const int64_t experts = std::max<int64_t>(1, pair.num_experts), r = pair.r;
  FloatMatrix b;
  if (pair.num_experts > 0) b.shape.push_back(experts);
  const int64_t rows = piece.num_rows() / experts;
  b.shape.insert(b.shape.end(), {rows, r});
  b.values.reserve(static_cast<size_t>(experts * rows * r));
  for (int64_t i = 0; i < experts * rows; ++i) {
    const int64_t source = piece.rows.empty() ? i : piece.rows[static_cast<size_t>(i)];
    const int64_t expert = source / pair.out_features,
                  row = row_in_adapter(spec, pair, source % pair.out_features);
    for (int64_t k = 0; k < r; ++k) {
      const size_t at = pair.num_experts > 0 ? static_cast<size_t>((row * r + k) * experts + expert)
                                             : static_cast<size_t>(row * r + k);
      b.values.push_back(static_cast<float>(pair.b[at] * factor));
    }
  }
  return b;
}

GgufTensorToWrite as_tensor(std::string name, FloatMatrix matrix, const GgmlTypeInfo& type) {
  std::vector<int64_t> shape = matrix.shape;
  return {std::move(name), std::move(shape), type,
          [values = std::move(matrix.values), type](std::byte* destination) {
            quantize(type, values.data(), static_cast<int64_t>(values.size()), destination);
          }};
}

/// The first tensor that the adapter changes and that the base file stores fused with others; "":
/// none.
std::string tensor_without_place(const spec::ArchSpec& stored, const AdaptedBase& base) {
  const GgufFile file(base.path);
  const std::vector<spec::TensorSpec> specs = spec::tensor_specs(base.arch);
  for (const GgufPiece& piece : gguf_pieces(stored)) {
    const spec::TensorSpec& spec = specs[piece.source];
    const bool is_adapted =
        spec.role != spec::TensorRole::kBias && base.is_adapted(module_of_tensor(spec.name));
    if (is_adapted && !file.find(piece.name)) return piece.name;
  }
  return {};
}

/// llama.cpp looks up rows of an embedding's A: [vocab, r], like convert_lora_to_gguf.py.
FloatMatrix transposed(const FloatMatrix& a) {
  FloatMatrix result{.shape = {a.shape[1], a.shape[0]}};
  result.values.reserve(a.values.size());
  for (int64_t column = 0; column < a.shape[1]; ++column) {
    for (int64_t row = 0; row < a.shape[0]; ++row)
      result.values.push_back(a.values[static_cast<size_t>(row * a.shape[1] + column)]);
  }
  return result;
}

FloatMatrix b_of_embedding(const LoraPair& pair, double factor) {
  FloatMatrix b{{pair.out_features, pair.r}, pair.b};
  for (float& value : b.values) value = static_cast<float>(value * factor);
  return b;
}

bool adapts_embedding_or_head(const AdaptedBase& base) {
  return base.is_adapted(spec::embedding_module(base.arch)) || base.is_adapted(spec::kHeadModule);
}

/// Whether a tied head becomes separate from the embedding.
bool unties_head(const AdapterConfig& config, const AdaptedBase& base) {
  return base.arch.tie_word_embeddings &&
         (spec::is_saved(config.lora.modules_to_save, "lm_head.weight") ||
          spec::is_saved(config.lora.modules_to_save,
                         spec::embedding_module(base.arch) + ".weight") ||
          adapts_embedding_or_head(base));
}

GgmlType float_type(const std::string& dtype) {
  if (dtype == "f16") return GgmlType::kF16;
  return dtype == "bf16" ? GgmlType::kBF16 : GgmlType::kF32;
}

}  // namespace

std::optional<GgufLoraRefusal> gguf_lora_refusal(const AdapterConfig& config,
                                                 const fs::path& directory,
                                                 const AdaptedBase& base) {
  const bool is_file = !is_folder(base.path);
  const spec::ArchSpec stored =
      is_file ? base.arch : spec::describe_in_gguf(base.arch, base.path.string()).arch;
  const auto refused = [&](std::string what) {
    const bool is_head_lost = unties_head(config, base) && !spec::gguf_reads_head(stored);
    if (is_head_lost) {
      return GgufLoraRefusal{std::move(what), directory.string(),
                             "for this family llama.cpp uses the embedding as the head: serve the "
                             "output of `sftrun merge` with another program",
                             ""};
    }
    return GgufLoraRefusal{std::move(what), directory.string(), "merge it", "--format gguf"};
  };
  if (config.lora.parts.has_image_side())
    return GgufLoraRefusal{"a GGUF file has the text model alone, and the adapter changes more",
                           directory.string(), "serve the output of `sftrun merge`", ""};
  if (!config.lora.modules_to_save.empty())
    return refused("llama.cpp's adapters do not support modules_to_save");
  if (!config.trainable_tokens.empty())
    return refused(
        "llama.cpp's adapters do not support single trained tokens (trainable_token_indices)");
  if (config.lora.dora) return refused("llama.cpp's adapters do not support DoRA");
  if (config.lora.pissa) return refused("llama.cpp's adapters do not support PiSSA");
  if (stored.tie_word_embeddings && adapts_embedding_or_head(base)) {
    return refused(
        "llama.cpp has one tensor for the embedding and its tied head: an update of one would also "
        "change the other");
  }
  const std::string fused = is_file ? tensor_without_place(stored, base) : "";
  if (fused.empty()) return std::nullopt;
  return GgufLoraRefusal{
      fmt::format("the base has no tensor `{}` for the adapter: its weights are fused with others, "
                  "where llama.cpp cannot apply the adapter",
                  fused),
      base.path.string(), "convert the base without --fuse-qkv, or merge the adapter",
      "--format gguf --model " + shell_word(base.path.string())};
}

namespace {

void require_gguf_lora(const AdapterConfig& config, const fs::path& directory,
                       const AdaptedBase& base) {
  const auto refusal = gguf_lora_refusal(config, directory, base);
  if (!refusal) return;
  const std::string command =
      refusal->merge_flags.empty()
          ? ""
          : fmt::format(": sftrun merge {} --adapter {} --output {}", refusal->merge_flags,
                        shell_word(directory.string()),
                        shell_word(directory.string() + "-merged-gguf"));
  throw DataError(refusal->what, refusal->where, refusal->fix + command);
}

}  // namespace

void write_gguf_lora(const fs::path& directory, const fs::path& base, const spec::ArchSpec& arch,
                     const std::string& dtype, const fs::path& file) {
  const AdapterConfig config = load_adapter_config(directory, arch);
  const AdapterTensors adapter = load_adapter(directory, config, arch);
  require_text_adapter(adapter, arch, directory);
  require_gguf_lora(config, directory, {base, arch, [&](const std::string& module) {
                                          return adapter.lora.contains(module);
                                        }});
  const spec::ArchSpec stored =
      is_folder(base) ? spec::describe_in_gguf(arch, base.string()).arch : arch;
  const std::vector<spec::TensorSpec> specs = spec::tensor_specs(arch);
  const LoraPair& first = adapter.lora.begin()->second;
  const double alpha = first.scale * static_cast<double>(first.r);
  const GgmlTypeInfo& type = info_of(float_type(dtype));
  std::vector<GgufTensorToWrite> tensors;
  for (const GgufPiece& piece : gguf_pieces(stored)) {
    const spec::TensorSpec& spec = specs[piece.source];
    const auto found = adapter.lora.find(module_of_tensor(spec.name));
    if (found == adapter.lora.end() || spec.role == spec::TensorRole::kBias) continue;
    const LoraPair& pair = found->second;
    const double factor = pair.scale * static_cast<double>(pair.r) / alpha;
    FloatMatrix a =
        pair.of_embedding ? transposed({{pair.r, pair.in_features}, pair.a}) : a_of(piece, pair);
    tensors.push_back(as_tensor(piece.name + ".lora_a", std::move(a), type));
    FloatMatrix b =
        pair.of_embedding ? b_of_embedding(pair, factor) : b_of(piece, spec, pair, factor);
    tensors.push_back(as_tensor(piece.name + ".lora_b", std::move(b), type));
  }
  GgufMetadata metadata;
  metadata.set_string("general.architecture", spec::gguf_architecture(arch));
  metadata.set_string("general.type", "adapter");
  metadata.set_string("general.name", file.stem().string());
  metadata.set_string("adapter.type", "lora");
  metadata.set_f32("adapter.lora.alpha", static_cast<float>(alpha));
  metadata.set_u32("general.file_type", find_mix(dtype)->file_type);
  make_directories(file.parent_path());
  write_gguf(file, metadata, tensors);
}

}  // namespace sftrun::weights
