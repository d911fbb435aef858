#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <set>

#include "checkpoint_base.h"
#include "convert.h"
#include "eight_bits.h"
#include "four_bits.h"
#include "json_text.h"
#include "mxfp4.h"
#include "reorder.h"
#include "sftrun/core/error.h"
#include "sftrun/core/optional_file.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/python_json.h"
#include "sftrun/core/strings.h"
#include "sftrun/tokenizer/tokenizer.h"
#include "sftrun/weights/hf_text_files.h"
#include "sftrun/weights/safetensors.h"
#include "tensor_check.h"

namespace sftrun::weights {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kHead = "lm_head.weight";
constexpr const char* kBlocks = "_blocks";
constexpr const char* kScales = "_scales";
constexpr const char* kMxfp4 = "MXFP4";

[[noreturn]] void fail_no_config(const fs::path& directory) {
  if (has_optional_file(directory / "adapter_config.json")) {
    throw DataError("this directory contains an adapter, not a model", directory.string(),
                    "give the base model, and this directory as the adapter");
  }
  throw DataError("no config.json in this directory", directory.string(),
                  "give a directory in Hugging Face layout or a .gguf file");
}

[[noreturn]] void fail_no_weights(const fs::path& directory) {
  const bool pickled = leads_to_file(directory / "pytorch_model.bin") ||
                       leads_to_file(directory / "pytorch_model.bin.index.json");
  throw DataError(fmt::format("no {} and no {} in this directory", kSingle, kIndex),
                  directory.string(),
                  pickled ? "pytorch_model.bin is not supported: save the model as safetensors"
                          : "download or copy the model again");
}

json read_config(const fs::path& directory) {
  const fs::path path = directory / "config.json";
  if (!has_optional_file(path)) fail_no_config(directory);
  return parse_json(read_text_file(path), path.string());
}

/// Keys that transformers writes but that do not affect a model's output.
bool decides_nothing(std::string_view key) {
  constexpr auto kKeys = std::to_array<std::string_view>(
      {"_name_or_path", "_commit_hash", "_attn_implementation", "architectures",
       "transformers_version", "dtype", "torch_dtype", "use_cache", "initializer_range",
       "output_attentions", "output_hidden_states", "return_dict", "torchscript"});
  return std::find(kKeys.begin(), kKeys.end(), key) != kKeys.end();
}

/// A checkpoint keeps the values as JSON, which has neither NaN nor infinite numbers.
nlohmann::ordered_json comparable(const json& value) {
  std::string text = dump_python_json(nlohmann::ordered_json(value));
  if (text == value.dump()) return value;
  return text;
}

void flatten(const json& config, const std::string& prefix, nlohmann::ordered_json& keys) {
  for (const auto& [key, value] : config.items()) {
    if (decides_nothing(key)) continue;
    if (value.is_object() && !value.empty())
      flatten(value, prefix + key + ".", keys);
    else
      keys[prefix + key] = comparable(value);
  }
}

spec::ArchSpec read_arch(const json& config, const fs::path& directory) {
  spec::ArchSpec arch =
      spec::ArchSpec::from_hf_config(config, (directory / "config.json").string());
  for (const int64_t id : generation_eos_ids(directory)) {
    const auto known = std::find(arch.eos_token_ids.begin(), arch.eos_token_ids.end(), id);
    if (known == arch.eos_token_ids.end()) arch.eos_token_ids.push_back(id);
  }
  return arch;
}

/// Shard file by tensor name.
std::map<std::string, std::string> read_index(const fs::path& path) {
  const json index = parse_json(read_text_file(path), path.string());
  const auto weight_map = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || weight_map == index.end() || !weight_map->is_object()) {
    throw DataError("`weight_map` is missing", path.string());
  }
  std::map<std::string, std::string> shard_of;
  for (const auto& [name, file] : weight_map->items()) {
    const std::string shard = file.is_string() ? file.get<std::string>() : "";
    const bool is_cut = shard.find('\0') != std::string::npos;  // where the system takes the name
    if (shard.empty() || is_cut || fs::path(shard).filename() != shard) {
      throw DataError(fmt::format("tensor `{}` is mapped to {}, which is not a file name",
                                  excerpt(name), excerpt(file.dump())),
                      path.string());
    }
    shard_of[name] = shard;
  }
  return shard_of;
}

