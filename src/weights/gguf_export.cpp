#include "sftrun/weights/gguf_export.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "gguf_mix.h"
#include "gguf_names.h"
#include "gguf_vocab.h"
#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/core/presence.h"
#include "sftrun/spec/gguf_description.h"
#include "sftrun/weights/gguf_quantize.h"
#include "sftrun/weights/ollama_modelfile.h"

namespace sftrun::weights {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFileType = "general.file_type";
constexpr uint32_t kQuantizationVersion = 2;  ///< version of ggml's block formats

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

/// The float type in which most of a directory's weights are stored.
std::string mix_of(const Checkpoint& base) {
  const std::string& format = base.tensors().at(0).format;
  if (format == "F32") return "f32";
  return format == "F16" ? "f16" : "bf16";
}

GgufTensorToWrite as_stored(const GgufTensor& tensor) {
  return {tensor.name, tensor.shape, tensor.type, [bytes = tensor.bytes](std::byte* destination) {
            if (!bytes.empty()) std::memcpy(destination, bytes.data(), bytes.size());
          }};
}

GgufTensorToWrite of_floats(const std::string& name, const std::vector<float>& values) {
  return {name,
          {static_cast<int64_t>(values.size())},
          info_of(GgmlType::kF32),
          [values](std::byte* destination) {
            std::memcpy(destination, values.data(), values.size() * sizeof(float));
          }};
}

// ---- From a directory.

tokenizer::GgufVocab vocab_of(const Checkpoint& base, const std::string& where) {
  const templates::RenderOptions texts = base.render_defaults();
  const spec::ArchSpec& arch = base.arch();
  return tokenizer::gguf_vocab_of(base.tokenizer(),
                                  {.vocab_size = arch.vocab_size,
                                   .keeps_merges = spec::gguf_keeps_merges(arch),
                                   .bos_token = texts.bos_token,
                                   .eos_token = texts.eos_token,
                                   .unk_token = texts.unk_token,
                                   .pad_token = texts.pad_token},
                                  where);
}

/// Readers take further EOS tokens of the model from these keys.
void write_further_ends(const spec::ArchSpec& arch, const tokenizer::GgufVocab& vocab,
                        GgufMetadata& metadata) {
  std::vector<const char*> keys = {"tokenizer.ggml.eom_token_id", "tokenizer.ggml.eot_token_id"};
  if (!vocab.eos) keys.push_back("tokenizer.ggml.eos_token_id");
  for (const int64_t id : arch.eos_token_ids) {
    if (keys.empty() || id == vocab.eos) continue;
    metadata.set_u32(keys.back(), static_cast<uint32_t>(id));
    keys.pop_back();
  }
}

void describe_directory(const Checkpoint& base, const GgufExportOptions& options,
                        const spec::GgufDescription& description, GgufPlan& plan) {
  const std::string where = options.base_path.string();
  if (!description.lost.empty()) log::warn("{}: {}", where, description.lost);
  plan.metadata.set_json("general.architecture", description.metadata["general.architecture"]);
  plan.metadata.set_string("general.type", "model");
  plan.metadata.set_string("general.name", options.name);
  for (const auto& [key, value] : description.metadata.items()) plan.metadata.set_json(key, value);
  plan.metadata.set_u32(kFileType, 0);
  plan.metadata.set_u32("general.quantization_version", kQuantizationVersion);
  const tokenizer::GgufVocab vocab = vocab_of(base, where);
  write_gguf_vocab(vocab, plan.metadata);
  plan.added_bos = added_bos_of(vocab);
  write_further_ends(base.arch(), vocab, plan.metadata);
  for (const auto& [name, values] : description.tensors)
    plan.beside.push_back(of_floats(name, values));
}

// ---- From a GGUF file.

/// The names under which the reader looks for these pieces, in any form a file may have.
std::set<std::string> names_read(const spec::ArchSpec& arch, const std::vector<GgufPiece>& pieces) {
  std::set<std::string> names;
  for (const GgufPiece& piece : pieces) {
    names.insert(piece.name);
    names.insert(gguf_fused_name(piece.name));
  }
  for (const spec::TensorSpec& spec : spec::tensor_specs(arch)) {
    if (!belongs_to_experts(spec)) continue;
    names.insert(gguf_fused_expert_name(spec));
    for (const std::string& name : gguf_single_expert_names(spec)) names.insert(name);
  }
  return names;
}

void copy_metadata(const GgufFile& file, GgufMetadata& metadata) {
  for (const GgufFile::StoredValue& value : file.stored_values()) {
    const bool is_of_this_file =
        value.key.starts_with("split.") || value.key == "general.alignment";
    if (!is_of_this_file) metadata.set_stored(value.key, value.type, value.bytes);
  }
  metadata.set_u32("general.quantization_version", kQuantizationVersion);
}

void copy_the_rest(const GgufFile& file, const spec::ArchSpec& arch, GgufPlan& plan) {
  const std::set<std::string> read = names_read(arch, plan.pieces);
  for (const GgufTensor& tensor : file.tensors()) {
    if (!read.contains(tensor.name)) plan.beside.push_back(as_stored(tensor));
  }
}

/// Keeps the types of the base file; a separate head gets the embedding's. Changed weights in fewer
/// than 8 bits, and tensors that the file stores in another form, become Q8_0: an update is small
/// relative to the steps of such a type, so requantising would round most of it away.
void keep_types(const Checkpoint& base, const GgufExportOptions& options, GgufPlan& plan) {
  for (size_t i = 0; i < plan.pieces.size(); ++i) {
    const GgufPiece& piece = plan.pieces[i];
    const bool is_untied = options.unties_head && i + 1 == plan.pieces.size();
    const GgufTensor* tensor = plan.base->find(is_untied ? "token_embd.weight" : piece.name);
    const bool is_changed = is_untied || options.is_changed(base.tensors()[piece.source].name);
    if (tensor && (!is_changed || !has_fewer_than_8_bits(tensor->type))) {
      plan.types[i] = tensor->type;
    } else if (plan.types[i].id != static_cast<uint32_t>(GgmlType::kF32)) {
      plan.types[i] = with_whole_blocks(GgmlType::kQ8_0, piece.row_size);
    }
  }
}

/// Replaces the file's vocabulary.
void replace_vocab(const Checkpoint& base, const GgufExportOptions& options, GgufPlan& plan) {
  const std::string where = options.base_path.string();
  const std::string model = read_gguf_vocab(*plan.base).model;
  const tokenizer::GgufVocab vocab = vocab_of(base, where);
  if (vocab.model != model) {
    throw DataError(
        fmt::format("the adapter's tokenizer has the type \"{}\", but the base file's has \"{}\"",
                    vocab.model, model),
        where,
        "write the model as safetensors (sftrun merge --format safetensors), or remove the "
        "tokenizer files from the adapter's "
        "directory");
  }
  write_gguf_vocab(vocab, plan.metadata);
  plan.added_bos = added_bos_of(vocab);
  const std::string key = spec::gguf_architecture(base.arch()) + ".vocab_size";
  if (plan.base->metadata().contains(key))
    plan.metadata.set_u32(key, static_cast<uint32_t>(base.arch().vocab_size));
}

void find_stored(GgufPlan& plan) {
  plan.stored.resize(plan.pieces.size());
  for (size_t i = 0; i < plan.pieces.size(); ++i) {
    const GgufTensor* tensor = plan.base ? plan.base->find(plan.pieces[i].name) : nullptr;
    if (tensor && tensor->type.id == plan.types[i].id) plan.stored[i] = tensor->bytes;
  }
}

}  // namespace

