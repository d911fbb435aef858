#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "file_builders.h"
#include "sftrun/core/xxh3.h"
#include "sftrun/spec/vision_tensors.h"
#include "sftrun/weights/checkpoint.h"
#include "sftrun/weights/fingerprint.h"
#include "sftrun/weights/safetensors.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

/// Checkpoints of vision-language models in every layout that transformers reads (tests/data/spec/vision/names).
namespace sftrun::weights {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const fs::path kNames = fs::path(SFTRUN_TEST_DATA) / "spec" / "vision" / "names";

class WholeCheckpoint : public ::testing::TestWithParam<std::string> {
 protected:
  WholeCheckpoint() {
    std::ifstream file(kNames / (GetParam() + ".json"));
    fixture_ = json::parse(file);
    config_ = fixture_["config"];
    arch_ = spec::ArchSpec::from_hf_config(config_, "config.json");
    for (const spec::TensorSpec& spec : spec::tensor_specs(arch_)) {
      shapes_[spec.name] = spec.shape_in_files();
      for (const spec::TensorPart& part : spec.parts) shapes_[part.name] = part.shape;
    }
    vision_ = spec::vision_tensor_specs(*arch_.vision, arch_.hidden_size);
    for (const spec::TensorSpec& spec : vision_) shapes_[spec.name] = spec.shape_in_files();
    for (const json& line : fixture_["layouts"]) layouts_[line[0]].push_back(line[1]);
  }

  /// Value i of a tensor is i.
  void add(const std::string& stored, const std::vector<int64_t>& shape) {
    size_t count = 1;
    for (const int64_t size : shape) count *= static_cast<size_t>(size);
    tensors_.push_back({stored, DType::kF32, shape, [count](void* out) {
                          for (size_t i = 0; i < count; ++i)
                            static_cast<float*>(out)[i] = static_cast<float>(i);
                        }});
  }

  void add_layout(const std::string& layout) {
    for (const std::string& stored : layouts_.at(layout))
      add(stored, shapes_.at(spec::name_in_whole_model(arch_, stored)));
  }

  std::unique_ptr<Checkpoint> open() {
    test::write_file(directory_ / "config.json", config_.dump());
    write_safetensors(directory_ / "model.safetensors", tensors_);
    return Checkpoint::open(directory_.path());
  }

