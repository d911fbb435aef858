#include "sftrun/spec/mmproj.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "sftrun/spec/gguf_description.h"
#include "sftrun/spec/vision_tensors.h"

/// llama.cpp's files of released models' image sides, by their configurations (scripts/fixtures/make_vision_shapes.py).
namespace sftrun::spec {
namespace {

using nlohmann::json;

constexpr int64_t kBreak = 7;

ArchSpec released(const std::string& name) {
  std::ifstream file(std::filesystem::path(SFTRUN_TEST_DATA) / "spec" / "vision" / "released" /
                     (name + ".json"));
  return ArchSpec::from_hf_config(json::parse(file)["config"], name);
}

int64_t product(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

struct Released {
  const char* name;
  const char* type;          ///< clip.projector_type
  const char* architecture;  ///< of the text model
};

class ReleasedMmproj : public ::testing::TestWithParam<Released> {};

TEST_P(ReleasedMmproj, HoldsEveryValueThatIsReadOnce) {
  const ArchSpec arch = released(GetParam().name);
  const Mmproj file = describe_mmproj(arch, {}, kBreak);
  ASSERT_EQ(file.refused, "");
  const char* key =
      arch.whole_model == "gemma4" ? "clip.vision.projector_type" : "clip.projector_type";
  EXPECT_EQ(file.metadata[key], GetParam().type);
  EXPECT_EQ(gguf_architecture(arch), GetParam().architecture);
  int64_t wanted = has_image_break(arch) ? arch.hidden_size : 0, found = 0;
  std::set<std::string> sources, names, read;
  for (const TensorSpec& spec : vision_tensor_specs(*arch.vision, arch.hidden_size)) {
    if (!is_read(*arch.vision, spec)) continue;
    wanted += product(spec.shape);
    read.insert(spec.name);
  }
  for (const MmprojTensor& tensor : file.tensors) {
    found += product(tensor.shape);
    EXPECT_TRUE(names.insert(tensor.name).second) << tensor.name;
    if (tensor.form != MmprojForm::kRow) sources.insert(tensor.source);
  }
  EXPECT_EQ(found, wanted);
  EXPECT_EQ(sources, read);
}

INSTANTIATE_TEST_SUITE_P(Models, ReleasedMmproj,
                         ::testing::Values(Released{"qwen2.5-vl-7b", "qwen2.5vl_merger", "qwen2vl"},
                                           Released{"qwen3-vl-8b", "qwen3vl_merger", "qwen3vl"},
                                           Released{"qwen3-vl-30b-a3b", "qwen3vl_merger",
                                                    "qwen3vlmoe"},
                                           Released{"qwen3.5-27b", "qwen3vl_merger", "qwen35"},
                                           Released{"gemma-3-4b", "gemma3", "gemma3"},
                                           Released{"gemma-4-e2b", "gemma4v", "gemma4"},
                                           Released{"gemma-4-31b", "gemma4v", "gemma4"},
                                           Released{"smolvlm2-2.2b", "idefics3", "llama"},
                                           Released{"idefics3-8b", "idefics3", "llama"},
                                           Released{"internvl3.5-8b", "internvl", "qwen3"},
                                           Released{"internvl-6b-tower", "internvl", "qwen2"},
                                           Released{"llava-1.5-7b", "mlp", "llama"},
                                           Released{"pixtral-12b", "pixtral", "llama"},
                                           Released{"mistral-small-3.1-24b", "pixtral", "llama"}),
                         [](const auto& info) {
                           std::string name = info.param.name;
                           for (char& c : name)
                             if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
                           return name;
                         });

TEST(Mmproj, SaysWhichTowersLayersSeeAWholeImage) {
  const Mmproj file = describe_mmproj(released("qwen2.5-vl-7b"), {}, std::nullopt);
  EXPECT_EQ(file.metadata["clip.vision.n_wa_pattern"], 8);
  EXPECT_EQ(file.metadata["clip.vision.image_size"], 560);
  EXPECT_EQ(file.metadata["clip.use_silu"], true);
}

TEST(Mmproj, SaysWhoseFeaturesAreUsed) {
  const Mmproj file = describe_mmproj(released("llava-1.5-7b"), {}, std::nullopt);
  EXPECT_EQ(file.metadata["clip.vision.block_count"], 23);
  EXPECT_EQ(file.metadata["clip.vision.feature_layer"], json({23}));
  EXPECT_FALSE(file.metadata.contains("clip.use_gelu"));  // quick GELU
}

TEST(Mmproj, WritesTilesThatAreNotTheUsualOnes) {
  const ArchSpec arch = released("internvl3.5-8b");
  const Mmproj usual = describe_mmproj(arch, {}, std::nullopt);
  EXPECT_FALSE(usual.metadata.contains("clip.vision.preproc_max_tiles"));
  const Mmproj fewer = describe_mmproj(arch, {.max_tiles = 6}, std::nullopt);
  EXPECT_EQ(fewer.metadata["clip.vision.preproc_max_tiles"], 6);
}

/// Whose graph adds them in any case.
TEST(Mmproj, RefusesProjectorsWithoutBiases) {
  EXPECT_EQ(describe_mmproj(released("llava-siglip"), {}, std::nullopt).refused,
            "projectors without biases");
}

TEST(Mmproj, RefusesLlavaNext) {
  const Mmproj file = describe_mmproj(released("llava-v1.6-mistral-7b"), {}, std::nullopt);
  EXPECT_EQ(file.refused, "the image side of llava_next");
  EXPECT_TRUE(file.tensors.empty());
}

}  // namespace
}  // namespace sftrun::spec