/// Files have the text part's original names below a common prefix; transformers' models have other
/// names.
std::string name_in_text_part(const std::string& stored) {
  constexpr std::string_view kModel = "language_model.model.", kHeadOf = "language_model.lm_head.";
  if (stored.starts_with(kModel)) return "model.language_model." + stored.substr(kModel.size());
  if (stored.starts_with(kHeadOf)) return "lm_head." + stored.substr(kHeadOf.size());
  return stored;
}

/// transformers keeps the larger model's names when it saves only the text part.
std::string name_on_its_own(const std::string& stored) {
  constexpr std::string_view kText = "model.language_model.";
  return stored.starts_with(kText) ? "model." + stored.substr(kText.size()) : stored;
}

/// Parts other than the text model: image and audio encoders, and layers for multi-token
/// prediction.
bool is_of_another_part(const std::string& name, const spec::ArchSpec& arch) {
  if (arch.is_text_part()) return !name.starts_with(arch.prefix) && name != kHead;
  return name.starts_with("mtp.") || name.starts_with("model.visual.");
}

/// Buffers that some transformers versions save; they are recomputed.
bool is_ignorable(const std::string& name) {
  return name.ends_with(".rotary_emb.inv_freq");
}

class HfCheckpoint final : public CheckpointBase {
 public:
  explicit HfCheckpoint(const fs::path& directory) : directory_(directory) {
    where_ = directory.string();
    config_ = read_config(directory);
    arch_ = read_arch(config_, directory);
    open_files();
    drop_tied_head();
    list_tensors();
  }

  void read(const std::string& name, DType dtype, void* destination) const override {
    const size_t i = index_of(name);
    const std::vector<spec::TensorPart>& parts = tensors_[i].parts;
    if (const auto packed = quantised_.find(name); packed != quantised_.end()) {
      return std::visit(
          [&](const auto& matrix) {
            read_unpacked(matrix, dtype, static_cast<std::byte*>(destination), tensors_[i].numel());
          },
          packed->second);
    }
    if (tensors_[i].layout.reorders())
      return read_reordered(i, dtype, static_cast<std::byte*>(destination));
    if (parts.empty()) {
      return read_stored(float_dtype(tensors_[i].format), stored_[i], dtype, destination,
                         tensors_[i].numel());
    }
    for (size_t part = 0; part < parts.size(); ++part) {
      read_part(name, part, dtype,
                static_cast<std::byte*>(destination) + parts[part].offset * size_of(dtype));
    }
  }

  void read_part(const std::string& name, size_t part, DType dtype,
                 void* destination) const override {
    const SafetensorsEntry& entry =
        *located_.at(tensors_[index_of(name)].parts.at(part).name).entry;
    read_stored(float_dtype(entry.dtype), entry.bytes, dtype, destination,
                static_cast<int64_t>(entry.bytes.size()) / size_of(*float_dtype(entry.dtype)));
  }

  std::optional<uint64_t> read_range(const std::string& name, DType dtype, int64_t first,
                                     int64_t count, void* destination) const override {
    const size_t i = index_of(name);
    if (quantised_.contains(name) || tensors_[i].layout.reorders()) return std::nullopt;
    const std::vector<spec::TensorPart>& parts = tensors_[i].parts;
    auto* to = static_cast<std::byte*>(destination);
    if (parts.empty())
      return read_values(*float_dtype(tensors_[i].format), stored_[i], first, count, dtype, to);
    uint64_t bytes = 0;
    for (const spec::TensorPart& part : parts) {
      const SafetensorsEntry& entry = *located_.at(part.name).entry;
      const DType from = *float_dtype(entry.dtype);
      const int64_t numel = static_cast<int64_t>(entry.bytes.size()) / size_of(from),
                    begin = std::max(first, part.offset),
                    end = std::min(first + count, part.offset + numel);
      if (begin >= end) continue;
      bytes += read_values(from, entry.bytes, begin - part.offset, end - begin, dtype,
                           to + (begin - first) * size_of(dtype));
    }
    return bytes;
  }

