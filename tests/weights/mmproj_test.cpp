#include "sftrun/weights/mmproj.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>

#include "read_f32.h"
#include "sftrun/core/file.h"
#include "sftrun/spec/gguf_description.h"
#include "sftrun/weights/gguf_quantize.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"
#include "support/test_data.h"

/// Compared with what llama.cpp's own converters made of the same models (scripts/fixtures/make_mmproj.py).
namespace sftrun::weights {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::kData;

/// How our file differs from the converter's, with the reason.
struct MmprojDifferences {
  std::set<std::string> only_ours;     ///< keys and tensors
  std::set<std::string> only_theirs;   ///< keys
  std::set<std::string> other_values;  ///< keys
  std::set<std::string> other_types;   ///< tensors
};

MmprojDifferences differences_of(const std::string& name) {
  MmprojDifferences found{.only_theirs = {"general.size_label"}};
  // The tower's activation. Without the key llama.cpp computes the quick GELU, which is not the model's.
  if (name.starts_with("gemma4")) found.only_ours = {"clip.use_gelu"};
  // llama.cpp does not load a file without it; this version of the converter loses it.
  if (name == "mistral3") found.only_ours = {"v.token_embd.img_break"};
  if (!name.starts_with("llava")) return found;
  // The older script: nobody reads these keys, false is what the reader takes without the key, and its types are not today's.
  found.only_ours = {"general.type", "general.quantization_version"};
  if (name == "llava_siglip") found.only_ours.insert("clip.use_gelu");
  found.only_theirs = {"clip.has_text_encoder", "general.description", "clip.use_gelu"};
  found.other_values = {"general.name", "clip.vision.projection_dim"};
  found.other_types = {"v.position_embd.weight"};
  return found;
}

MmprojOptions options_for(const std::string& name, const std::string& dtype) {
  MmprojOptions options{.dtype = dtype, .name = "tiny random"};
  options.images.mean = {0.1, 0.2, 0.3};
  options.images.std = {0.4, 0.5, 0.6};
  if (name == "smolvlm") options.images.longest_edge = 64;
  if (name == "mistral3") options.image_break = 44;
  return options;
}

/// A model of tests/data/vision, with keys of `vision_config` changed.
class VisionFolder {
 public:
  explicit VisionFolder(const std::string& name, const json& changes = json::object()) {
    const fs::path from = kData / "vision" / name;
    json config = json::parse(read_text_file(from / "config.json"));
    config["vision_config"].update(changes);
    std::ofstream(folder_ / "config.json") << config;
    fs::copy_file(from / "model.safetensors", folder_ / "model.safetensors");
  }
  std::unique_ptr<Checkpoint> open() const { return Checkpoint::open(folder_.path()); }

 private:
  test::TemporaryDirectory folder_;
};

json changes_for(const std::string& name) {
  if (name == "qwen2_5_vl") return {{"window_size", 112}};
  return json::object();
}

std::vector<float> values_of(const Checkpoint& base, const GgufPiece& piece) {
  const std::vector<float> source = test::read_f32(base, base.tensors().at(piece.source));
  std::vector<float> values(static_cast<size_t>(piece.num_rows() * piece.row_size));
  fill_rows(piece, source.data(), 0, piece.num_rows(), values.data());
  return values;
}

GgufTensorToWrite to_write(const Checkpoint& base, const GgufPiece& piece,
                           const GgmlTypeInfo& type) {
  return {piece.name, piece.shape, type, [&base, piece, type](std::byte* destination) {
            const std::vector<float> values = values_of(base, piece);
            quantize(type, values.data(), static_cast<int64_t>(values.size()), destination);
          }};
}

std::vector<float> floats_of(const GgufTensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.numel()));
  dequantize(tensor.type, tensor.bytes.data(), tensor.numel(), values.data());
  return values;
}

void expect_same_tensor(const GgufTensor& ours, const GgufTensor& theirs, bool other_type) {
  EXPECT_EQ(ours.shape, theirs.shape) << ours.name;
  if (!other_type) {
    EXPECT_EQ(ours.type.name, theirs.type.name) << ours.name;
    ASSERT_EQ(ours.bytes.size(), theirs.bytes.size()) << ours.name;
    EXPECT_TRUE(std::equal(ours.bytes.begin(), ours.bytes.end(), theirs.bytes.begin()))
        << ours.name;
    return;
  }
  EXPECT_NE(ours.type.name, theirs.type.name) << ours.name;
  const std::vector<float> a = floats_of(ours), b = floats_of(theirs);
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-3 * std::abs(a[i]) + 1e-6);
}

