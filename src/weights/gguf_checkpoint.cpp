#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <deque>
#include <set>

#include "checkpoint_base.h"
#include "convert.h"
#include "gguf_form.h"
#include "gguf_names.h"
#include "gguf_vocab.h"
#include "sftrun/core/error.h"
#include "sftrun/core/xxh3.h"
#include "sftrun/spec/gguf_description.h"
#include "sftrun/weights/gguf.h"
#include "shape_math.h"
#include "tensor_check.h"

namespace sftrun::weights {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kRopeDivisors = spec::kGgufRopeDivisors;
constexpr const char* kShortFactors = spec::kGgufShortFactors;
constexpr const char* kLongFactors = spec::kGgufLongFactors;
constexpr const char* kEmbedding = "token_embd.weight";
constexpr int64_t kChunk =
    8192;  ///< values converted at a time: a multiple of every block size; 32 KiB stay in cache

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

/// Number of layers, including those that predict further tokens. @pre read_arch accepted the
/// metadata
int64_t num_blocks(const GgufFile& file) {
  const json& meta = file.metadata();
  return meta.at(meta.at("general.architecture").get<std::string>() + ".block_count")
      .get<int64_t>();
}

/// The float type, if the format is not a block format.
std::optional<DType> plain_dtype(const GgmlTypeInfo& type) {
  return float_dtype(type.name);
}

/// Excludes keys of the tokenizer and of the model's origin.
bool may_decide_numbers(const std::string& key) {
  if (key == "general.architecture") return true;
  constexpr auto kOthers =
      std::to_array<std::string_view>({"general.", "tokenizer.", "quantize.", "split.", "GGUF."});
  return std::none_of(kOthers.begin(), kOthers.end(),
                      [&](std::string_view prefix) { return key.starts_with(prefix); });
}

class GgufCheckpoint final : public CheckpointBase {
 public:
  explicit GgufCheckpoint(const fs::path& path) : file_(path) {
    where_ = file_.where();
    refuse_split(file_);
    arch_ = read_arch(file_);
    num_blocks_ = num_blocks(file_);
    names_ = gguf_names(arch_);
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
      read_in_form(tensor, forms_[i], dtype, out);
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

  /// Row by row; a vector is one row, or one value per row if its values are reordered.
  static void read_in_form(const GgufTensor& tensor, const GgufForm& form, DType dtype,
                           std::byte* out) {
    const bool is_one_row = tensor.shape.size() == 1 && form.rows.empty();
    const int64_t rows = is_one_row ? 1 : tensor.shape[0], size = tensor.numel() / rows;
    std::vector<float> stored(static_cast<size_t>(size)), values(stored.size());
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t from = form.rows.empty() ? row : form.rows[static_cast<size_t>(row)];
      if (form.value == GgufForm::Value::kSame && form.columns.empty()) {
        decode(tensor, from * size, size, dtype, out + row * size * size_of(dtype));
        continue;
      }
      decode(tensor, from * size, size, DType::kF32, reinterpret_cast<std::byte*>(stored.data()));
      for (size_t i = 0; i < values.size(); ++i) {
        const float value = stored[form.columns.empty() ? i : static_cast<size_t>(form.columns[i])];
        values[i] = unstored(form.value, value);
      }
      convert(DType::kF32, reinterpret_cast<const std::byte*>(values.data()), dtype,
              out + row * size * size_of(dtype), size);
    }
  }

  static float unstored(GgufForm::Value form, float value) {
    if (form == GgufForm::Value::kPlusOne) return value - 1.0F;
    return form == GgufForm::Value::kMinusExp ? std::log(-value) : value;
  }

  bool is_apart(size_t i) const {
    return roles_[i] == spec::TensorRole::kExperts &&
           sources_[i][0]->shape.size() < tensors_[i].shape.size();
  }