  std::optional<std::span<const std::byte>> mapped(const std::string& name,
                                                   DType dtype) const override {
    const size_t i = index_of(name);
    const bool is_whole = tensors_[i].parts.size() <= 1;
    if (!is_whole || tensors_[i].layout.reorders() || !is_aligned(stored_[i], dtype) ||
        float_dtype(tensors_[i].format) != dtype)
      return std::nullopt;
    return stored_[i];
  }

  std::optional<PackedMatrix> packed(const std::string& name) const override {
    const TensorInfo& info = tensors_[index_of(name)];
    if (info.format == kMxfp4) {
      const Mxfp4Blocks blocks = blocks_of(name);
      constexpr size_t kSides = 4;  // [experts, gate or up, inner, in]
      return Mxfp4Experts{blocks.codes, blocks.exponents, info.layout.view.size() == kSides};
    }
    const auto found = quantised_.find(name);
    if (found == quantised_.end()) return std::nullopt;
    return std::visit([](const auto& matrix) { return PackedMatrix(matrix); }, found->second);
  }

  std::vector<WeightFile> weight_files() const override {
    std::vector<WeightFile> files;
    for (const auto& file : files_) files.push_back({file->path, file->content.data_begin()});
    return files;
  }

  nlohmann::ordered_json configuration() const override {
    nlohmann::ordered_json keys = nlohmann::ordered_json::object();
    flatten(config_, "", keys);
    return keys;
  }

  tokenizer::Tokenizer tokenizer() const override {
    return tokenizer::Tokenizer::from_directory(directory_);
  }
  std::optional<std::string> chat_template() const override {
    return tokenizer::chat_template_in(directory_);
  }
  templates::RenderOptions render_defaults() const override {
    return read_special_texts(directory_);
  }

 private:
  struct Located {
    const SafetensorsEntry* entry;
    const fs::path* file;
  };

  void read_stored(std::optional<DType> stored, std::span<const std::byte> bytes, DType dtype,
                   void* destination, int64_t numel) const {
    convert(*stored, bytes.data(), dtype, static_cast<std::byte*>(destination), numel);
    for (const auto& file : files_) file->content.release(bytes);
  }

  /// @return bytes read
  uint64_t read_values(DType stored, std::span<const std::byte> bytes, int64_t first, int64_t count,
                       DType dtype, std::byte* destination) const {
    const auto part = bytes.subspan(static_cast<size_t>(first * size_of(stored)),
                                    static_cast<size_t>(count * size_of(stored)));
    read_stored(stored, part, dtype, destination, count);
    return part.size();
  }

  static std::vector<std::span<const std::byte>> bytes_of(const FourBits& matrix) {
    return {matrix.packed, matrix.absmax, matrix.nested_absmax};
  }
  static std::vector<std::span<const std::byte>> bytes_of(const EightBitRows& matrix) {
    return {matrix.codes, matrix.scales};
  }

  template <typename Matrix>
  void read_unpacked(const Matrix& matrix, DType dtype, std::byte* destination,
                     int64_t numel) const {
    constexpr int64_t kChunk = 8192;
    std::vector<float> wide(static_cast<size_t>(std::min(numel, kChunk)));
    for (int64_t done = 0; done < numel; done += kChunk) {
      const int64_t count = std::min(numel - done, kChunk);
      dequantize(matrix, done, count, wide.data());
      convert(DType::kF32, reinterpret_cast<const std::byte*>(wide.data()), dtype,
              destination + done * size_of(dtype), count);
    }
    for (const auto& file : files_) {
      for (const auto& part : bytes_of(matrix)) file->content.release(part);
    }
  }