class MmprojFile : public ::testing::TestWithParam<std::string> {};

TEST_P(MmprojFile, EqualsTheConvertersFile) {
  const VisionFolder folder(GetParam(), changes_for(GetParam()));
  const auto base = folder.open();
  const MmprojPlan plan = plan_mmproj(*base, options_for(GetParam(), "f16"));
  ASSERT_EQ(plan.refused, "");
  std::vector<GgufTensorToWrite> tensors;
  for (size_t i = 0; i < plan.pieces.size(); ++i)
    tensors.push_back(to_write(*base, plan.pieces[i], plan.types[i]));
  const test::TemporaryDirectory out;
  write_gguf(out / "mmproj.gguf", plan.metadata, tensors);
  const GgufFile ours(out / "mmproj.gguf"), theirs(kData / "mmproj" / (GetParam() + ".gguf"));
  const MmprojDifferences differs = differences_of(GetParam());

  std::set<std::string> only_ours, only_theirs, other_values;
  for (const auto& [key, value] : theirs.metadata().items()) {
    const auto own = ours.metadata().find(key);
    if (own == ours.metadata().end()) only_theirs.insert(key);
    if (own != ours.metadata().end() && *own != value) other_values.insert(key);
  }
  for (const auto& [key, value] : ours.metadata().items())
    if (!theirs.metadata().contains(key)) only_ours.insert(key);
  for (const GgufTensor& tensor : ours.tensors()) {
    const GgufTensor* other = theirs.find(tensor.name);
    if (other == nullptr) {
      only_ours.insert(tensor.name);
      continue;
    }
    expect_same_tensor(tensor, *other, differs.other_types.contains(tensor.name));
  }
  for (const GgufTensor& tensor : theirs.tensors())
    EXPECT_NE(ours.find(tensor.name), nullptr) << tensor.name;
  EXPECT_GT(theirs.tensors().size(), 20U);
  std::set<std::string> expected_ours = differs.only_ours, expected_theirs = differs.only_theirs;
  if (GetParam() == "llava_siglip") {  // both have it, with other values
    expected_ours.erase("clip.use_gelu");
    expected_theirs.erase("clip.use_gelu");
    other_values.erase("clip.use_gelu");
    EXPECT_TRUE(ours.metadata()["clip.use_gelu"].get<bool>());
  }
  EXPECT_EQ(only_ours, expected_ours);
  EXPECT_EQ(only_theirs, expected_theirs);
  EXPECT_EQ(other_values, differs.other_values);
}

class MmprojTypes : public ::testing::TestWithParam<std::string> {};

TEST_P(MmprojTypes, AreTheConverters) {
  const json types = json::parse(read_text_file(kData / "mmproj" / "types.json"));
  ASSERT_EQ(types.at(GetParam()).size(), 2U);
  const VisionFolder folder(GetParam(), changes_for(GetParam()));
  const auto base = folder.open();
  for (const auto& [dtype, expected] : types[GetParam()].items()) {
    const MmprojPlan plan = plan_mmproj(*base, options_for(GetParam(), dtype));
    json ours;
    for (size_t i = 0; i < plan.pieces.size(); ++i) ours[plan.pieces[i].name] = plan.types[i].name;
    for (const std::string& name : differences_of(GetParam()).only_ours) ours.erase(name);
    EXPECT_EQ(ours, expected) << dtype;
  }
}

const auto kOfConverter = ::testing::Values("qwen2_5_vl", "qwen3_vl", "qwen3_5", "gemma3", "gemma4",
                                            "gemma4_vision", "smolvlm", "internvl", "mistral3");
