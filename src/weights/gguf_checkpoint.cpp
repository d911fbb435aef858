#include <algorithm>
#include <cstring>

#include "checkpoint_base.h"
#include "convert.h"
#include "gguf_names.h"
#include "gguf_vocab.h"
#include "sftrun/core/error.h"
#include "sftrun/weights/gguf.h"
#include "tensor_check.h"

namespace sftrun::weights {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kRopeDivisors = "rope_freqs.weight";
constexpr const char* kEmbedding = "token_embd.weight";
constexpr int64_t kChunk =
    8192;  ///< numbers converted at a time, a multiple of every block size; 32 KB stay in cache

void refuse_split(const GgufFile& file) {
  const auto count = file.metadata().find("split.count");
  if (count == file.metadata().end() || !count->is_number_integer() || count->get<int64_t>() <= 1)
    return;
  throw DataError("one part of a model that is split over several files: not supported",
                  file.where(), "join the parts with llama.cpp's `llama-gguf-split --merge`");
}

/// Metadata with what only the list of tensors says filled in.
spec::ArchSpec read_arch(const GgufFile& file) {
  json meta = file.metadata();
  const GgufTensor* embedding = file.find(kEmbedding);
  if (!meta.contains("llama.vocab_size") && embedding && embedding->shape.size() == 2) {
    meta["llama.vocab_size"] = embedding->shape[0];
  }
  spec::ArchSpec arch = spec::ArchSpec::from_gguf(meta, file.where());
  arch.qkv_bias = file.find("blk.0.attn_q.bias") != nullptr;
  arch.o_bias = file.find("blk.0.attn_output.bias") != nullptr;
  arch.mlp_bias = file.find("blk.0.ffn_gate.bias") != nullptr;
  arch.tie_word_embeddings = file.find("output.weight") == nullptr;
  if (const GgufTensor* divisors = file.find(kRopeDivisors)) {
    if (divisors->type.id != static_cast<uint32_t>(GgmlType::kF32)) {
      throw DataError(fmt::format("tensor `{}` must be F32", kRopeDivisors), file.where());
    }
    std::vector<float> values(static_cast<size_t>(divisors->numel()));
    if (!values.empty()) std::memcpy(values.data(), divisors->bytes.data(), divisors->bytes.size());
    spec::set_rope_divisors(arch.ropes[0], values, file.where());
  }
  return arch;
}

/// The float format itself where the type is one.
std::optional<DType> plain_dtype(const GgmlTypeInfo& type) {
  return float_dtype(type.name);
}

class GgufCheckpoint final : public CheckpointBase {
 public:
  explicit GgufCheckpoint(const fs::path& path) : file_(path) {
    where_ = file_.where();
    refuse_split(file_);
    arch_ = read_arch(file_);
    list_tensors();
  }

  void read(const std::string& name, DType dtype, void* destination) const override {
    const size_t i = index_of(name);
    const GgufTensor& tensor = *sources_[i];
    auto* out = static_cast<std::byte*>(destination);
    if (!has_permuted_rows(name)) {
      decode(tensor, 0, tensor.numel(), dtype, out);
      return file_.release(tensor.bytes);
    }
    const int64_t rows = tensor.shape[0], row_size = tensor.numel() / rows;
    for (int64_t row = 0; row < rows; ++row) {
      decode(tensor, stored_row(row, arch_.head_dim) * row_size, row_size, dtype,
             out + row * row_size * size_of(dtype));
    }
    file_.release(tensor.bytes);
  }

  std::optional<std::span<const std::byte>> mapped(const std::string& name,
                                                   DType dtype) const override {
    const size_t i = index_of(name);
    if (has_permuted_rows(name) || !is_aligned(stored_[i], dtype) ||
        plain_dtype(sources_[i]->type) != dtype)
      return std::nullopt;
    return stored_[i];
  }

  text::Tokenizer tokenizer() const override {
    return text::Tokenizer::from_gguf(read_gguf_vocab(file_), where_);
  }
  std::optional<std::string> chat_template() const override {
    return read_gguf_chat_template(file_);
  }
  text::RenderOptions render_defaults() const override { return read_gguf_special_texts(file_); }

 private:
  void list_tensors() {
    const std::vector<spec::TensorSpec> specs = spec::tensor_specs(arch_);
    check_names(specs);
    for (const spec::TensorSpec& spec : specs) {
      const GgufTensor* tensor = file_.find(gguf_name(spec.name));
      if (!tensor->type.readable) {
        throw DataError(
            fmt::format("tensor `{}` is stored as {}, which is not supported", tensor->name,
                        tensor->type.name),
            where_, "supported are F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1 and Q2_K to Q6_K");
      }
      add({spec.name, spec.shape, std::string(tensor->type.name), tensor->bytes.size()},
          tensor->bytes);
      sources_.push_back(tensor);
    }
  }

  /// In the file's own names, which the user can look up.
  void check_names(std::vector<spec::TensorSpec> specs) const {
    for (spec::TensorSpec& spec : specs) spec.name = gguf_name(spec.name);
    std::vector<FoundTensor> found;
    for (const GgufTensor& tensor : file_.tensors()) {
      if (tensor.name != kRopeDivisors) found.push_back({tensor.name, tensor.shape, where_});
    }
    check_tensors(specs, found, where_);
  }

  /// @param first, count whole blocks
  static void decode(const GgufTensor& tensor, int64_t first, int64_t count, DType dtype,
                     std::byte* out) {
    const GgmlTypeInfo& type = tensor.type;
    const std::byte* blocks = tensor.bytes.data() + first / type.block_size * type.block_bytes;
    if (const std::optional<DType> plain = plain_dtype(type))
      return convert(*plain, blocks, dtype, out, count);
    if (dtype == DType::kF32) return dequantize(type, blocks, count, reinterpret_cast<float*>(out));
    std::vector<float> chunk(static_cast<size_t>(std::min(count, kChunk)));
    for (int64_t done = 0; done < count; done += kChunk) {
      const int64_t size = std::min(count - done, kChunk);
      dequantize(type, blocks + done / type.block_size * type.block_bytes, size, chunk.data());
      convert(DType::kF32, reinterpret_cast<const std::byte*>(chunk.data()), dtype,
              out + done * size_of(dtype), size);
    }
  }

  GgufFile file_;
  std::vector<const GgufTensor*> sources_;
};

}  // namespace

std::unique_ptr<Checkpoint> open_gguf_checkpoint(const fs::path& file) {
  return std::make_unique<GgufCheckpoint>(file);
}

}  // namespace sftrun::weights
