#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "checkpoint_base.h"
#include "hf_files.h"
#include "hf_mxfp4.h"
#include "hf_quantised.h"
#include "json_text.h"
#include "reorder.h"
#include "sftrun/core/error.h"
#include "sftrun/core/optional_file.h"
#include "sftrun/core/python_json.h"
#include "sftrun/spec/feature_projectors.h"
#include "sftrun/spec/quantization_config.h"
#include "sftrun/spec/vision_tensors.h"
#include "sftrun/tokenizer/tokenizer.h"
#include "sftrun/weights/convert.h"
#include "sftrun/weights/hf_text_files.h"
#include "sftrun/weights/projectors.h"
#include "tensor_check.h"

namespace sftrun::weights {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kHead = "lm_head.weight";

[[noreturn]] void fail_no_config(const fs::path& directory) {
  if (has_optional_file(directory / "adapter_config.json")) {
    throw DataError("this directory contains an adapter, not a model", directory.string(),
                    "give the base model, and this directory as the adapter");
  }
  throw DataError("no config.json in this directory", directory.string(),
                  "give a directory in Hugging Face layout or a .gguf file");
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
  spec::add_projectors(arch, read_projectors(directory));
  return arch;
}

/// transformers keeps the larger model's names when it saves only the text part.
std::string name_on_its_own(const std::string& stored) {
  constexpr std::string_view kText = "model.language_model.";
  return stored.starts_with(kText) ? "model." + stored.substr(kText.size()) : stored;
}

/// Parts other than the text model: image and audio encoders, and layers for multi-token
/// prediction.
bool is_of_another_part(const std::string& name, const spec::ArchSpec& arch) {
  if (spec::is_of_projectors(arch, name)) return false;
  if (arch.is_text_part()) return !name.starts_with(arch.prefix) && name != kHead;
  return name.starts_with("mtp.") || name.starts_with("model.visual.");
}

std::string name_in_model(const spec::ArchSpec& arch, const std::string& stored) {
  return arch.is_text_part() ? spec::name_in_whole_model(arch, stored) : name_on_its_own(stored);
}

std::string embedding_of(const spec::ArchSpec& arch) {
  return arch.prefix + "embed_tokens.weight";
}

bool differs(const SafetensorsEntry& a, const SafetensorsEntry& b) {
  if (a.dtype != b.dtype || a.shape != b.shape) return true;
  return !a.bytes.empty() && std::memcmp(a.bytes.data(), b.bytes.data(), a.bytes.size()) != 0;
}

/// Whether the files have a head of their own and only a default of the class ties it: transformers 5 ties
/// Mistral 3 and InternVL, whose files do not say it and may have a head.
bool is_untied_by_files(const json& config, const spec::ArchSpec& arch, const HfFiles& files) {
  constexpr const char* kTies = "tie_word_embeddings";
  if (!arch.is_text_part() || !arch.tie_word_embeddings || config.contains(kTies)) return false;
  const auto text = config.find("text_config");
  if (text != config.end() && text->contains(kTies)) return false;
  const SafetensorsEntry *head = files.find(kHead), *embedding = files.find(embedding_of(arch));
  return head != nullptr && embedding != nullptr && differs(*head, *embedding);
}

/// Drops the head of a tied model if the files contain it. @throws DataError if it differs from
/// the embedding
void drop_tied_head(const spec::ArchSpec& arch, HfFiles& files) {
  const std::string embedding_name = embedding_of(arch);
  const SafetensorsEntry *head = files.find(kHead), *embedding = files.find(embedding_name);
  if (!arch.tie_word_embeddings || head == nullptr || embedding == nullptr) return;
  if (differs(*head, *embedding)) {
    throw DataError(fmt::format("tensor `{}` differs from `{}`, although config.json ties them",
                                kHead, embedding_name),
                    files.at(kHead).file->string(),
                    "set \"tie_word_embeddings\": false in config.json, or remove the tensor");
  }
  files.remove(kHead);
}

/// The text model's tensors. One that is usually stored in parts may be stored as a whole, and
/// Qwen3-VL's experts may be stored as in memory.
std::vector<spec::TensorSpec> expected_tensors(const spec::ArchSpec& arch, const HfFiles& files) {
  std::vector<spec::TensorSpec> expected = spec::tensor_specs(arch);
  for (spec::TensorSpec& spec : expected) {
    const SafetensorsEntry* stored = files.find(spec.name);
    if (stored == nullptr) continue;
    spec.parts.clear();
    if (arch.mixture.files == spec::ExpertFiles::kTransposed && stored->shape == spec.shape)
      spec.layout = {};
  }
  return expected;
}

/// A model in a directory. The tensors of its files are found by `HfFiles`; quantised matrices
/// are described in hf_quantised.h and hf_mxfp4.h.
class HfCheckpoint final : public CheckpointBase {
 public:
  explicit HfCheckpoint(const fs::path& directory)
      : directory_(directory), config_(read_config(directory)), files_(open_files()) {
    list_tensors();
  }