  /// Entry by entry of the first dimension, because an experts' tensor is large.
  void read_reordered(size_t i, DType dtype, std::byte* destination) const {
    const TensorInfo& info = tensors_[i];
    const bool is_packed = info.format == kMxfp4;
    const FileLayout layout = within_first(is_packed ? mxfp4_layout(info.layout) : info.layout);
    const int64_t count = info.layout.view[0], size = info.numel() / count;
    std::vector<std::byte> stored(static_cast<size_t>(size * size_of(dtype)));
    std::vector<float> wide(is_packed ? static_cast<size_t>(size) : 0);
    if (is_packed) require_numbers(blocks_of(info.name).exponents, info.name);
    for (int64_t entry = 0; entry < count; ++entry) {
      if (is_packed) {
        decode_mxfp4(blocks_of(info.name), entry * size / kMxfp4Block, wide);
        convert(DType::kF32, reinterpret_cast<const std::byte*>(wide.data()), dtype, stored.data(),
                size);
      } else {
        const DType from = *float_dtype(info.format);
        convert(from, stored_[i].data() + entry * size * size_of(from), dtype, stored.data(), size);
      }
      from_file_order(layout, size_of(dtype), stored.data(),
                      destination + entry * size * size_of(dtype));
    }
    for (const auto& file : files_) file->content.release(stored_[i]);
  }

  Mxfp4Blocks blocks_of(const std::string& name) const {
    return {located_.at(name + kBlocks).entry->bytes, located_.at(name + kScales).entry->bytes};
  }
  bool is_packed(const spec::TensorSpec& spec) const {
    return spec.role == spec::TensorRole::kExperts &&
           (located_.contains(spec.name + kBlocks) || located_.contains(spec.name + kScales));
  }

  void open_files() {
    if (has_optional_file(directory_ / kSingle)) {
      open_file(directory_ / kSingle);
    } else if (has_optional_file(directory_ / kIndex)) {
      open_shards();
    } else {
      fail_no_weights(directory_);
    }
  }

  void open_shards() {
    const fs::path index_path = directory_ / kIndex;
    const std::map<std::string, std::string> shard_of = read_index(index_path);
    std::map<std::string, bool> opened;
    for (const auto& [name, shard] : shard_of) {
      if (std::exchange(opened[shard], true)) continue;
      if (!has_optional_file(directory_ / shard)) {
        throw DataError(fmt::format("the shard {} is missing", excerpt(shard)), index_path.string(),
                        "download or copy it again");
      }
      open_file(directory_ / shard);
    }
    for (const auto& [name, shard] : shard_of) {
      if (is_ignorable(name)) continue;
      const auto found = located_.find(in_model(name));
      if (found == located_.end() || found->second.file->filename() != shard) {
        throw DataError(
            fmt::format("tensor `{}` is not in {}, although the index lists it there", name, shard),
            index_path.string());
      }
    }
  }

  void open_file(const fs::path& path) {
    files_.push_back(std::make_unique<File>(File{path, SafetensorsFile(path)}));
    for (const SafetensorsEntry& entry : files_.back()->content.entries()) {
      if (is_ignorable(entry.name)) continue;
      const auto [position, added] =
          located_.emplace(in_model(entry.name), Located{&entry, &files_.back()->path});
      if (!added) {
        throw DataError(fmt::format("tensor `{}` is also in {}", entry.name,
                                    position->second.file->filename().string()),
                        path.string());
      }
    }
  }

  /// Drops the head of a tied model if the files contain it. @throws DataError if it differs from
  /// the embedding
  void drop_tied_head() {
    const std::string embedding_name = arch_.prefix + "embed_tokens.weight";
    const auto head = located_.find(kHead), embedding = located_.find(embedding_name);
    if (!arch_.tie_word_embeddings || head == located_.end() || embedding == located_.end()) return;
    const SafetensorsEntry &a = *head->second.entry, &b = *embedding->second.entry;
    const bool equal =
        a.dtype == b.dtype && a.shape == b.shape &&
        (a.bytes.empty() || std::memcmp(a.bytes.data(), b.bytes.data(), a.bytes.size()) == 0);
    if (!equal) {
      throw DataError(fmt::format("tensor `{}` differs from `{}`, although config.json ties them",
                                  kHead, embedding_name),
                      head->second.file->string(),
                      "set \"tie_word_embeddings\": false in config.json, or remove the tensor");
    }
    located_.erase(head);
  }