  void list_tensors() {
    const std::vector<spec::TensorSpec> specs = spec::tensor_specs(arch_);
    check_names(specs);
    for (const spec::TensorSpec& spec : specs) {
      std::vector<const GgufTensor*> sources;
      uint64_t stored_bytes = 0;
      for (const std::string& name : names_of(spec)) {
        sources.push_back(source_of(spec, name));
        stored_bytes += sources.back()->bytes.size();
      }
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

  std::vector<std::string> names_of(const spec::TensorSpec& spec) const {
    if (!belongs_to_experts(spec)) return {names_.at(spec.name)};
    if (are_apart(spec)) return gguf_single_expert_names(spec);
    const std::string fused = gguf_fused_expert_name(spec);
    return file_.find(fused) ? std::vector{fused} : gguf_expert_names(spec);
  }

  /// The fused tensor of q, k and v that contains this one; nullptr: stored separately.
  const GgufTensor* fused_with(const spec::TensorSpec& spec) const {
    return file_.find(names_of(spec)[0]) ? nullptr : file_.find(gguf_fused_name(names_of(spec)[0]));
  }

  const GgufTensor* source_of(const spec::TensorSpec& spec, const std::string& name) {
    const GgufTensor* fused = fused_with(spec);
    if (!fused) return require_readable(name);
    const QkvRows rows = qkv_rows(arch_, spec.layer, name);
    GgufTensor part = *require_readable(fused->name);
    if (fused->numel() / rows.of_all % part.type.block_size != 0) {
      throw DataError(fmt::format("tensor `{}` is stored as {}, whose blocks span its rows",
                                  part.name, part.type.name),
                      where_, "store biases as F32, as llama.cpp does");
    }
    const size_t row_bytes = fused->bytes.size() / static_cast<size_t>(rows.of_all);
    part.shape = spec.shape;
    part.bytes = fused->bytes.subspan(static_cast<size_t>(rows.first) * row_bytes,
                                      static_cast<size_t>(spec.shape[0]) * row_bytes);
    return &parts_of_fused_.emplace_back(std::move(part));
  }

  /// Whether the file stores each expert's matrices as separate tensors.
  bool are_apart(const spec::TensorSpec& spec) const {
    return spec.role == spec::TensorRole::kExperts && !file_.find(gguf_expert_names(spec)[0]) &&
           file_.find(gguf_single_expert_names(spec)[0]);
  }

  /// Shape of one of the `count` file tensors that form an experts' tensor: one matrix of all
  /// experts, or of one expert.
  std::vector<int64_t> shape_of_source(const spec::TensorSpec& spec, size_t count) const {
    std::vector<int64_t> shape = spec.shape;
    const bool is_apart = are_apart(spec);
    const auto matrices = static_cast<int64_t>(count) / (is_apart ? spec.shape[0] : 1);
    if (matrices > 1) shape[1] /= matrices;
    if (is_apart) shape.erase(shape.begin());
    return shape;
  }

  const GgufTensor* require_readable(const std::string& name) const {
    const GgufTensor* tensor = file_.find(name);
    if (tensor->type.readable) return tensor;
    throw DataError(
        fmt::format("tensor `{}` is stored as {}, which is not supported", name, tensor->type.name),
        where_, "supported: F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K to Q6_K and MXFP4");
  }

  /// Whether a tensor belongs to a layer that predicts further tokens.
  bool predicts_further(const std::string& name) const {
    const int64_t layer = gguf_layer(name);
    return layer >= arch_.num_layers && layer < num_blocks_;
  }

  /// With the file's own names, which users can look up.
  void check_names(const std::vector<spec::TensorSpec>& wanted) const {
    std::vector<spec::TensorSpec> specs;
    for (const spec::TensorSpec& spec : wanted) {
      const std::vector<std::string> names = names_of(spec);
      for (const std::string& name : names) {
        specs.push_back(spec);
        specs.back().name = name;
        specs.back().shape = shape_of_source(spec, names.size());
        const GgufTensor* fused = fused_with(spec);
        if (!fused) continue;
        specs.back().name = fused->name;
        specs.back().shape[0] = qkv_rows(arch_, spec.layer, name).of_all;
      }
    }
    const std::set<std::string> unused = gguf_unused(arch_);
    std::vector<FoundTensor> found;
    for (const GgufTensor& tensor : file_.tensors()) {
      const bool aside = tensor.name == kRopeDivisors || tensor.name == kShortFactors ||
                         tensor.name == kLongFactors;
      if (!aside && !unused.contains(tensor.name) && !predicts_further(tensor.name))
        found.push_back({tensor.name, tensor.shape, where_});
    }
    check_tensors(specs, found, where_);
  }

  /// @param first, count multiples of the block size
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
  std::map<std::string, std::string> names_;
  std::vector<std::vector<const GgufTensor*>> sources_;
  std::vector<spec::TensorRole> roles_;
  std::vector<GgufForm> forms_;
  std::deque<GgufTensor> parts_of_fused_;  ///< a deque, because sources_ points to its elements
  int64_t num_blocks_ = 0;
};

}  // namespace

std::unique_ptr<Checkpoint> open_gguf_checkpoint(const fs::path& file) {
  return std::make_unique<GgufCheckpoint>(file);
}

}  // namespace sftrun::weights