  void read(const std::string& name, DType dtype, void* destination) const override {
    const size_t i = index_of(name);
    const TensorInfo& info = tensors_[i];
    auto* to = static_cast<std::byte*>(destination);
    if (const auto found = quantised_.matrices.find(name); found != quantised_.matrices.end()) {
      for (size_t part = 0; part < found->second.parts.size(); ++part)
        read_quantised_part(found->second, part, dtype, to);
      return;
    }
    if (info.layout.reorders()) return read_reordered(i, dtype, to);
    if (info.parts.empty())
      return read_stored(*float_dtype(info.format), stored_[i], dtype, to, info.numel());
    for (size_t part = 0; part < info.parts.size(); ++part)
      read_part(name, part, dtype, to + info.parts[part].offset * size_of(dtype));
  }

  void read_part(const std::string& name, size_t part, DType dtype,
                 void* destination) const override {
    if (const auto found = quantised_.matrices.find(name); found != quantised_.matrices.end()) {
      auto* to = static_cast<std::byte*>(destination);
      return read_quantised_part(found->second, part, dtype,
                                 to - found->second.values_before(part) * size_of(dtype));
    }
    const SafetensorsEntry& entry = *files_.at(tensors_[index_of(name)].parts.at(part).name).entry;
    const DType from = *float_dtype(entry.dtype);
    read_stored(from, entry.bytes, dtype, destination,
                static_cast<int64_t>(entry.bytes.size()) / size_of(from));
  }

  std::optional<uint64_t> read_range(const std::string& name, DType dtype, int64_t first,
                                     int64_t count, void* destination) const override {
    const size_t i = index_of(name);
    if (quantised_.matrices.contains(name) || tensors_[i].layout.reorders()) return std::nullopt;
    const std::vector<spec::TensorPart>& parts = tensors_[i].parts;
    auto* to = static_cast<std::byte*>(destination);
    if (parts.empty())
      return read_values(*float_dtype(tensors_[i].format), stored_[i], first, count, dtype, to);
    uint64_t bytes = 0;
    for (const spec::TensorPart& part : parts) {
      const SafetensorsEntry& entry = *files_.at(part.name).entry;
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
      const Mxfp4Blocks blocks = mxfp4_blocks(name, files_);
      constexpr size_t kSides = 4;  // [experts, gate or up, inner, in]
      return Mxfp4Experts{blocks.codes, blocks.exponents, info.layout.view.size() == kSides};
    }
    const auto found = quantised_.matrices.find(name);
    if (found == quantised_.matrices.end()) return std::nullopt;
    return found->second.packed();
  }

  std::vector<WeightFile> weight_files() const override { return files_.weight_files(); }

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
  using Located = HfFiles::Located;

  HfFiles open_files() {
    where_ = directory_.string();
    arch_ = read_arch(config_, directory_);
    HfFiles files(directory_,
                  [this](const std::string& stored) { return name_in_model(arch_, stored); });
    if (is_untied_by_files(config_, arch_, files)) arch_.tie_word_embeddings = false;
    drop_tied_head(arch_, files);
    return files;
  }

  void read_stored(DType stored, std::span<const std::byte> bytes, DType dtype, void* destination,
                   int64_t numel) const {
    convert(stored, bytes.data(), dtype, static_cast<std::byte*>(destination), numel);
    files_.release(bytes);
  }