  void list_tensors() {
    std::vector<spec::TensorSpec> expected = spec::tensor_specs(arch_);
    for (spec::TensorSpec& spec : expected) {
      if (located_.contains(spec.name)) spec.parts.clear();  // stored as one tensor, unlike usual
    }
    const std::set<std::string> beside = find_quantised(expected);
    std::vector<FoundTensor> found;
    std::vector<std::string> others;
    for (const auto& [name, located] : located_) {
      if (beside.contains(name)) continue;
      if (quantised_.contains(name)) {
        const auto spec = std::find_if(
            expected.begin(), expected.end(),
            [&wanted = name](const spec::TensorSpec& one) { return one.name == wanted; });
        found.push_back({name, spec->shape, located.file->string()});
      } else if (is_of_another_part(name, arch_) || spec::is_unused(arch_, name)) {
        others.push_back(name);
      } else {
        found.push_back({name, located.entry->shape, located.file->string()});
      }
    }
    check_tensors(in_files(expected), found, where_);
    for (const spec::TensorSpec& spec : expected) {
      if (is_packed(spec)) {
        add_packed(spec);
        continue;
      }
      if (quantised_.contains(spec.name)) {
        add_quantised(spec);
        continue;
      }
      if (spec.parts.empty()) {
        const Located& located = require_float(spec.name);
        add({.name = spec.name,
             .shape = spec.shape,
             .format = located.entry->dtype,
             .stored_bytes = located.entry->bytes.size(),
             .stored_name = located.entry->name,
             .layout = spec.layout},
            located.entry->bytes);
        continue;
      }
      uint64_t stored_bytes = 0;
      for (const spec::TensorPart& part : spec.parts)
        stored_bytes += require_float(part.name).entry->bytes.size();
      const SafetensorsEntry& first = *located_.at(spec.parts[0].name).entry;
      add({.name = spec.name,
           .shape = spec.shape,
           .format = first.dtype,
           .stored_bytes = stored_bytes,
           .parts = spec.parts},
          first.bytes);
    }
    for (const std::string& name : others) {
      const Located& located = located_.at(name);
      if (float_dtype(located.entry->dtype)) add_located(name, located);  // others are buffers
    }
  }

  /// Fills `quantised_`.   @return the names of the additional tensors of quantised matrices
  std::set<std::string> find_quantised(const std::vector<spec::TensorSpec>& specs) {
    std::set<std::string> beside;
    const FindEntry find = [this](const std::string& name) {
      const auto found = located_.find(name);
      return found == located_.end() ? nullptr : found->second.entry;
    };
    for (const spec::TensorSpec& spec : specs) {
      if (!spec.parts.empty() || spec.layout.reorders()) continue;
      const auto where = [&] { return located_.at(spec.name).file->string(); };
      if (has_4bit_codes(spec.name, find)) {
        beside.merge(set_of(beside_four_bits(spec.name, find)));
        quantised_.emplace(spec.name, read_four_bits(spec.name, spec.shape, find, where()));
      } else if (has_8bit_codes(spec.name, find)) {
        beside.merge(set_of(beside_eight_bits(spec.name, find)));
        quantised_.emplace(spec.name, read_eight_bits(spec.name, spec.shape, find, where()));
      }
    }
    return beside;
  }

  static std::set<std::string> set_of(const std::vector<std::string>& names) {
    return {names.begin(), names.end()};
  }

