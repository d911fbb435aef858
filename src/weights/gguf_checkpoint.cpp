#include <algorithm>
#include <array>
#include <cstring>

#include "checkpoint_base.h"
#include "gguf_decode.h"
#include "gguf_form.h"
#include "gguf_tensors.h"
#include "gguf_vocab.h"
#include "sftrun/core/error.h"
#include "sftrun/core/xxh3.h"
#include "sftrun/spec/gguf_description.h"
#include "sftrun/weights/gguf.h"
#include "shape_math.h"

namespace sftrun::weights {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kRopeDivisors = spec::kGgufRopeDivisors;
constexpr const char* kShortFactors = spec::kGgufShortFactors;
constexpr const char* kLongFactors = spec::kGgufLongFactors;
constexpr const char* kEmbedding = "token_embd.weight";
void refuse_split(const GgufFile& file) {
  const auto count = file.metadata().find("split.count");
  if (count == file.metadata().end() || !count->is_number_integer() || count->get<int64_t>() <= 1)
    return;
  throw DataError("this file is one part of a split model, which is not supported", file.where(),
                  "join the parts with llama.cpp's `llama-gguf-split --merge`");
}

/// The values of a small additional tensor; empty if missing.
std::vector<float> read_aside(const GgufFile& file, const char* name) {
  const GgufTensor* tensor = file.find(name);
  if (!tensor) return {};
  if (tensor->type.id != static_cast<uint32_t>(GgmlType::kF32))
    throw DataError(fmt::format("tensor `{}` must be F32", name), file.where());
  std::vector<float> values(static_cast<size_t>(tensor->numel()));
  if (!values.empty()) std::memcpy(values.data(), tensor->bytes.data(), tensor->bytes.size());
  return values;
}

void read_rope_tensors(const GgufFile& file, spec::RopeSpec& rope) {
  if (file.find(kRopeDivisors))
    spec::set_rope_divisors(rope, read_aside(file, kRopeDivisors), file.where());
  if (file.find(kShortFactors) || file.find(kLongFactors))
    spec::set_longrope_factors(rope, read_aside(file, kShortFactors),
                               read_aside(file, kLongFactors), file.where());
}

/// Gemma 4: layers without a tensor for values use their keys as values.
void read_key_values(const GgufFile& file, spec::ArchSpec& arch) {
  for (size_t i = 0; i < arch.layers.size(); ++i) {
    spec::LayerSpec& layer = arch.layers[i];
    const auto lacks = [&](const char* name) {
      return file.find(fmt::format("blk.{}.{}.weight", i, name)) == nullptr;
    };
    layer.value_is_key = layer.keys_of < 0 && lacks("attn_v") && lacks("attn_qkv");
  }
}

/// The architecture, from metadata and from the list of tensors.
spec::ArchSpec read_arch(const GgufFile& file) {
  json meta = file.metadata();
  if (meta.value("general.type", json()) == "adapter") {
    throw DataError("this file contains a llama.cpp adapter, not a model", file.where(),
                    "give the base model, and as the adapter the directory that training wrote");
  }
  const auto architecture = meta.find("general.architecture");
  if (architecture != meta.end() && architecture->is_string()) {
    const std::string key = architecture->get<std::string>() + ".vocab_size";
    const GgufTensor* embedding = file.find(kEmbedding);
    if (!meta.contains(key) && embedding && embedding->shape.size() == 2)
      meta[key] = embedding->shape[0];
  }
  spec::ArchSpec arch = spec::ArchSpec::from_gguf(meta, file.where());
  arch.qkv_bias = file.find("blk.0.attn_q.bias") || file.find("blk.0.attn_qkv.bias");
  arch.o_bias = file.find("blk.0.attn_output.bias") != nullptr;
  arch.mlp_bias = file.find("blk.0.ffn_gate.bias") != nullptr;
  arch.tie_word_embeddings = file.find("output.weight") == nullptr;
  if (arch.value_norm) read_key_values(file, arch);
  read_rope_tensors(file, arch.ropes[0]);
  return arch;
}

/// Excludes keys of the tokenizer and of the model's origin.
bool may_decide_numbers(const std::string& key) {
  if (key == "general.architecture") return true;
  constexpr auto kOthers =
      std::to_array<std::string_view>({"general.", "tokenizer.", "quantize.", "split.", "GGUF."});
  return std::none_of(kOthers.begin(), kOthers.end(),
                      [&](std::string_view prefix) { return key.starts_with(prefix); });
}

/// A model in a GGUF file. `GgufTensors` finds the tensors, gguf_decode.h reads their values.
class GgufCheckpoint final : public CheckpointBase {
 public:
  explicit GgufCheckpoint(const fs::path& path) : file_(path), found_(file_, describe()) {
    list_tensors();
  }