  json fixture_, config_;
  spec::ArchSpec arch_;
  std::map<std::string, std::vector<int64_t>> shapes_;
  std::vector<spec::TensorSpec> vision_;
  std::map<std::string, std::vector<std::string>> layouts_;
  std::vector<TensorToWrite> tensors_;
  test::TemporaryDirectory directory_;
};

TEST_P(WholeCheckpoint, IsReadInEachLayout) {
  for (const auto& [layout, names] : layouts_) {
    tensors_.clear();
    add_layout(layout);
    const auto checkpoint = open();
    const std::vector<spec::TensorSpec> text = spec::tensor_specs(checkpoint->arch());
    ASSERT_EQ(checkpoint->tensors().size(), text.size() + vision_.size()) << layout;
    for (size_t i = 0; i < text.size(); ++i)
      EXPECT_EQ(checkpoint->tensors()[i].name, text[i].name) << layout;
    for (const spec::TensorSpec& spec : vision_) {
      ASSERT_TRUE(checkpoint->has(spec.name)) << layout << ": " << spec.name;
      const auto is_it = [&](const TensorInfo& info) { return info.name == spec.name; };
      const auto info =
          std::find_if(checkpoint->tensors().begin(), checkpoint->tensors().end(), is_it);
      EXPECT_EQ(info->shape, spec.shape) << spec.name;
      EXPECT_EQ(info->shape_in_files(), spec.shape_in_files()) << spec.name;
      std::vector<float> values(static_cast<size_t>(spec.numel()));
      checkpoint->read(spec.name, DType::kF32, values.data());
      EXPECT_EQ(values.back(), static_cast<float>(values.size() - 1)) << spec.name;
    }
  }
}

TEST_P(WholeCheckpoint, KeepsWhatNoPartReads) {
  add_layout("modules");
  add("mtp.fc.weight", {2, 2});
  add("model.vision_tower.head.probe", {1, 1, 2});
  const auto checkpoint = open();
  EXPECT_EQ(checkpoint->tensors().size(), spec::tensor_specs(arch_).size() + vision_.size() + 2);
  EXPECT_TRUE(checkpoint->has("mtp.fc.weight"));
}

TEST_P(WholeCheckpoint, ATowerOfAnotherShapeIsNoErrorForText) {
  add_layout("modules");
  TensorToWrite& kernel =
      *std::find_if(tensors_.begin(), tensors_.end(),
                    [&](const TensorToWrite& tensor) { return tensor.name == vision_[0].name; });
  kernel.shape = {1};
  kernel.produce = [](void* out) { *static_cast<float*>(out) = 7; };
  float value = 0;
  const auto checkpoint = open();
  checkpoint->read(vision_[0].name, DType::kF32, &value);
  EXPECT_EQ(value, 7);
  test::expect_error<DataError>([&] { require_image_side(*checkpoint); },
                                {vision_[0].name, "has the shape [1]; the configuration implies"});
}

TEST_P(WholeCheckpoint, ATowerOfItsConfigurationIsRead) {
  add_layout("modules");
  EXPECT_NO_THROW(require_image_side(*open()));
}

/// Runs of earlier versions are continued.
TEST_P(WholeCheckpoint, FingerprintsHaveTheNamesOfFilesForOtherParts) {
  add_layout(layouts_.contains("4.51") ? "4.51" : "saved");
  const auto checkpoint = open();
  json layout = json::array();
  const size_t num_text = spec::tensor_specs(arch_).size();
  for (size_t i = 0; i < num_text; ++i) {
    const TensorInfo& info = checkpoint->tensors()[i];
    layout.push_back({info.name, info.shape, info.format, info.stored_bytes});
  }
  std::map<std::string, json> others;
  for (const TensorToWrite& tensor : tensors_) {
    const std::string name = spec::name_in_whole_model(arch_, tensor.name);
    if (name.starts_with(arch_.prefix) || name.starts_with("lm_head.")) continue;
    uint64_t bytes = sizeof(float);
    for (const int64_t size : tensor.shape) bytes *= static_cast<uint64_t>(size);
    others[tensor.name] = {tensor.name, tensor.shape, "F32", bytes};
  }
  for (const auto& [name, line] : others) layout.push_back(line);
  EXPECT_EQ(layout_fingerprint(*checkpoint), xxh3_128(layout.dump()));
}

TEST_P(WholeCheckpoint, NeedsItsTextModel) {
  add_layout("modules");
  const std::string norm = arch_.prefix + "norm.weight";
  std::erase_if(tensors_, [&](const TensorToWrite& tensor) { return tensor.name == norm; });
  test::expect_error([&] { open(); }, {"missing tensor `" + norm + "`"});
}

INSTANTIATE_TEST_SUITE_P(Models, WholeCheckpoint,
                         ::testing::Values("gemma3", "gemma4", "idefics3", "internvl", "llava",
                                           "llava_next", "mistral3", "qwen2_5_vl", "qwen3_5",
                                           "qwen3_5_moe", "qwen3_vl", "qwen3_vl_moe", "smolvlm"),
                         [](const auto& info) { return info.param; });

/// transformers 5 ties Mistral 3 by default, also where the file has a head of its own.
class UntiedByFiles : public WholeCheckpoint {};

TEST_P(UntiedByFiles, ADefaultGivesWayToTheHeadInTheFiles) {
  config_.erase("tie_word_embeddings");
  config_["text_config"].erase("tie_word_embeddings");
  ASSERT_TRUE(spec::ArchSpec::from_hf_config(config_, "config.json").tie_word_embeddings);
  add_layout("modules");
  EXPECT_TRUE(open()->arch().tie_word_embeddings);  // both have the same values
  std::erase_if(tensors_,
                [](const TensorToWrite& tensor) { return tensor.name == "lm_head.weight"; });
  const int64_t count = arch_.vocab_size * arch_.hidden_size;
  tensors_.push_back(
      {"lm_head.weight", DType::kF32, {arch_.vocab_size, arch_.hidden_size}, [count](void* out) {
         std::memset(out, 0, static_cast<size_t>(count) * sizeof(float));
       }});
  EXPECT_FALSE(open()->arch().tie_word_embeddings);
  EXPECT_TRUE(open()->has("lm_head.weight"));
  config_["tie_word_embeddings"] = true;
  test::expect_error([&] { open(); },
                     {"`lm_head.weight` differs", "although config.json ties them"});
}

INSTANTIATE_TEST_SUITE_P(Models, UntiedByFiles, ::testing::Values("internvl", "mistral3"),
                         [](const auto& info) { return info.param; });

/// Gemma 3's projection is stored [in, out].
class TransposedProjection : public WholeCheckpoint {};

TEST_P(TransposedProjection, IsReadAsAMatrix) {
  add_layout("4.51 of the hub");
  std::vector<float> values(16 * 16);
  open()->read("model.multi_modal_projector.mm_input_projection_weight", DType::kF32,
               values.data());
  EXPECT_EQ(values[1], 16);
  EXPECT_EQ(values[16], 1);
}

INSTANTIATE_TEST_SUITE_P(Models, TransposedProjection, ::testing::Values("gemma3"),
                         [](const auto& info) { return info.param; });

/// Qwen3-VL's experts are stored [experts, in, out]; files of some tools have them as in memory.
class TransposedExperts : public WholeCheckpoint {
 protected:
  std::vector<float> down_proj() {
    const std::string name = "model.language_model.layers.1.mlp.experts.down_proj";
    std::vector<float> values(2 * 16 * 8);
    open()->read(name, DType::kF32, values.data());
    return values;
  }
};

TEST_P(TransposedExperts, AreReadInBothOrders) {
  add_layout("saved");
  EXPECT_EQ(down_proj()[1], 16);  // [2, 8, 16] in files, [2, 16, 8] in memory
  tensors_.clear();
  for (const spec::TensorSpec& spec : spec::tensor_specs(arch_))
    if (spec.role == spec::TensorRole::kExperts) shapes_[spec.name] = spec.shape;
  add_layout("saved");
  EXPECT_EQ(down_proj()[1], 1);
}

INSTANTIATE_TEST_SUITE_P(Models, TransposedExperts, ::testing::Values("qwen3_vl_moe"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace sftrun::weights