  void add_quantised(const spec::TensorSpec& spec) {
    std::visit(
        [&](const auto& matrix) {
          const auto bytes = bytes_of(matrix);
          uint64_t stored_bytes = 0;
          for (const auto& part : bytes) stored_bytes += part.size();
          add({.name = spec.name,
               .shape = spec.shape,
               .format = std::string(quant_info(matrix.format).stored_name),
               .stored_bytes = stored_bytes,
               .stored_name = located_.at(spec.name).entry->name},
              bytes.front());
        },
        quantised_.at(spec.name));
  }

  /// The tensors of the files for the tensors of the model.
  std::vector<spec::TensorSpec> in_files(const std::vector<spec::TensorSpec>& specs) const {
    std::vector<spec::TensorSpec> stored;
    for (const spec::TensorSpec& spec : specs) {
      if (is_packed(spec)) {
        add_blocks(spec, stored);
      } else if (spec.parts.empty()) {
        stored.push_back(spec);
        stored.back().shape = spec.shape_in_files();
      }
      for (const spec::TensorPart& part : spec.parts)
        stored.push_back({.name = part.name, .shape = part.shape, .role = spec.role});
    }
    return stored;
  }

  /// Adds the blocks, [experts, rows, blocks per row, bytes per block], and one exponent per block.
  void add_blocks(const spec::TensorSpec& spec, std::vector<spec::TensorSpec>& stored) const {
    std::vector<int64_t> shape = mxfp4_layout(spec.layout).shape;
    if (shape.back() % kMxfp4Block != 0) {
      throw DataError(fmt::format("tensor `{}{}` cannot be MXFP4: its rows of {} values are not a "
                                  "multiple of the block size {}",
                                  spec.name, kBlocks, shape.back(), kMxfp4Block),
                      where_, "configuration and weights are of different models");
    }
    shape.back() /= kMxfp4Block;
    stored.push_back({.name = spec.name + kScales, .shape = shape, .role = spec.role});
    shape.push_back(kMxfp4Block / 2);
    stored.push_back({.name = spec.name + kBlocks, .shape = shape, .role = spec.role});
  }

  void add_packed(const spec::TensorSpec& spec) {
    uint64_t stored_bytes = 0;
    for (const char* kind : {kBlocks, kScales}) {
      const Located& located = located_.at(spec.name + kind);
      if (located.entry->dtype != "U8") {
        throw DataError(fmt::format("tensor `{}{}` is stored as {}, expected U8 (MXFP4)", spec.name,
                                    kind, located.entry->dtype),
                        located.file->string(), "download or copy the model again");
      }
      stored_bytes += located.entry->bytes.size();
    }
    add({.name = spec.name,
         .shape = spec.shape,
         .format = kMxfp4,
         .stored_bytes = stored_bytes,
         .stored_name = spec.name,
         .layout = spec.layout},
        located_.at(spec.name + kBlocks).entry->bytes);
  }

  const Located& require_float(const std::string& name) const {
    const Located& located = located_.at(name);
    if (float_dtype(located.entry->dtype)) return located;
    throw DataError(fmt::format("tensor `{}` is stored as {}, which is not supported", name,
                                located.entry->dtype),
                    located.file->string(), "supported: F32, F16 and BF16");
  }

  void add_located(const std::string& name, const Located& located) {
    const SafetensorsEntry& entry = *located.entry;
    add({name, entry.shape, entry.dtype, entry.bytes.size(), entry.name}, entry.bytes);
  }

  std::string in_model(const std::string& stored) const {
    return arch_.is_text_part() ? name_in_text_part(stored) : name_on_its_own(stored);
  }

  struct File {
    fs::path path;
    SafetensorsFile content;
  };
  fs::path directory_;
  json config_;
  std::vector<std::unique_ptr<File>> files_;
  std::map<std::string, Located> located_;
  std::map<std::string, std::variant<FourBits, EightBitRows>> quantised_;
};

}  // namespace

std::unique_ptr<Checkpoint> open_hf_checkpoint(const fs::path& directory) {
  return std::make_unique<HfCheckpoint>(directory);
}

}  // namespace sftrun::weights