  void read(const std::string& name, DType dtype, void* destination) const override {
    const size_t i = index_of(name);
    if (sources_[i].size() > 1)
      return read_in_turn(sources_[i], is_apart(i), dtype, static_cast<std::byte*>(destination));
    const GgufTensor& tensor = *sources_[i][0];
    auto* out = static_cast<std::byte*>(destination);
    if (forms_[i].is_same()) {
      decode(tensor, 0, tensor.numel(), dtype, out);
    } else {
      decode_in_form(tensor, forms_[i], dtype, out);
    }
    file_.release(tensor.bytes);
  }

  void read_part(const std::string& name, size_t part, DType dtype,
                 void* destination) const override {
    const size_t i = index_of(name);
    if (roles_[i] != spec::TensorRole::kExperts) return read(name, dtype, destination);
    const size_t matrices = sources_[i].size();         // per expert, consecutive
    if (matrices == 1 && !tensors_[i].parts.empty()) {  // fused gate and up
      const spec::TensorPart& piece = tensors_[i].parts[part];
      decode(*sources_[i][0], piece.offset, checked_numel(piece.shape).value(), dtype,
             static_cast<std::byte*>(destination));
      return file_.release(sources_[i][0]->bytes);
    }
    const GgufTensor& tensor = *sources_[i][is_apart(i) ? part : part % matrices];
    const int64_t size = is_apart(i) ? tensor.numel() : tensor.numel() / tensor.shape[0],
                  first = is_apart(i) ? 0 : static_cast<int64_t>(part / matrices) * size;
    decode(tensor, first, size, dtype, static_cast<std::byte*>(destination));
    file_.release(tensor.bytes);
  }

  std::optional<uint64_t> read_range(const std::string& name, DType dtype, int64_t first,
                                     int64_t count, void* destination) const override {
    const size_t i = index_of(name);
    if (sources_[i].size() > 1 || !forms_[i].is_same()) return std::nullopt;
    const GgufTensor& tensor = *sources_[i][0];
    const GgmlTypeInfo& type = tensor.type;
    const auto block = static_cast<int64_t>(type.block_size);
    const int64_t begin = first / block * block, end = (first + count + block - 1) / block * block;
    const auto bytes =
        tensor.bytes.subspan(static_cast<size_t>(begin / block) * type.block_bytes,
                             static_cast<size_t>((end - begin) / block) * type.block_bytes);
    auto* to = static_cast<std::byte*>(destination);
    if (begin == first && end == first + count) {
      decode(tensor, begin, count, dtype, to);
    } else {  // the range begins or ends within a block
      std::vector<std::byte> blocks(static_cast<size_t>((end - begin) * size_of(dtype)));
      decode(tensor, begin, end - begin, dtype, blocks.data());
      std::memcpy(to, blocks.data() + (first - begin) * size_of(dtype),
                  static_cast<size_t>(count * size_of(dtype)));
    }
    file_.release(bytes);
    return bytes.size();
  }

  std::optional<std::span<const std::byte>> mapped(const std::string& name,
                                                   DType dtype) const override {
    const size_t i = index_of(name);
    if (sources_[i].size() > 1 || !forms_[i].is_same() || !is_aligned(stored_[i], dtype) ||
        plain_dtype(sources_[i][0]->type) != dtype)
      return std::nullopt;
    return stored_[i];
  }

  std::optional<PackedMatrix> packed(const std::string& name) const override {
    const size_t i = index_of(name);
    const GgufTensor& tensor = *sources_[i][0];
    const GgufForm& form = forms_[i];
    const bool is_experts = roles_[i] == spec::TensorRole::kExperts;
    const bool is_matrix =
        tensors_[i].shape.size() == (is_experts ? 3 : 2) && (is_experts || sources_[i].size() == 1);
    const bool is_one_type =
        std::all_of(sources_[i].begin(), sources_[i].end(),
                    [&](const GgufTensor* source) { return source->type.id == tensor.type.id; });
    if (!is_matrix || !is_one_type || tensor.type.block_size == 1 ||
        form.value != GgufForm::Value::kSame || !form.columns.empty())
      return std::nullopt;
    return GgmlBlocks{tensor.type, pieces_of(i), form.rows};
  }

