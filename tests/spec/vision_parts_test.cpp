#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "sftrun/spec/trained_names.h"
#include "sftrun/spec/vision_tensors.h"
#include "support/expect_error.h"

/// What trains of a model with images: adapters by the names of modules, and whole parts as PEFT's `modules_to_save`.
namespace sftrun::spec {
namespace {

namespace fs = std::filesystem;

const fs::path kModels = fs::path(SFTRUN_TEST_DATA) / "vision";

ArchSpec arch_of(const std::string& kind) {
  const fs::path file = kModels / kind / "config.json";
  return ArchSpec::from_hf_config(nlohmann::json::parse(std::ifstream(file)), file.string());
}

std::vector<std::string> kinds() {
  std::vector<std::string> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(kModels))
    found.push_back(entry.path().filename().string());
  std::sort(found.begin(), found.end());
  return found;
}

class PartsOfModels : public ::testing::TestWithParam<std::string> {
 protected:
  const ArchSpec arch_ = arch_of(GetParam());
  const std::vector<TensorSpec> tensors_ = vision_tensor_specs(*arch_.vision, arch_.hidden_size);
};
INSTANTIATE_TEST_SUITE_P(Kinds, PartsOfModels, ::testing::ValuesIn(kinds()));

/// PEFT saves and loads every tensor of a module in modules_to_save: all that train, and no others.
TEST_P(PartsOfModels, ModulesHoldThePartAndNothingElse) {
  for (const ModelPart part : {ModelPart::kProjector, ModelPart::kVision}) {
    const std::vector<std::string> modules = modules_of(arch_, part);
    EXPECT_FALSE(modules.empty());
    for (const TensorSpec& tensor : tensors_) {
      const bool trains = tensor.part == part && tensor.role != TensorRole::kBuffer &&
                          is_read(*arch_.vision, tensor);
      EXPECT_EQ(is_saved(modules, tensor.name), trains) << tensor.name;
    }
    for (const TensorSpec& tensor : tensor_specs(arch_))
      EXPECT_FALSE(is_saved(modules, tensor.name)) << tensor.name;
    for (const std::string& unused : arch_.vision->unused)
      EXPECT_FALSE(unused.ends_with('.') && is_saved(modules, unused + "weight")) << unused;
    // A module list cannot be saved, and each is saved once.
    for (const std::string& module : modules) {
      for (const TensorSpec& tensor : tensors_) {
        const size_t at = tensor.name.find(module + ".");
        if (at == std::string::npos) continue;
        EXPECT_FALSE(std::isdigit(tensor.name[at + module.size() + 1])) << module;
      }
      for (const std::string& other : modules) EXPECT_FALSE(other.starts_with(module + "."));
    }
  }
}

TEST_P(PartsOfModels, AdaptersAreOfThePartsThatTrain) {
  for (const ModelPart part : kModelParts) {
    LoraSpec lora;
    lora.parts = TrainedParts::none();
    lora.parts.add(part);
    int64_t values = 0;
    for (const std::string& name : adapted_names(lora, arch_))
      EXPECT_EQ(part_of(arch_, name + "."), part) << name;
    for (const TensorSpec& linear : vision_linears(arch_, lora.parts))
      values += lora.r * (linear.shape[0] + linear.shape[1]);
    if (part == ModelPart::kLanguage) continue;
    EXPECT_EQ(num_lora_values(lora, arch_), values);
  }
  const LoraSpec text;
  for (const std::string& name : adapted_names(text, arch_))
    EXPECT_EQ(part_of(arch_, name + "."), ModelPart::kLanguage) << name;
}

TEST(PartsOfModel, ModulesHavePeftsNames) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(modules_of(arch_of("gemma3"), ModelPart::kProjector), Names{"multi_modal_projector"});
  EXPECT_EQ(modules_of(arch_of("smolvlm"), ModelPart::kProjector), Names{"connector"});
  EXPECT_EQ(modules_of(arch_of("qwen2_5_vl"), ModelPart::kProjector), Names{"visual.merger"});
  const Names tower = modules_of(arch_of("qwen3_vl"), ModelPart::kVision);
  EXPECT_EQ(Names(tower.begin(), tower.begin() + 3),
            (Names{"visual.patch_embed", "visual.pos_embed", "visual.blocks.0"}));
}