  /// @param to receives the first part
  void read_quantised_part(const HfQuantisedMatrix& matrix, size_t part, DType dtype,
                           std::byte* to) const {
    const CodedMatrix& codes = matrix.parts[part];
    read_quantised(codes, dtype, to + matrix.values_before(part) * size_of(dtype));
    for (const auto& bytes : stored_parts(codes)) files_.release(bytes);
  }

  /// @return bytes read
  uint64_t read_values(DType stored, std::span<const std::byte> bytes, int64_t first, int64_t count,
                       DType dtype, std::byte* destination) const {
    const auto part = bytes.subspan(static_cast<size_t>(first * size_of(stored)),
                                    static_cast<size_t>(count * size_of(stored)));
    read_stored(stored, part, dtype, destination, count);
    return part.size();
  }

  /// Entry by entry of the first dimension, because an experts' tensor is large.
  void read_reordered(size_t i, DType dtype, std::byte* destination) const {
    const TensorInfo& info = tensors_[i];
    const bool is_packed = info.format == kMxfp4;
    const FileLayout layout = within_first(is_packed ? mxfp4_layout(info.layout) : info.layout);
    const int64_t count = info.layout.view[0], size = info.numel() / count;
    std::vector<std::byte> stored(static_cast<size_t>(size * size_of(dtype)));
    std::vector<float> wide(is_packed ? static_cast<size_t>(size) : 0);
    if (is_packed) require_numbers(mxfp4_blocks(info.name, files_).exponents, info.name);
    for (int64_t entry = 0; entry < count; ++entry) {
      if (is_packed) {
        decode_mxfp4(mxfp4_blocks(info.name, files_), entry * size / kMxfp4Block, wide);
        convert(DType::kF32, reinterpret_cast<const std::byte*>(wide.data()), dtype, stored.data(),
                size);
      } else {
        const DType from = *float_dtype(info.format);
        convert(from, stored_[i].data() + entry * size * size_of(from), dtype, stored.data(), size);
      }
      from_file_order(layout, size_of(dtype), stored.data(),
                      destination + entry * size * size_of(dtype));
    }
    files_.release(stored_[i]);
  }

  void list_tensors() {
    const std::vector<spec::TensorSpec> expected = expected_tensors(arch_, files_);
    const spec::QuantizationConfig said =
        spec::read_quantization_config(config_, where_).value_or(spec::QuantizationConfig());
    quantised_ = find_quantised(expected, files_, said);
    std::vector<std::string> others;
    check_tensors(in_files(expected), found_tensors(expected, others), where_);
    for (const spec::TensorSpec& spec : expected) add_expected(spec);
    add_others(others);
  }

  /// The float tensors of other parts; others are buffers.
  void add_others(std::vector<std::string>& names) {
    const auto stored = [&](const std::string& name) { return files_.at(name).entry->name; };
    std::sort(names.begin(), names.end(),
              [&](const std::string& a, const std::string& b) { return stored(a) < stored(b); });
    std::map<std::string, spec::TensorSpec> of_images;
    if (arch_.vision) {
      for (spec::TensorSpec& spec : spec::vision_tensor_specs(*arch_.vision, arch_.hidden_size))
        of_images[spec.name] = std::move(spec);
    }
    for (const std::string& name : names) {
      const SafetensorsEntry& entry = *files_.at(name).entry;
      if (!float_dtype(entry.dtype) || is_scale_of_codes(name)) continue;
      TensorInfo info{.name = name,
                      .shape = entry.shape,
                      .format = entry.dtype,
                      .stored_bytes = entry.bytes.size(),
                      .stored_name = entry.name,
                      .is_other = true};
      const auto spec = of_images.find(name);
      if (spec != of_images.end() && spec->second.shape_in_files() == entry.shape) {
        info.shape = spec->second.shape;
        info.layout = spec->second.layout;
      }
      add(std::move(info), entry.bytes);
    }
  }

  /// Whether it is of an FP8 matrix in a part of the model that is not read.
  bool is_scale_of_codes(const std::string& name) const {
    const SafetensorsEntry* codes = files_.find(name.substr(0, name.rfind("_scale")));
    return codes != nullptr && !float_dtype(codes->dtype);
  }

