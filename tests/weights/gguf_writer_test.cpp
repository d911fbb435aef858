#include "sftrun/weights/gguf_writer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "file_builders.h"
#include "gguf_mix.h"
#include "gguf_vocab.h"
#include "read_f32.h"
#include "sftrun/core/file.h"
#include "sftrun/spec/gguf_description.h"
#include "sftrun/weights/checkpoint.h"
#include "sftrun/weights/gguf_export.h"
#include "sftrun/weights/gguf_quantize.h"
#include "sftrun/weights/safetensors.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"
#include "support/test_data.h"

namespace sftrun::weights {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::expect_error;

using test::kData;
using test::read_f32;

GgufTensorToWrite tensor_of(const std::string& name, const std::vector<int64_t>& shape,
                            const std::vector<float>& values, GgmlType type = GgmlType::kF32) {
  return {name, shape, info_of(type), [values, type](std::byte* destination) {
            quantize(info_of(type), values.data(), static_cast<int64_t>(values.size()),
                     destination);
          }};
}

TEST(GgufWriter, IsReadBack) {
  GgufMetadata metadata;
  metadata.set_json("general.architecture", "none");
  metadata.set_json("none.count", 4'000'000'000);
  metadata.set_json("none.epsilon", 1e-5);
  metadata.set_json("none.flags", json::array({true, false, true}));
  metadata.set_json("none.sizes", json::array({3, 1, 2}));
  metadata.set_json("none.words", json::array({"a", "grüße", ""}));
  metadata.set_bool("none.is", true);
  metadata.set_floats("none.scores", std::vector<float>{-0.5F, 3.0F});
  metadata.set_u32("none.twice", 1);
  metadata.set_u32("none.twice", 2);
  const test::TemporaryDirectory directory;
  const std::vector<float> odd = {1, 2, 3, 4, 5, 6, 7}, row(64, 0.25F);
  write_gguf(directory / "a.gguf", metadata,
             {tensor_of("odd", {7}, odd), tensor_of("empty", {0, 3}, {}),
              tensor_of("rows", {2, 32}, row, GgmlType::kQ8_0)});
  const GgufFile file(directory / "a.gguf");
  EXPECT_EQ(file.metadata()["none.count"], 4'000'000'000);
  EXPECT_EQ(file.metadata()["none.epsilon"].get<double>(), 1e-5);
  EXPECT_EQ(file.metadata()["none.flags"], json::array({true, false, true}));
  EXPECT_EQ(file.metadata()["none.twice"], 2);
  EXPECT_EQ(file.ints("none.sizes"), (std::vector<int64_t>{3, 1, 2}));
  EXPECT_EQ(file.strings("none.words").at(1), "grüße");
  EXPECT_EQ(file.floats("none.scores").at(0), -0.5F);
  ASSERT_EQ(file.tensors().size(), 3U);
  EXPECT_EQ(file.find("rows")->shape, (std::vector<int64_t>{2, 32}));
  EXPECT_EQ(file.find("rows")->type.name, "Q8_0");
  EXPECT_EQ(std::memcmp(file.find("odd")->bytes.data(), odd.data(), 28), 0);
  std::vector<float> read(64);
  dequantize(file.find("rows")->type, file.find("rows")->bytes.data(), 64, read.data());
  for (const float value : read) EXPECT_NEAR(value, 0.25F, 1e-4);
  EXPECT_EQ(std::distance(fs::directory_iterator(directory.path()), {}), 1);  // nothing beside it
}

TEST(GgufWriter, CopiesMetadataAsTheyAreStored) {
  const GgufFile file(kData / "weights/blocks.gguf");
  GgufMetadata metadata;
  for (const GgufFile::StoredValue& value : file.stored_values())
    metadata.set_stored(value.key, value.type, value.bytes);
  const test::TemporaryDirectory directory;
  write_gguf(directory / "copy.gguf", metadata, {});
  const GgufFile copy(directory / "copy.gguf");
  EXPECT_EQ(copy.metadata(), file.metadata());
  EXPECT_EQ(copy.strings("test.long_strings"), file.strings("test.long_strings"));
  EXPECT_EQ(copy.ints("test.long_ints"), file.ints("test.long_ints"));
}

TEST(GgufWriter, RefusesWhatMetadataCannotHold) {
  GgufMetadata metadata;
  expect_error([&] { metadata.set_json("k", json(-1)); }, {"GGUF metadata cannot store `k` -1"});
  expect_error([&] { metadata.set_json("k", json::object()); }, {"`k` {}"});
  expect_error([&] { metadata.set_json("k", json::array({true, "a"})); }, {"`k`"});
}

// ---- Blocks (scripts/fixtures/make_gguf_quantised.py).

TEST(Quantize, EqualsGgufPyAndGgml) {
  const SafetensorsFile file(kData / "weights/quantised.safetensors");
  const SafetensorsEntry* numbers = file.find("numbers");
  ASSERT_NE(numbers, nullptr);
  const auto count = static_cast<int64_t>(numbers->bytes.size() / sizeof(float));
  std::vector<float> values(static_cast<size_t>(count));
  std::memcpy(values.data(), numbers->bytes.data(), numbers->bytes.size());
  size_t num_types = 0;
  for (uint32_t id = 0; id < 64; ++id) {
    const GgmlTypeInfo* type = ggml_type_info(id);
    if (!type || !can_quantize(*type)) continue;
    ++num_types;
    const SafetensorsEntry* expected = file.find(std::string(type->name));
    ASSERT_NE(expected, nullptr) << type->name;
    std::vector<std::byte> blocks(
        static_cast<size_t>(count / type->block_size * type->block_bytes));
    quantize(*type, values.data(), count, blocks.data());
    ASSERT_EQ(expected->bytes.size(), blocks.size()) << type->name;
    size_t differing = 0;
    for (size_t i = 0; i < blocks.size(); ++i) differing += blocks[i] != expected->bytes[i] ? 1 : 0;
    EXPECT_EQ(differing, 0U) << type->name << " of " << blocks.size();
  }
  EXPECT_EQ(num_types, 11U);
}

// ---- What llama.cpp's own converter made (scripts/fixtures/make_converted.py).

/// The files that end so. `<case>.json` has a key for each file `<case>-<key>.gguf`.
std::vector<std::string> converted_files(const std::string& ending) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(kData / "converted")) {
    if (entry.path().extension() != ".json") continue;
    const json scores = json::parse(read_text_file(entry.path()));
    for (const auto& [key, records] : scores.items()) {
      const std::string name = entry.path().stem().string() + "-" + key + ".gguf";
      if (name.ends_with(ending)) names.push_back(name);
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// w - 1 + 1 and -exp(log(w)) round.
void expect_close(const std::vector<float>& values, std::span<const std::byte> stored,
                  const std::string& name) {
  ASSERT_EQ(values.size() * sizeof(float), stored.size()) << name;
  for (size_t i = 0; i < values.size(); ++i) {
    float expected;
    std::memcpy(&expected, stored.data() + i * sizeof(float), sizeof(float));
    ASSERT_NEAR(values[i], expected, 3e-7 * std::max(1.0F, std::abs(expected))) << name << " " << i;
  }
}

TEST(GgufPieces, HoldWhatTheConverterWrote) {
  const std::vector<std::string> files = converted_files("-F32.gguf");
  ASSERT_FALSE(files.empty());
  for (const std::string& name : files) {
    SCOPED_TRACE(name);
    const auto checkpoint = Checkpoint::open(kData / "converted" / name);
    const GgufFile file(kData / "converted" / name);
    std::set<std::string> written;
    for (const GgufPiece& piece : gguf_pieces(checkpoint->arch())) {
      const TensorInfo& info = checkpoint->tensors().at(piece.source);
      std::vector<float> rows(static_cast<size_t>(piece.num_rows() * piece.row_size));
      fill_rows(piece, read_f32(*checkpoint, info).data(), 0, piece.num_rows(), rows.data());
      const GgufTensor* expected = file.find(piece.name);
      ASSERT_NE(expected, nullptr) << piece.name;
      EXPECT_EQ(piece.shape, expected->shape) << piece.name;
      expect_close(rows, expected->bytes, piece.name);
      written.insert(piece.name);
    }
    for (const GgufTensor& tensor : file.tensors()) {
      const bool is_beside = tensor.name.starts_with("rope_");
      // Those that predict further tokens, or keys that nobody reads, are the base's own.
      if (is_beside || tensor.name.starts_with("blk.")) continue;
      EXPECT_TRUE(written.contains(tensor.name)) << tensor.name;
    }
  }
}

/// What a file says in other words, or that its weights are of a larger model.
bool is_said_otherwise(const std::string& key) {
  for (const char* ending : {"nextn_predict_layers", "yarn_attn_factor", "attn_factor",
                             "block_count", "full_attention_interval", "recurrent_layers"}) {
    if (key.ends_with(ending)) return true;
  }
  return false;
}

TEST(GgufDescription, SaysWhatTheConverterSays) {
  for (const std::string& name : converted_files(".gguf")) {
    SCOPED_TRACE(name);
    const fs::path path = kData / "converted" / name;
    const auto checkpoint = Checkpoint::open(path);
    const GgufFile file(path);
    const spec::GgufDescription description =
        spec::describe_in_gguf(checkpoint->arch(), path.string());
    const auto architecture = file.metadata()["general.architecture"].get<std::string>();
    EXPECT_EQ(description.metadata["general.architecture"], architecture);
    for (const auto& [key, value] : file.metadata().items()) {
      if (!key.starts_with(architecture + ".") || is_said_otherwise(key)) continue;
      ASSERT_TRUE(description.metadata.contains(key)) << key;
      const json ours = description.metadata[key];
      if (ours.is_number_float()) {
        EXPECT_NEAR(ours.get<double>(), value.get<double>(), 1e-5 * value.get<double>()) << key;
      } else {
        EXPECT_EQ(ours, value) << key;
      }
    }
    for (const auto& [tensor, values] : description.tensors) {
      ASSERT_NE(file.find(tensor), nullptr) << tensor;
      ASSERT_EQ(values.size() * sizeof(float), file.find(tensor)->bytes.size()) << tensor;
      for (size_t i = 0; i < values.size(); ++i) {
        float expected;
        std::memcpy(&expected, file.find(tensor)->bytes.data() + 4 * i, 4);
        EXPECT_NEAR(values[i], expected, 1e-5 * expected) << tensor << " " << i;
      }
    }
  }
}

TEST(GgufVocab, IsWrittenAsTheConverterWroteIt) {
  for (const std::string& name : converted_files("-F32.gguf")) {
    SCOPED_TRACE(name);
    const GgufFile file(kData / "converted" / name);
    const tokenizer::GgufVocab vocab = read_gguf_vocab(file);
    const auto tokenizer = tokenizer::Tokenizer::from_gguf(vocab, name);
    const tokenizer::GgufVocab written =
        tokenizer::gguf_vocab_of(tokenizer,
                                 {.vocab_size = static_cast<int64_t>(vocab.tokens.size()),
                                  .keeps_merges = vocab.model == "gemma4"},
                                 name);
    EXPECT_EQ(written.model, vocab.model);
    EXPECT_EQ(written.pre, vocab.pre);
    EXPECT_EQ(written.tokens, vocab.tokens);
    EXPECT_EQ(written.merges, vocab.merges);
    std::vector<int32_t> types = vocab.token_types;
    if (!vocab.unk) std::replace(types.begin(), types.end(), 2, 1);  // it names none as unknown
    EXPECT_EQ(written.token_types, types);
    EXPECT_EQ(written.bos, vocab.bos);
    EXPECT_EQ(written.eos, vocab.eos);
    EXPECT_EQ(written.add_bos, vocab.add_bos);
    EXPECT_EQ(written.add_space_prefix || vocab.model == "gpt2", vocab.add_space_prefix);
  }
}

TEST(GgufVocab, FillsUpToTheEmbedding) {
  const GgufFile file(kData / "converted/llama-F32.gguf");
  const tokenizer::GgufVocab vocab = read_gguf_vocab(file);
  const auto tokenizer = tokenizer::Tokenizer::from_gguf(vocab, "llama");
  const tokenizer::GgufVocab padded =
      tokenizer::gguf_vocab_of(tokenizer, {.vocab_size = 43}, "llama");
  ASSERT_EQ(padded.tokens.size(), 43U);
  EXPECT_EQ(padded.tokens[42], "[PAD42]");
  EXPECT_EQ(padded.token_types[42], 5);  // unused
  expect_error([&] { tokenizer::gguf_vocab_of(tokenizer, {.vocab_size = 39}, "llama"); },
               {"has the id 39, but the model's embedding has 39 rows", "at   llama"});
}

// ---- Directories of every family, to a file and back.

/// Those that GGUF cannot hold, and what the error names. All others of tests/data/families can be
/// stored.
const std::map<std::string, std::string> kRefused = {
    {"gemma2", "query_pre_attn_scalar"},
    {"gemma4_moe", "final_logit_softcapping"},
    {"gemma4_moe_released", "final_logit_softcapping"},
    {"gpt_oss", "swiglu_limit"},
    {"llama_dynamic", "position embedding"},
    {"qwen3_moe", "mlp_only_layers"},
    {"smollm3", "position embedding"},
};

void write_as_gguf(const Checkpoint& base, const spec::GgufDescription& description,
                   const fs::path& path) {
  GgufMetadata metadata;
  for (const auto& [key, value] : description.metadata.items()) metadata.set_json(key, value);
  std::vector<GgufTensorToWrite> tensors;
  for (const auto& [name, values] : description.tensors)
    tensors.push_back(tensor_of(name, {static_cast<int64_t>(values.size())}, values));
  for (const GgufPiece& piece : gguf_pieces(description.arch)) {
    std::vector<float> rows(static_cast<size_t>(piece.num_rows() * piece.row_size));
    const std::vector<float> values = read_f32(base, base.tensors().at(piece.source));
    fill_rows(piece, values.data(), 0, piece.num_rows(), rows.data());
    tensors.push_back(tensor_of(piece.name, piece.shape, rows));
  }
  write_gguf(path, metadata, tensors);
}

/// What a directory's weights are once they were in a file.
void expect_back(const Checkpoint& base, const fs::path& path) {
  const spec::GgufDescription description = spec::describe_in_gguf(base.arch(), path.string());
  const test::TemporaryDirectory directory;
  write_as_gguf(base, description, directory / "model.gguf");
  const auto read = Checkpoint::open(directory / "model.gguf");
  ASSERT_GE(base.tensors().size(), read->tensors().size());
  for (size_t i = 0; i < read->tensors().size(); ++i) {
    const std::vector<float> before = read_f32(base, base.tensors()[i]),
                             after = read_f32(*read, read->tensors()[i]);
    ASSERT_EQ(before.size(), after.size()) << base.tensors()[i].name;
    for (size_t k = 0; k < before.size(); ++k) {
      ASSERT_NEAR(before[k], after[k], 3e-7 * std::max(1.0F, std::abs(before[k])))
          << base.tensors()[i].name << " " << k;
    }
  }
}

TEST(GgufExport, EveryFamilyComesBack) {
  std::set<std::string> refused;
  for (const fs::directory_entry& entry : fs::directory_iterator(kData / "families")) {
    const std::string name = entry.path().filename().string();
    SCOPED_TRACE(name);
    const auto base = Checkpoint::open(entry.path());
    const auto reason = kRefused.find(name);
    if (reason == kRefused.end()) {
      EXPECT_NO_THROW(expect_back(*base, entry.path()));
      continue;
    }
    refused.insert(name);
    expect_error([&] { spec::describe_in_gguf(base->arch(), entry.path().string()); },
                 {"cannot express this model's", reason->second, entry.path().string()});
  }
  EXPECT_EQ(refused.size(), kRefused.size());  // none that is not there
}

// ---- Plans.

GgufPlan plan_of(const Checkpoint& base, const fs::path& path, const std::string& mix,
                 const std::string& changed = {}) {
  return plan_gguf(base, {.base_path = path,
                          .mix = mix,
                          .name = "mine",
                          .chat_template = "{{ messages }}",
                          .is_changed = [&](const std::string& name) { return name == changed; }});
}

/// The metadata of a plan as a reader has them.
json metadata_of(const GgufPlan& plan) {
  const test::TemporaryDirectory directory;
  write_gguf(directory / "plan.gguf", plan.metadata, {});
  return GgufFile(directory / "plan.gguf").metadata();
}

TEST(GgufPlan, OfADirectoryHasTokenizerAndTemplate) {
  const fs::path path = kData / "models/tied-gqa";
  const auto base = Checkpoint::open(path);
  const GgufPlan plan = plan_of(*base, path, "auto");
  const json metadata = metadata_of(plan);
  EXPECT_EQ(plan.type_name, "F32");
  EXPECT_EQ(metadata["general.architecture"], "llama");
  EXPECT_EQ(metadata["general.name"], "mine");
  EXPECT_EQ(metadata["general.file_type"], 0);
  EXPECT_EQ(metadata["llama.vocab_size"], 300);
  EXPECT_EQ(metadata["tokenizer.ggml.model"], "gpt2");
  EXPECT_EQ(metadata["tokenizer.ggml.pre"], "smollm");
  EXPECT_EQ(metadata["tokenizer.chat_template"], "{{ messages }}");
  EXPECT_TRUE(plan.beside.empty());
  for (const auto& stored : plan.stored) EXPECT_TRUE(stored.empty());
  for (const GgufPiece& piece : plan.pieces) EXPECT_NE(piece.name, "output.weight");  // tied
  EXPECT_EQ(plan_of(*base, path, "q4_k_m").type_name, "Q4_K_M");
}

TEST(GgufPlan, AHeadPartedFromTheEmbeddingIsATensorOfItsOwn) {
  const fs::path path = kData / "models/tied-gqa";
  const auto base = Checkpoint::open(path);
  const auto of = [&](const Checkpoint& checkpoint, const fs::path& where, const char* mix) {
    return plan_gguf(checkpoint, {.base_path = where,
                                  .mix = mix,
                                  .is_changed = [](const std::string&) { return false; },
                                  .unties_head = true});
  };
  const GgufPlan plan = of(*base, path, "q8_0");
  EXPECT_EQ(plan.pieces.back().name, "output.weight");
  EXPECT_EQ(plan.pieces.back().source, base->tensors().size());
  EXPECT_EQ(plan.pieces.back().shape, plan.pieces.front().shape);
  EXPECT_EQ(plan.types.size(), plan.pieces.size());
}

TEST(GgufPlan, OfAFileKeepsWhatIsThere) {
  const fs::path path = kData / "converted/qwen3_5-Q8_0.gguf";
  const auto base = Checkpoint::open(path);
  const GgufFile file(path);
  const std::string changed = "model.layers.0.mlp.up_proj.weight";
  const GgufPlan plan = plan_of(*base, path, "auto", changed);
  const json metadata = metadata_of(plan);
  for (const auto& [key, value] : file.metadata().items()) EXPECT_EQ(metadata[key], value) << key;
  EXPECT_EQ(metadata["tokenizer.chat_template"], "{{ messages }}");
  std::set<std::string> names;
  for (const GgufTensorToWrite& tensor : plan.beside) names.insert(tensor.name);
  EXPECT_FALSE(names.empty());  // the layer that predicts further tokens
  for (size_t i = 0; i < plan.pieces.size(); ++i) {
    const GgufTensor* tensor = file.find(plan.pieces[i].name);
    ASSERT_NE(tensor, nullptr) << plan.pieces[i].name;
    EXPECT_EQ(plan.types[i].id, tensor->type.id) << tensor->name;
    EXPECT_EQ(plan.stored[i].size(), tensor->bytes.size()) << tensor->name;
    names.insert(tensor->name);
  }
  EXPECT_EQ(names.size(), file.tensors().size());
  EXPECT_EQ(metadata_of(plan_of(*base, path, "q6_k"))["general.file_type"], 18);
}

TEST(GgufPlan, WritesChangedTensorsOfOtherTypesAsQ8_0) {
  const fs::path path = kData / "converted/gpt_oss_mxfp4-MXFP4.gguf";
  const auto base = Checkpoint::open(path);
  const GgufPlan plan = plan_of(*base, path, "auto", "model.layers.0.mlp.experts.gate_up_proj");
  size_t num_mxfp4 = 0;
  for (size_t i = 0; i < plan.pieces.size(); ++i) {
    const std::string& name = plan.pieces[i].name;
    const bool is_changed =
        name == "blk.0.ffn_gate_exps.weight" || name == "blk.0.ffn_up_exps.weight";
    if (is_changed) {
      EXPECT_EQ(plan.types[i].name, "Q8_0") << name;
    }
    num_mxfp4 += plan.types[i].name == "MXFP4" ? 1 : 0;
  }
  EXPECT_EQ(num_mxfp4, 1 + 3 * static_cast<size_t>(base->arch().num_layers - 1));
}

// ---- Mixes.

std::string type_in(const std::string& mix, const spec::ArchSpec& arch, const std::string& name) {
  const std::vector<GgufPiece> pieces = gguf_pieces(arch);
  const std::vector<GgmlTypeInfo> types = choose_types(*find_mix(mix), arch, pieces);
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].name == name) return std::string(types[i].name);
  }
  return "none";
}

/// SmolLM2 360M's shape, with other rows.
spec::ArchSpec small_llama(int64_t hidden, int64_t inner, bool tied) {
  spec::ArchSpec arch;
  arch.family = "llama";
  arch.vocab_size = 64;
  arch.hidden_size = hidden;
  arch.intermediate_size = inner;
  arch.num_layers = 32;
  arch.num_heads = 4;
  arch.num_kv_heads = 2;
  arch.head_dim = hidden / 4;
  arch.layers.resize(32);
  arch.tie_word_embeddings = tied;
  return arch;
}

TEST(GgufMix, ChoosesAsLlamaQuantize) {
  const spec::ArchSpec arch = small_llama(512, 1024, false);
  EXPECT_EQ(type_in("q4_k_m", arch, "token_embd.weight"), "Q4_K");
  EXPECT_EQ(type_in("q4_k_m", arch, "output.weight"), "Q6_K");
  EXPECT_EQ(type_in("q4_k_m", arch, "blk.0.attn_v.weight"), "Q6_K");
  EXPECT_EQ(type_in("q4_k_m", arch, "blk.4.attn_v.weight"), "Q4_K");
  EXPECT_EQ(type_in("q4_k_m", arch, "blk.6.ffn_down.weight"), "Q6_K");
  EXPECT_EQ(type_in("q4_k_m", arch, "blk.7.ffn_down.weight"), "Q4_K");
  EXPECT_EQ(type_in("q4_k_m", arch, "blk.31.attn_q.weight"), "Q4_K");
  EXPECT_EQ(type_in("q4_k_m", arch, "blk.0.attn_norm.weight"), "F32");
  EXPECT_EQ(type_in("q4_0", arch, "output.weight"), "Q6_K");
  EXPECT_EQ(type_in("q4_0", arch, "blk.0.attn_v.weight"), "Q4_0");
  EXPECT_EQ(type_in("q8_0", arch, "output.weight"), "Q8_0");
  EXPECT_EQ(type_in("q6_k", arch, "blk.3.ffn_up.weight"), "Q6_K");
  EXPECT_EQ(type_in("q5_k_m", arch, "blk.4.ffn_up.weight"), "Q5_K");
  EXPECT_EQ(type_in("bf16", arch, "output.weight"), "BF16");
  EXPECT_EQ(type_in("q4_k_m", small_llama(512, 1024, true), "token_embd.weight"), "Q6_K");
}

TEST(GgufMix, TakesTypesWhoseBlocksFit) {
  const spec::ArchSpec arch = small_llama(576, 1536, true);
  EXPECT_EQ(type_in("q4_k_m", arch, "token_embd.weight"), "Q8_0");
  EXPECT_EQ(type_in("q4_k_m", arch, "blk.4.attn_q.weight"), "Q5_0");
  EXPECT_EQ(type_in("q4_k_m", arch, "blk.0.attn_v.weight"), "Q8_0");
  EXPECT_EQ(type_in("q4_k_m", arch, "blk.4.ffn_down.weight"), "Q4_K");
  EXPECT_EQ(type_in("q5_k_m", arch, "blk.4.attn_q.weight"), "Q5_1");
  EXPECT_EQ(type_in("q8_0", small_llama(40, 48, true), "blk.0.attn_q.weight"), "F16");
}

UnquantisedMatrices unquantised_in(const std::string& mix, const spec::ArchSpec& arch) {
  const std::vector<GgufPiece> pieces = gguf_pieces(arch);
  return unquantised_matrices(mix, pieces, choose_types(*find_mix(mix), arch, pieces));
}

TEST(GgufMix, CountsMatricesWithoutWholeBlocks) {
  const UnquantisedMatrices all = unquantised_in("q4_k_m", small_llama(40, 48, true));
  EXPECT_EQ(all.count, 1 + 32 * 7);
  EXPECT_EQ(all.num_matrices, all.count);
  EXPECT_EQ(all.first, "token_embd.weight");
  EXPECT_EQ(all.row_size, 40);
  const UnquantisedMatrices downs = unquantised_in("q4_0", small_llama(64, 48, true));
  EXPECT_EQ(downs.count, 32);
  EXPECT_EQ(downs.num_matrices, 1 + 32 * 7);
  EXPECT_EQ(downs.row_size, 48);
  EXPECT_EQ(unquantised_in("q4_k_m", small_llama(576, 1536, true)).count, 0);
  EXPECT_EQ(unquantised_in("f16", small_llama(40, 48, true)).count, 0);
}

}  // namespace
}  // namespace sftrun::weights
