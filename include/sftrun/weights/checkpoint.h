#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "sftrun/core/dtype.h"
#include "sftrun/spec/arch_spec.h"
#include "sftrun/text/chat_template.h"
#include "sftrun/text/tokenizer.h"
#include "sftrun/weights/packed.h"

/// A model on disk, whichever way it is stored, under Hugging Face's tensor names.
namespace sftrun::weights {

struct TensorInfo {
  std::string name;            ///< transformers' name for it in the loaded model
  std::vector<int64_t> shape;  ///< HF order: [out_features, in_features]
  std::string format;          ///< as stored: "F32", "BF16", "Q4_1", …
  uint64_t stored_bytes = 0;
  std::string stored_name = {};  ///< in a directory's files, where that is another
  /// How a directory's files hold it where that is in pieces, or under another name.
  std::vector<spec::TensorPart> parts = {};
  /// Where a directory's files hold its values in another order.
  FileLayout layout = {};
  const std::vector<int64_t>& shape_in_files() const {
    return layout.shape.empty() ? shape : layout.shape;
  }
  const std::string& file_name() const { return stored_name.empty() ? name : stored_name; }
  int64_t numel() const;
};

/// Thread-safe for reading.
class Checkpoint {
 public:
  /// @param path an HF directory (config.json and safetensors, single or sharded with index) or a
  /// .gguf file.
  /// @throws DataError naming file, tensor and reason: missing or truncated files, corrupt headers,
  /// tensors that are missing,
  ///   unknown or of another shape than the configuration implies.
  static std::unique_ptr<Checkpoint> open(const std::filesystem::path& path);
  virtual ~Checkpoint() = default;

  virtual const spec::ArchSpec& arch() const = 0;
  /// Those of the text model, in the order of `tensor_specs`; then those of a larger model's other
  /// parts, which only `read` knows.
  virtual const std::vector<TensorInfo>& tensors() const = 0;
  virtual bool has(const std::string& name) const = 0;
  /// Converts (dequantises) the whole tensor into `destination` of `dtype` (kF32, kF16 or kBF16;
  /// numel() elements). GGUF's permuted q/k rows come back in HF order. The file's pages leave the
  /// process's memory again.
  virtual void read(const std::string& name, DType dtype, void* destination) const = 0;
  /// Likewise one of a tensor's `parts`.
  virtual void read_part(const std::string& name, size_t part, DType dtype,
                         void* destination) const = 0;
  /// The mapped bytes themselves where the tensor is stored contiguously in exactly `dtype` and in
  /// HF order, aligned to its elements; else nullopt.
  virtual std::optional<std::span<const std::byte>> mapped(const std::string& name,
                                                           DType dtype) const = 0;
  /// A matrix, or those of all experts, as its file holds it in fewer bits, where it does and
  /// nothing but the order of its rows is another than here; else nullopt. Its bytes are the
  /// file's, mapped.
  virtual std::optional<PackedMatrix> packed(const std::string& name) const = 0;
  /// The files that hold its tensors, each from its first tensor's first byte to its end.
  struct WeightFile {
    std::filesystem::path path;
    uint64_t begin = 0;
  };
  virtual std::vector<WeightFile> weight_files() const = 0;
  /// What the model's own description says that may decide numbers: config.json's keys, joined by
  /// dots, or those of a GGUF file's metadata, without what says only where a model comes from.
  /// The tokenizer is not in it.
  virtual nlohmann::ordered_json configuration() const = 0;
  /// Identity of the weights by headers and a sample of the data of every tensor: what adapters of
  /// earlier versions say of their base. See fingerprint.h.
  virtual std::string sampled_fingerprint() const = 0;
  virtual text::Tokenizer tokenizer() const = 0;
  /// chat_template.jinja, tokenizer_config.json's chat_template (string, or the "default" of a
  /// list), or GGUF's metadata.
  virtual std::optional<std::string> chat_template() const = 0;
  virtual text::RenderOptions render_defaults() const = 0;  ///< bos/eos/unk/pad texts
};

/// Blocks that training can keep as they are: "gguf" for ggml's, "mxfp4" for those in MXFP4, of
/// files of either kind.
std::set<std::string> block_kinds(const Checkpoint& checkpoint);

/// Of each norm's weights, rounded to bf16, the sum of their squares. Norms are small and stay
/// dense in every form of a model, so that copies in fewer bits have the same, up to roundings, and
/// other models of the same shape have others.
std::vector<double> norm_squares(const Checkpoint& checkpoint);
/// Whether they are one model's, in whatever form.
bool are_norms_of_one_model(const std::vector<double>& a, const std::vector<double>& b);

/// Of the names, types and sizes of all tensors; empty where some are in fewer bits. Two dense
/// models of one layout hold the same values or are not the same model.
std::string dense_layout(const Checkpoint& checkpoint);

/// Reads every tensor: for when something has gone wrong.
/// @throws DataError naming the first that holds values which are no finite numbers
void require_finite(const Checkpoint& checkpoint, const std::filesystem::path& path);

}  // namespace sftrun::weights
