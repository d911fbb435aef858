#include "sftrun/export/merge.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "quantized_tensors.h"
#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "sftrun/export/quantize.h"
#include "sftrun/export/run_result.h"
#include "sftrun/model/adapter_io.h"
#include "sftrun/weights/adapter_file.h"
#include "sftrun/weights/hf_text_files.h"
#include "stored_dtype.h"
#include "support/adapter_weights.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"
#include "support/test_data.h"

namespace sftrun::exporting {
namespace {

namespace fs = std::filesystem;

at::Tensor values_of(const weights::Checkpoint& model, const std::string& name) {
  for (const weights::TensorInfo& info : model.tensors()) {
    if (info.name != name) continue;
    at::Tensor values = at::empty(info.shape, at::kFloat);
    model.read(name, DType::kF32, values.data_ptr());
    return values;
  }
  ADD_FAILURE() << name;
  return {};
}

class Export : public ::testing::Test {
 protected:
  Export() { log::configure({.console = log::Level::kOff}); }

  /// An adapter of the base, with values that are not zero.
  std::unique_ptr<model::Decoder> adapted_decoder() {
    model::DecoderOptions options;
    options.trains = model::Trains::kLora;
    options.lora.target_modules = {"q_proj", "down_proj"};
    auto decoder = model::Decoder::load(base_, options);
    test::set_adapter_weights(decoder->parameters(), 5);
    return decoder;
  }
  fs::path write_adapter() {
    const auto decoder = adapted_decoder();
    const fs::path directory = directory_ / "adapter";
    fs::create_directories(directory);
    weights::write_adapter(directory, model::adapter_config_of(*decoder, base_path_.string()),
                           model::adapter_tensors(*decoder));
    return directory;
  }
  MergeOptions options(const std::string& dtype, const std::string& format = "safetensors") {
    MergeOptions options;
    options.base = base_path_;
    options.output = directory_ / "merged";
    options.dtype = dtype;
    options.format = format;
    options.max_shard_bytes = uint64_t{1} << 30;
    return options;
  }

