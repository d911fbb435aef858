#include "sftrun/weights/projectors.h"

#include <gtest/gtest.h>

#include <cmath>

#include "sftrun/core/file.h"
#include "sftrun/spec/feature_projectors.h"
#include "sftrun/weights/safetensors.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"
#include "support/test_data.h"

namespace sftrun::weights {
namespace {

using test::expect_error;

const std::vector<FeatureProjector> kTwo = {
    {.name = "world", .input_width = 12, .hidden = 20, .tokens = 4},
    {.name = "sound", .input_width = 8}};

std::filesystem::path base() {
  return std::filesystem::path(SFTRUN_TEST_DATA) / "models/tied-gqa";
}

std::vector<float> values_of(const Checkpoint& model, const std::string& name) {
  for (const TensorInfo& info : model.tensors()) {
    if (info.name != name) continue;
    std::vector<float> values(static_cast<size_t>(info.numel()));
    model.read(name, DType::kF32, values.data());
    return values;
  }
  return {};
}

TEST(Projectors, FilesHoldThem) {
  const test::TemporaryDirectory dir;
  EXPECT_TRUE(read_projectors(dir.path()).empty());
  write_projectors(dir.path(), {});
  EXPECT_FALSE(std::filesystem::exists(dir / kProjectorsFile));
  const std::vector<FeatureProjector> whole = {kTwo[0],
                                               {.name = "a", .input_width = 1, .hidden = 2}};
  write_projectors(dir.path(), whole);
  EXPECT_EQ(read_projectors(dir.path()), whole);
}

TEST(Projectors, OtherFilesAreRefused) {
  const test::TemporaryDirectory dir;
  for (const char* text :
       {"", "{", "[]", "{}", R"({"world": 3})", R"({"world": {"input_width": 3}})",
        R"({"world": {"input_width": 0, "hidden": 2}})",
        R"({"world": {"input_width": 3.5, "hidden": 2}})",
        R"({"world": {"input_width": 3, "hidden": 2, "tokens": -1}})",
        R"({"world": {"input_width": 99999999999, "hidden": 2}})"}) {
    write_file_atomically(dir / kProjectorsFile, text);
    expect_error<DataError>([&] { read_projectors(dir.path()); }, {kProjectorsFile});
  }
}

TEST(Projectors, AnAdapterThatSavesThemHasTheirSizes) {
  const test::TemporaryDirectory dir;
  write_file_atomically(dir / "adapter_config.json", R"({"modules_to_save": ["lm_head"]})");
  EXPECT_TRUE(read_projectors(dir.path()).empty());
  write_file_atomically(dir / "adapter_config.json",
                        R"({"modules_to_save": ["lm_head", "projectors.world"]})");
  expect_error<DataError>([&] { read_projectors(dir.path()); },
                          {"projectors.world", kProjectorsFile, "copy this file, too"});
}

/// As after a run in full, whose result an adapter was trained on: with another base its projectors would be random.
TEST(Projectors, OfAnAdapterAreInItOrInItsBase) {
  const test::TemporaryDirectory dir;
  write_projectors(dir.path(), {kTwo[0]});
  write_safetensors(dir / "adapter_model.safetensors", {});
  const std::shared_ptr<const Checkpoint> plain = Checkpoint::open(base());
  expect_error<DataError>([&] { read_adapter_projectors(*plain, dir.path()); },
                          {"projector world", "use the model that the adapter was trained on"});
  EXPECT_EQ(read_adapter_projectors(*with_projectors(plain, {kTwo[0]}), dir.path()).size(), 1U);
}

TEST(Projectors, NewOnesStandBehindTheModelsTensors) {
  const std::shared_ptr<const Checkpoint> plain = Checkpoint::open(base());
  const auto model = with_projectors(plain, kTwo, 7);
  EXPECT_EQ(model->tensors().size(), plain->tensors().size() + 8);
  EXPECT_EQ(model->arch().projectors[1].hidden, plain->arch().hidden_size);
  const std::vector<spec::TensorSpec> specs = spec::tensor_specs(model->arch());
  for (size_t i = 0; i < specs.size(); ++i) {
    EXPECT_EQ(model->tensors()[i].name, specs[i].name);
    EXPECT_EQ(model->tensors()[i].shape, specs[i].shape);
    EXPECT_TRUE(model->has(specs[i].name));
  }
  EXPECT_EQ(with_projectors(model, {kTwo[0]}, 7), model);
}

/// As torch.nn.Linear: uniform within 1 / sqrt(in_features), for weight and bias.
TEST(Projectors, NewOnesBeginAsPyTorchsLinearDoes) {
  const auto model = with_projectors(Checkpoint::open(base()), kTwo, 7);
  for (const auto& [name, inputs] : {std::pair("projectors.world.linear_1.weight", 12.0),
                                     {"projectors.world.linear_1.bias", 12.0},
                                     {"projectors.world.linear_2.weight", 20.0},
                                     {"projectors.sound.linear_1.weight", 8.0}}) {
    double sum = 0, largest = 0;
    const std::vector<float> values = values_of(*model, name);
    ASSERT_FALSE(values.empty());
    for (const float value : values)
      sum += value * value, largest = std::max<double>(largest, std::abs(value));
    const double bound = 1 / std::sqrt(inputs);
    EXPECT_LE(largest, bound) << name;
    EXPECT_NEAR(sum / static_cast<double>(values.size()), bound * bound / 3, bound * bound / 6)
        << name;
  }
  const std::string first = "projectors.world.linear_1.weight";
  EXPECT_EQ(values_of(*model, first),
            values_of(*with_projectors(Checkpoint::open(base()), kTwo, 7), first));
  EXPECT_NE(values_of(*model, first),
            values_of(*with_projectors(Checkpoint::open(base()), kTwo, 8), first));
}

TEST(Projectors, OfOneNameAreTheSame) {
  const auto model = with_projectors(Checkpoint::open(base()), kTwo);
  FeatureProjector other = kTwo[0];
  other.tokens = 5;
  expect_error<ConfigError>(
      [&] { with_projectors(model, {other}); },
      {"world has input_width 12, hidden 20, tokens 5", "tokens 4", "model.projectors"});
}

TEST(Projectors, AMissingTensorIsNamed) {
  const test::TemporaryDirectory dir;
  for (const char* file : {"config.json", "model.safetensors", "tokenizer.json"})
    std::filesystem::copy(base() / file, dir / file);
  write_projectors(dir.path(), {kTwo[0]});
  expect_error<DataError>([&] { Checkpoint::open(dir.path()); },
                          {"projectors.world.linear_1.weight"});
}

}  // namespace
}  // namespace sftrun::weights