  std::vector<WeightFile> weight_files() const override {
    return {{file_.where(), file_.data_begin()}};
  }

  nlohmann::ordered_json configuration() const override {
    nlohmann::ordered_json keys = nlohmann::ordered_json::object();
    for (const GgufFile::StoredValue& value : file_.stored_values()) {
      if (!may_decide_numbers(value.key)) continue;
      const auto found = file_.metadata().find(value.key);
      keys[value.key] =
          found != file_.metadata().end() ? json(*found) : json(xxh3_128(value.bytes));
    }
    return keys;
  }

  tokenizer::Tokenizer tokenizer() const override {
    return tokenizer::Tokenizer::from_gguf(read_gguf_vocab(file_), where_);
  }
  std::optional<std::string> chat_template() const override {
    return read_gguf_chat_template(file_);
  }
  templates::RenderOptions render_defaults() const override {
    return read_gguf_special_texts(file_);
  }

 private:
  std::vector<std::span<const std::byte>> pieces_of(size_t i) const {
    std::vector<std::span<const std::byte>> pieces;
    if (sources_[i].size() == 1 || is_apart(i)) {
      for (const GgufTensor* source : sources_[i]) pieces.push_back(source->bytes);
      return pieces;
    }
    const auto experts = static_cast<size_t>(sources_[i][0]->shape[0]);
    for (size_t expert = 0; expert < experts; ++expert) {
      for (const GgufTensor* source : sources_[i]) {
        const size_t size = source->bytes.size() / experts;
        pieces.push_back(source->bytes.subspan(expert * size, size));
      }
    }
    return pieces;
  }

  /// Interleaves gate and up per expert; with `apart` concatenates the tensors of the experts.
  void read_in_turn(const std::vector<const GgufTensor*>& sources, bool apart, DType dtype,
                    std::byte* out) const {
    if (apart) {
      for (const GgufTensor* tensor : sources) {
        decode(*tensor, 0, tensor->numel(), dtype, out);
        out += tensor->numel() * size_of(dtype);
        file_.release(tensor->bytes);
      }
      return;
    }
    for (int64_t expert = 0; expert < sources[0]->shape[0]; ++expert) {
      for (const GgufTensor* tensor : sources) {
        const int64_t size = tensor->numel() / tensor->shape[0];
        decode(*tensor, expert * size, size, dtype, out);
        out += size * size_of(dtype);
      }
    }
    for (const GgufTensor* tensor : sources) file_.release(tensor->bytes);
  }

  bool is_apart(size_t i) const {
    return roles_[i] == spec::TensorRole::kExperts &&
           sources_[i][0]->shape.size() < tensors_[i].shape.size();
  }

  /// Reads what the file says of the model.
  const spec::ArchSpec& describe() {
    where_ = file_.where();
    refuse_split(file_);
    arch_ = read_arch(file_);
    return arch_;
  }

  void list_tensors() {
    const std::vector<spec::TensorSpec> specs = spec::tensor_specs(arch_);
    found_.check(specs);
    for (const spec::TensorSpec& spec : specs) {
      std::vector<const GgufTensor*> sources = found_.sources_of(spec);
      uint64_t stored_bytes = 0;
      for (const GgufTensor* source : sources) stored_bytes += source->bytes.size();
      add({.name = spec.name,
           .shape = spec.shape,
           .format = std::string(sources[0]->type.name),
           .stored_bytes = stored_bytes,
           .parts = spec.parts,
           .layout = spec.layout},
          sources[0]->bytes);
      sources_.push_back(std::move(sources));
      roles_.push_back(spec.role);
      forms_.push_back(gguf_form(arch_, spec));
    }
  }

  GgufFile file_;
  GgufTensors found_;
  std::vector<std::vector<const GgufTensor*>> sources_;
  std::vector<spec::TensorRole> roles_;
  std::vector<GgufForm> forms_;
};

}  // namespace

std::unique_ptr<Checkpoint> open_gguf_checkpoint(const fs::path& file) {
  return std::make_unique<GgufCheckpoint>(file);
}

}  // namespace sftrun::weights