GgufPlan plan_gguf(const Checkpoint& base, const GgufExportOptions& options) {
  GgufPlan plan;
  const bool is_file = !is_folder(options.base_path);
  const bool keeps = is_file && options.mix == "auto";
  const GgufMix* mix = find_mix(options.mix != "auto" ? options.mix
                                : is_file             ? "q8_0"
                                                      : mix_of(base));
  SFTRUN_CHECK(mix != nullptr);
  spec::ArchSpec arch = base.arch();
  if (options.unties_head) {
    if (!spec::gguf_reads_head(arch)) {
      throw DataError(
          "the adapter unties the head, but for this family llama.cpp uses the embedding as the "
          "head",
          options.base_path.string(),
          "write the model as safetensors (sftrun merge --format safetensors)");
    }
    arch.tie_word_embeddings = false;
  }
  if (is_file) {
    plan.base = std::make_shared<GgufFile>(options.base_path);
    plan.pieces = gguf_pieces(arch);
    copy_metadata(*plan.base, plan.metadata);
    plan.added_bos = added_bos_of(*plan.base);
    if (options.has_own_tokens) replace_vocab(base, options, plan);
    copy_the_rest(*plan.base, arch, plan);
  } else {
    const spec::GgufDescription description =
        spec::describe_in_gguf(arch, options.base_path.string());
    arch = description.arch;
    plan.pieces = gguf_pieces(arch);
    describe_directory(base, options, description, plan);
  }
  plan.types = choose_types(*mix, arch, plan.pieces);
  plan.type_name = keeps ? "merged" : upper(std::string(mix->name));
  if (keeps) {
    keep_types(base, options, plan);
  } else {
    plan.metadata.set_u32(kFileType, mix->file_type);
  }
  plan.chat_template = options.chat_template ? options.chat_template : base.chat_template();
  const bool is_there = is_file && !options.chat_template;  // already in the copied metadata
  if (plan.chat_template && !is_there)
    plan.metadata.set_string("tokenizer.chat_template", *plan.chat_template);
  find_stored(plan);
  return plan;
}

}  // namespace sftrun::weights