TEST(PartsOfModel, AnExpressionMatchesWholeNames) {
  const ArchSpec arch = arch_of("llava");
  const auto lora_of = [](const char* expression, TrainedParts parts) {
    LoraSpec lora{.target_modules = {}};
    lora.target_pattern = target_pattern(expression);
    lora.parts = parts;
    return lora;
  };
  const TrainedParts text = TrainedParts::text(), both = {true, false, true};
  const LoraSpec language = lora_of(R"(model\.language_model\..*\.(q|v)_proj)", text);
  require_pattern_fits(language, arch);
  for (const std::string& name : adapted_names(language, arch))
    EXPECT_TRUE(name.starts_with("model.language_model.layers.")) << name;
  EXPECT_EQ(adapted_names(language, arch).size(), static_cast<size_t>(2 * arch.num_layers));
  const LoraSpec tower = lora_of(R"(.*\.(q|v)_proj)", both);
  require_pattern_fits(tower, arch);
  EXPECT_GT(adapted_names(tower, arch).size(), adapted_names(language, arch).size());
  const auto refused = [&](const char* expression, TrainedParts parts,
                           std::initializer_list<std::string> says) {
    test::expect_error<ConfigError>([&] { require_pattern_fits(lora_of(expression, parts), arch); },
                                    says);
  };
  refused(R"(.*\.(q|v)_proj)", text,
          {"matches model.vision_tower.", "of the vision part, which does not train",
           "set tuning.train_parts to [language, vision]", "begin with model.language_model."});
  refused("(q|v)_proj", both,
          {"matches the name of no module", "as in PEFT; names are model.language_model.layers.0.",
           "model.vision_tower."});
  refused(R"(model\.language_model\..*)", text, {"which gets no adapter", "linear layers alone"});
}

TEST(PartsOfModel, TrainableParametersOfFrozenPartsAreRefused) {
  const ArchSpec arch = arch_of("qwen2_5_vl");
  const std::vector<std::string> tower = {R"(visual\.blocks\.0\.)"};
  test::expect_error<ConfigError>(
      [&] { require_trainable_parts(tower, arch, TrainedParts::text()); },
      {R"(`visual\.blocks\.0\.` is in the vision part, which does not train)", "tuning.trainable",
       "add vision to tuning.train_parts"});
  require_trainable_parts(tower, arch, {true, false, true});
  require_trainable_parts({"layers"}, arch, TrainedParts::text());
}

TEST(PartsOfModel, NamesOfFrozenPartsAreRefused) {
  const ArchSpec arch = arch_of("llava");
  LoraSpec lora{.target_modules = {"fc1"}};
  test::expect_error<ConfigError>(
      [&] { require_targets_exist(lora, arch); },
      {"`fc1` is in the vision part, which does not train", "tuning.lora.target_modules",
       "add vision to tuning.train_parts"});
  lora.parts.add(ModelPart::kVision);
  require_targets_exist(lora, arch);
  lora = {.target_modules = {"gate_proj"}};
  lora.parts = {.language = false, .projector = false, .vision = true};
  test::expect_error<ConfigError>([&] { require_targets_exist(lora, arch); },
                                  {"`gate_proj` is in the language part"});
  lora = {.modules_to_save = {"multi_modal_projector"}};
  test::expect_error<ConfigError>(
      [&] { require_targets_exist(lora, arch); },
      {"`multi_modal_projector` is in the projector part", "tuning.lora.modules_to_save"});
  lora.parts.add(ModelPart::kProjector);
  require_targets_exist(lora, arch);
}

TEST(PartsOfModel, EachPartThatIsNamedTrains) {
  const ArchSpec gemma = arch_of("gemma3"), llava = arch_of("llava");
  LoraSpec lora;
  lora.parts = {.language = true, .projector = true, .vision = false};
  test::expect_error<ConfigError>(
      [&] { require_adapters(lora, gemma); },
      {"nothing of the projector part gets an adapter: it has no linear layers",
       "tuning.train_parts", "{language: lora, projector: full}"});
  lora.modules_to_save = modules_of(gemma, ModelPart::kProjector);
  require_adapters(lora, gemma);
  lora.modules_to_save.clear();
  require_adapters(lora, llava);
  lora.target_modules = {"q_proj"};
  test::expect_error<ConfigError>([&] { require_adapters(lora, llava); },
                                  {"names no linear layer in it", "take projector out of"});
  lora.target_modules = {"linear_1"};
  test::expect_error<ConfigError>([&] { require_adapters(lora, llava); },
                                  {"nothing of the language part gets an adapter"});
}

}  // namespace
}  // namespace sftrun::spec