  /// The tensors of the files that the text model can use.   @param others receives the rest
  std::vector<FoundTensor> found_tensors(const std::vector<spec::TensorSpec>& expected,
                                         std::vector<std::string>& others) const {
    std::vector<FoundTensor> found;
    for (const auto& [name, located] : files_.tensors()) {
      if (quantised_.parts.contains(name) || quantised_.matrices.contains(name)) continue;
      if (is_of_another_part(name, arch_) || spec::is_unused(arch_, name))
        others.push_back(name);
      else
        found.push_back({name, located.entry->shape, located.file->string()});
    }
    for (const spec::TensorSpec& spec : expected)
      if (quantised_.matrices.contains(spec.name)) found.push_back({spec.name, spec.shape, where_});
    return found;
  }

  /// The tensors of the files for the tensors of the model.
  std::vector<spec::TensorSpec> in_files(const std::vector<spec::TensorSpec>& specs) const {
    std::vector<spec::TensorSpec> stored;
    for (const spec::TensorSpec& spec : specs) {
      if (quantised_.matrices.contains(spec.name)) {
        stored.push_back({.name = spec.name, .shape = spec.shape, .role = spec.role});
        continue;
      }
      if (is_in_mxfp4(spec, files_)) {
        for (spec::TensorSpec& tensor : mxfp4_tensors(spec, where_))
          stored.push_back(std::move(tensor));
      } else if (spec.parts.empty()) {
        stored.push_back(spec);
        stored.back().shape = spec.shape_in_files();
      }
      for (const spec::TensorPart& part : spec.parts)
        stored.push_back({.name = part.name, .shape = part.shape, .role = spec.role});
    }
    return stored;
  }

  void add_expected(const spec::TensorSpec& spec) {
    if (is_in_mxfp4(spec, files_))
      return add(mxfp4_info(spec, files_), mxfp4_blocks(spec.name, files_).codes);
    if (quantised_.matrices.contains(spec.name)) return add_quantised(spec);
    if (!spec.parts.empty()) return add_parts(spec);
    const Located& located = require_float(spec.name);
    add({.name = spec.name,
         .shape = spec.shape,
         .format = located.entry->dtype,
         .stored_bytes = located.entry->bytes.size(),
         .stored_name = located.entry->name,
         .layout = spec.layout},
        located.entry->bytes);
  }

  void add_parts(const spec::TensorSpec& spec) {
    uint64_t stored_bytes = 0;
    for (const spec::TensorPart& part : spec.parts)
      stored_bytes += require_float(part.name).entry->bytes.size();
    const SafetensorsEntry& first = *files_.at(spec.parts[0].name).entry;
    add({.name = spec.name,
         .shape = spec.shape,
         .format = first.dtype,
         .stored_bytes = stored_bytes,
         .parts = spec.parts},
        first.bytes);
  }

  void add_quantised(const spec::TensorSpec& spec) {
    const HfQuantisedMatrix& matrix = quantised_.matrices.at(spec.name);
    const CodedMatrix& first = matrix.parts.front();
    uint64_t stored_bytes = 0;
    for (const CodedMatrix& codes : matrix.parts)
      for (const auto& part : stored_parts(codes)) stored_bytes += part.size();
    add({.name = spec.name,
         .shape = spec.shape,
         .format = std::string(quant_info(first.format).stored_name),
         .stored_bytes = stored_bytes,
         .stored_name = matrix.stored_name,
         .parts = spec.parts},
        first.codes);
  }

  const Located& require_float(const std::string& name) const {
    const Located& located = files_.at(name);
    if (float_dtype(located.entry->dtype)) return located;
    throw DataError(fmt::format("tensor `{}` is stored as {}, which is not supported", name,
                                located.entry->dtype),
                    located.file->string(), "supported: F32, F16 and BF16");
  }

  fs::path directory_;
  json config_;
  HfFiles files_;
  HfQuantised quantised_;
};

}  // namespace

std::unique_ptr<Checkpoint> open_hf_checkpoint(const fs::path& directory) {
  return std::make_unique<HfCheckpoint>(directory);
}

}  // namespace sftrun::weights