const auto name_of_case = [](const auto& info) { return info.param; };
INSTANTIATE_TEST_SUITE_P(Converter, MmprojFile, kOfConverter, name_of_case);
INSTANTIATE_TEST_SUITE_P(OlderScript, MmprojFile, ::testing::Values("llava", "llava_siglip"),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(Converter, MmprojTypes, kOfConverter, name_of_case);

/// Images need positions of three axes, and DeepStack's features more channels of the input.
TEST(Mmproj, HasATextModelOfLlamaCppsArchitectureForImages) {
  const auto describe = [](const std::string& name) {
    return spec::describe_in_gguf(VisionFolder(name).open()->arch(), name).metadata;
  };
  const json qwen2_5 = describe("qwen2_5_vl"), qwen3 = describe("qwen3_vl"),
             qwen3_5 = describe("qwen3_5");
  EXPECT_EQ(qwen2_5["general.architecture"], "qwen2vl");
  EXPECT_EQ(qwen2_5["qwen2vl.rope.dimension_sections"], json({2, 1, 1, 0}));
  EXPECT_FALSE(qwen2_5.contains("qwen2vl.n_deepstack_layers"));
  EXPECT_EQ(qwen3["general.architecture"], "qwen3vl");
  EXPECT_EQ(qwen3["qwen3vl.rope.dimension_sections"], json({2, 1, 1, 0}));
  EXPECT_EQ(qwen3["qwen3vl.n_deepstack_layers"], 2);
  EXPECT_EQ(qwen3_5["qwen35.rope.dimension_sections"], json({2, 1, 1, 0}));

  const spec::ArchSpec read = spec::ArchSpec::from_gguf(qwen3, "a.gguf");
  EXPECT_EQ(read.family, "qwen3");
  EXPECT_EQ(read.ropes[0].sections, (std::vector<int64_t>{2, 1, 1}));
  EXPECT_TRUE(read.ropes[0].sections_alternate);
  EXPECT_EQ(spec::gguf_architecture(read), "qwen3vl");
  json broken = qwen3;
  broken["qwen3vl.rope.dimension_sections"] = {2, 1};
  test::expect_error([&] { spec::ArchSpec::from_gguf(broken, "a.gguf"); },
                     {"rope.dimension_sections", "time, height and width"});
}

TEST(Mmproj, HasTheRowOfTheEmbeddingThatEndsRowsOfImages) {
  const VisionFolder folder("mistral3");
  const auto base = folder.open();
  const MmprojPlan plan = plan_mmproj(*base, options_for("mistral3", "f16"));
  const GgufPiece& piece = plan.pieces.back();
  ASSERT_EQ(piece.name, "v.token_embd.img_break");
  const TensorInfo& embedding = base->tensors().at(piece.source);
  EXPECT_EQ(embedding.name, "model.language_model.embed_tokens.weight");
  const std::vector<float> all = test::read_f32(*base, embedding);
  const auto row = all.begin() + 44 * embedding.shape[1];
  EXPECT_EQ(values_of(*base, piece), std::vector<float>(row, row + embedding.shape[1]));
  EXPECT_EQ(plan.types.back().name, "F32");
}

TEST(Mmproj, SaysWhatLlamaCppDoesNotRead) {
  const auto why = [](const std::string& name, const json& changes,
                      std::optional<int64_t> image_break = std::nullopt) {
    const VisionFolder folder(name, changes);
    MmprojOptions options = options_for(name, "f16");
    options.image_break = image_break;
    return plan_mmproj(*folder.open(), options).refused;
  };
  const std::string begin = "llama.cpp does not read ";
  EXPECT_EQ(why("qwen2_5_vl", json::object()), begin + "windows of 8 pixels (its own have 112)");
  EXPECT_EQ(why("qwen2_5_vl", {{"window_size", 112}, {"fullatt_block_indexes", {0, 2}}}),
            begin + "layers with full attention that are not every n-th one");
  EXPECT_EQ(why("mistral3", json::object()), begin + "images without the token [IMG_BREAK]");
  EXPECT_EQ(why("mistral3", {{"rope_parameters", {{"rope_theta", 500.0}}}}, 44),
            begin + "rotary positions of a tower with the base 500 (its own is 10000)");
  // A file whose tower is not the configuration's.
  EXPECT_EQ(why("gemma3", {{"intermediate_size", 21}}),
            "the model's files have no `model.vision_tower.encoder.layers.0.mlp.fc1.weight` of the "
            "model's shape");
}

TEST(Mmproj, IsStoredInFloats) {
  const VisionFolder folder("gemma3");
  const auto base = folder.open();
  EXPECT_EQ(mmproj_dtype(*base, "auto"), "f32");
  EXPECT_EQ(mmproj_dtype(*base, "bf16"), "bf16");
  EXPECT_EQ(mmproj_dtype(*base, "q4_k_m"), "f16");
}

}  // namespace
}  // namespace sftrun::weights
