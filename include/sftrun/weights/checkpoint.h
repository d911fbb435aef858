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
#include "sftrun/templates/chat_template.h"
#include "sftrun/tokenizer/tokenizer.h"
#include "sftrun/weights/packed.h"

/// A model on disk in any supported format, with Hugging Face's tensor names.
namespace sftrun::weights {

struct TensorInfo {
  std::string name;            ///< its name in transformers' model
  std::vector<int64_t> shape;  ///< HF order: [out_features, in_features]
  std::string format;          ///< format in the file: "F32", "BF16", "Q4_1", …
  uint64_t stored_bytes = 0;
  std::string stored_name = {};  ///< name in a directory's files, if it differs
  /// Set if a directory's files store it in parts, or under another name.
  std::vector<spec::TensorPart> parts = {};
  /// Set if a directory's files store its values in another order, or in another shape.
  FileLayout layout = {};
  bool is_other = false;  ///< of a larger model's other parts
  const std::vector<int64_t>& shape_in_files() const {
    return layout.shape.empty() ? shape : layout.shape;
  }
  const std::string& file_name() const { return stored_name.empty() ? name : stored_name; }
  /// What fingerprints have: of other parts what the files have, as in earlier versions.
  const std::string& printed_name() const { return is_other ? file_name() : name; }
  const std::vector<int64_t>& printed_shape() const { return is_other ? shape_in_files() : shape; }
  int64_t numel() const;
};

/// Thread-safe for reading.
class Checkpoint {
 public:
  /// @param path an HF directory (config.json and safetensors, single or sharded with index) or a
  /// .gguf file
  /// @throws DataError naming file, tensor and reason: missing or truncated files, corrupt headers,
  /// tensors that are missing, unknown or of another shape than the configuration implies
  static std::unique_ptr<Checkpoint> open(const std::filesystem::path& path);
  virtual ~Checkpoint() = default;

  virtual const spec::ArchSpec& arch() const = 0;
  /// The tensors of the text model, in the order of `tensor_specs`; then those of a larger model's
  /// other parts, which only `read` supports, by their names in files. Those of its image side have the
  /// shapes of `vision_tensor_specs` unless the file has another shape.
  virtual const std::vector<TensorInfo>& tensors() const = 0;
  virtual bool has(const std::string& name) const = 0;
  /// Bytes that the files have of a tensor.
  virtual uint64_t stored_bytes(const std::string& name) const = 0;
  /// Converts (dequantises) the whole tensor to `dtype` (kF32, kF16 or kBF16). GGUF's permuted rows
  /// of q and k are returned in HF order. The file's pages are released afterwards.
  /// @param destination numel() elements
  virtual void read(const std::string& name, DType dtype, void* destination) const = 0;
  /// The same for one of a tensor's `parts`.
  virtual void read_part(const std::string& name, size_t part, DType dtype,
                         void* destination) const = 0;
  /// Converts values [first, first + count) of the tensor only.
  /// @return bytes of the file that were read; nullopt: nothing was read, because the values are
  /// stored in another order or in several forms, so that only `read` can
  virtual std::optional<uint64_t> read_range(const std::string& name, DType dtype, int64_t first,
                                             int64_t count, void* destination) const = 0;
  /// The mapped bytes, if the tensor is stored contiguously in exactly `dtype` and in HF order,
  /// aligned to its elements; else nullopt.
  virtual std::optional<std::span<const std::byte>> mapped(const std::string& name,
                                                           DType dtype) const = 0;
  /// A quantised matrix, or those of all experts, as views of the mapped file; nullopt if the
  /// tensor is not quantised or its values are stored in another order (other than of whole rows).
  virtual std::optional<PackedMatrix> packed(const std::string& name) const = 0;
  /// The files that contain the tensors; each counts from the first byte of tensor data to its end.
  struct WeightFile {
    std::filesystem::path path;
    uint64_t begin = 0;
  };
  virtual std::vector<WeightFile> weight_files() const = 0;
  /// The part of the model's description that may affect its output: config.json's keys, joined by
  /// dots, or the keys of a GGUF file's metadata, without those that only give the model's origin.
  /// Without the tokenizer.
  virtual nlohmann::ordered_json configuration() const = 0;
  /// Fingerprint of the headers and of a sample of each tensor's data, which adapters of earlier
  /// versions store. See fingerprint.h.
  virtual std::string sampled_fingerprint() const = 0;
  virtual tokenizer::Tokenizer tokenizer() const = 0;
  /// As tokenizer::chat_template_in has it, or the template in GGUF's metadata.
  virtual std::optional<std::string> chat_template() const = 0;
  virtual templates::RenderOptions render_defaults() const = 0;  ///< texts of bos, eos, unk and pad
};

/// Who uses the text model alone may have a tower of any shape.   @pre the architecture has a tower
/// @throws DataError naming a tensor of its image side that has another shape than the configuration implies
void require_image_side(const Checkpoint& checkpoint);

/// What training can keep as it is: "stored" for any matrix in fewer bits than 16, "gguf" for
/// ggml's blocks, "mxfp4" for those in MXFP4, of files of either kind.
std::set<std::string> block_kinds(const Checkpoint& checkpoint);

/// For each norm the sum of squares of its weights, after rounding to bf16. Norms are small and
/// never quantised: quantised copies of a model have the same sums up to rounding, and other models
/// of the same shape have different ones.
std::vector<double> norm_squares(const Checkpoint& checkpoint);
/// Whether the sums are those of one model, quantised or not.
bool are_norms_of_one_model(const std::vector<double>& a, const std::vector<double>& b);

/// Fingerprint of the names, types and sizes of all tensors; empty if some are quantised.
/// Unquantised models with the same layout are the same model only if their values are equal.
std::string dense_layout(const Checkpoint& checkpoint);

/// Reads every tensor; used to explain a failure.
/// @throws DataError naming the first tensor with NaN or infinite values
void require_finite(const Checkpoint& checkpoint, const std::filesystem::path& path);

}  // namespace sftrun::weights