  test::TemporaryDirectory directory_;
  fs::path base_path_ = test::kModels / "tied-gqa";
  std::shared_ptr<const weights::Checkpoint> base_ = weights::Checkpoint::open(base_path_);
};

TEST_F(Export, AMergedMatrixIsItsBaseAndTheUpdate) {
  MergeOptions merging = options("f32");
  merging.adapter = write_adapter();
  const MergedModel merged = merge(merging);
  EXPECT_EQ(merged.written.path, merging.output);
  EXPECT_EQ(merged.written.dtype, "f32");
  EXPECT_FALSE(merged.written.is_below_8_bits);
  const auto written = weights::Checkpoint::open(merging.output);
  const auto config = weights::load_adapter_config(*merging.adapter, base_->arch());
  const auto adapter = weights::load_adapter(*merging.adapter, config, base_->arch());
  ASSERT_EQ(adapter.lora.size(), 4U);
  for (const auto& [module, pair] : adapter.lora) {
    const auto matrix = [](const std::vector<float>& values, int64_t rows, int64_t columns) {
      return at::tensor(at::ArrayRef<float>(values)).view({rows, columns});
    };
    const at::Tensor update = at::mm(matrix(pair.b, pair.out_features, pair.r),
                                     matrix(pair.a, pair.r, pair.in_features)) *
                              pair.scale;
    const std::string name = module + ".weight";
    EXPECT_TRUE(
        at::allclose(values_of(*written, name), values_of(*base_, name) + update, 1e-6, 1e-6))
        << name;
    EXPECT_GT(update.abs().max().item<float>(), 1e-3) << name;
  }
  const std::string unchanged = "model.layers.0.self_attn.k_proj.weight";
  EXPECT_TRUE(at::equal(values_of(*written, unchanged), values_of(*base_, unchanged)));
  EXPECT_TRUE(fs::exists(merging.output / "tokenizer.json"));
}

TEST_F(Export, AnOutputThatIsThereIsReplacedOnlyIfAsked) {
  MergeOptions converting = options("bf16");
  merge(converting);
  EXPECT_EQ(weights::Checkpoint::open(converting.output)->tensors().at(0).format, "BF16");
  converting.dtype = "f32";
  EXPECT_THROW(merge(converting), Error);
  converting.overwrite = true;
  merge(converting);
  EXPECT_EQ(weights::Checkpoint::open(converting.output)->tensors().at(0).format, "F32");
}

TEST_F(Export, AQuantisedModelIsWhatQuantiseWrites) {
  MergeOptions merging = options("nf4");
  const WrittenModel merged = merge(merging).written;
  EXPECT_TRUE(merged.is_below_8_bits);
  EXPECT_EQ(merged.dtype, "nf4");
  QuantizeOptions quantising;
  quantising.model = base_path_;
  quantising.output = directory_ / "quantised";
  quantising.method = "nf4";
  quantising.dtype = "auto";
  quantising.max_shard_bytes = uint64_t{1} << 30;
  quantize(quantising);
  EXPECT_EQ(read_text_file(merging.output / "model.safetensors"),
            read_text_file(quantising.output / "model.safetensors"));
  EXPECT_EQ(read_text_file(merging.output / "config.json"),
            read_text_file(quantising.output / "config.json"));
  quantising.model = quantising.output;
  quantising.output = directory_ / "twice";
  test::expect_error([&] { quantize(quantising); }, {"already quantised to 4 bits"});
}

TEST_F(Export, AGgufFileStandsAloneOrBesideAModelfile) {
  MergeOptions merging = options("f16", "gguf");
  const WrittenModel in_directory = merge(merging).written;
  EXPECT_EQ(in_directory.path, merging.output / "merged-F16.gguf");
  EXPECT_EQ(in_directory.dtype, "f16");
  EXPECT_TRUE(fs::exists(merging.output / "Modelfile"));
  merging.output = directory_ / "deep" / "mine.gguf";
  EXPECT_TRUE(merging.writes_file());
  const WrittenModel file = merge(merging).written;
  EXPECT_EQ(file.path, merging.output);
  EXPECT_FALSE(fs::exists(directory_ / "deep" / "Modelfile"));
  const auto written = weights::Checkpoint::open(file.path);
  const std::string name = "model.layers.0.mlp.down_proj.weight";
  EXPECT_TRUE(at::allclose(values_of(*written, name), values_of(*base_, name), 1e-3, 1e-3));

  merging.base = file.path;
  merging.output = directory_ / "again.gguf";
  merging.dtype = "auto";
  test::expect_error<ConfigError>([&] { merge(merging); }, {"is a GGUF file already"});
}

TEST_F(Export, ModulesToSkipMustExist) {
  const auto modules = choose_modules(base_->arch(), {"down_proj", "layers.1.mlp.gate_proj"});
  EXPECT_NO_THROW(modules.require_used());
  EXPECT_TRUE(modules.quantised.contains("model.layers.0.mlp.gate_proj"));
  EXPECT_FALSE(modules.quantised.contains("model.layers.1.mlp.gate_proj"));
  EXPECT_TRUE(modules.dense.contains("model.layers.0.mlp.down_proj"));
  EXPECT_TRUE(modules.dense.contains("lm_head"));
  test::expect_error<ConfigError>(
      [&] { choose_modules(base_->arch(), {"no_proj"}).require_used(); },
      {"no module of the model is named `no_proj`", "--skip-modules"});
}

TEST_F(Export, WeightsKeepTheBasesTypeUnlessAnotherIsNamed) {
  const auto half = weights::Checkpoint::open(test::kModels / "yarn-fp16"),
             bf16 = weights::Checkpoint::open(test::kModels / "dynamic-bf16");
  EXPECT_EQ(dtype_to_store("auto", *base_), DType::kF32);
  EXPECT_EQ(dtype_to_store("auto", *half), DType::kF16);
  EXPECT_EQ(dtype_to_store("auto", *bf16), DType::kBF16);
  for (const char* name : {"f32", "f16", "bf16"})
    EXPECT_EQ(dtype_word(dtype_to_store(name, *half)), name);
}

// ---- The result of a run

TEST_F(Export, ARunsAdapterReplacesAnEarlierOneWithoutLosingIt) {
  const auto decoder = adapted_decoder();
  const RunResult result{directory_.path(), model::adapter_config_of(*decoder, "base"), *base_,
                         base_path_, at::kFloat};
  EXPECT_EQ(result.target(), directory_ / "adapter");
  EXPECT_FALSE(result.exists());
  export_result(result, result_tensors(result, *decoder), "first card", "checkpoint");
  export_result(result, result_tensors(result, *decoder), "second card", "checkpoint");
  EXPECT_TRUE(result.exists());
  EXPECT_EQ(read_text_file(directory_ / "adapter" / "README.md"), "second card");
  EXPECT_EQ(read_text_file(directory_ / "adapter.old-1" / "README.md"), "first card");
  EXPECT_FALSE(fs::exists(directory_ / ".unfinished-adapter"));
  const auto config = weights::load_adapter_config(result.target(), base_->arch());
  EXPECT_EQ(weights::load_adapter(result.target(), config, base_->arch()).lora.size(), 4U);
}

TEST_F(Export, TheTemplateVariablesOfTheRunGoWithItsResult) {
  const auto decoder = adapted_decoder();
  RunResult result{directory_.path(), model::adapter_config_of(*decoder, "base"), *base_,
                   base_path_, at::kFloat};
  export_result(result, result_tensors(result, *decoder), "card", "checkpoint");
  EXPECT_FALSE(fs::exists(result.target() / "sftrun_chat.json"));
  result.template_variables = {{"enable_thinking", false}};
  export_result(result, result_tensors(result, *decoder), "card", "checkpoint");
  EXPECT_EQ(weights::read_template_variables(result.target()), result.template_variables);
}

TEST_F(Export, ABaseThatWasRemovedIsNamedWithTheCheckpoint) {
  const auto decoder = adapted_decoder();
  const RunResult result{directory_.path(), model::adapter_config_of(*decoder, "base"), *base_,
                         directory_ / "removed.gguf", at::kFloat};
  test::expect_error(
      [&] {
        export_result(result, result_tensors(result, *decoder), "card", "checkpoints/step-000007");
      },
      {"the base model was removed", "removed.gguf", "checkpoints/step-000007"});
  EXPECT_FALSE(result.exists());
}

TEST_F(Export, TheResultsSizeIsThatOfItsWeights) {
  uint64_t values = 0;
  for (const weights::TensorInfo& tensor : base_->tensors())
    values += static_cast<uint64_t>(tensor.numel());
  RunResult result{directory_.path(), weights::AdapterConfig{}, *base_, base_path_, at::kFloat};
  EXPECT_EQ(result_bytes(result, 100), 400U);
  result.adapter.reset();
  EXPECT_EQ(result_bytes(result, 100), 4 * values);
  result.dtype = at::kBFloat16;
  EXPECT_EQ(result_bytes(result, 100), 2 * values);
}

TEST_F(Export, AnAdapterNamesItsBaseAsOthersFindIt) {
  weights::AdapterConfig adapter;
  config::ModelConfig model;
  model.name = "owner/name";
  model.revision = "v1";
  name_base(adapter, model, base_path_);
  EXPECT_EQ(adapter.base_model_name_or_path, "owner/name");
  EXPECT_EQ(adapter.revision, "v1");
  model.name = (base_path_ / ".." / "tied-gqa").string();
  model.revision = "";
  name_base(adapter, model, base_path_);
  EXPECT_EQ(adapter.base_model_name_or_path, base_path_.string());
}

}  // namespace
}  // namespace sftrun::exporting
