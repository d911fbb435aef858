#include "session.h"

#include <gtest/gtest.h>

#include <cstring>

#include "commands.h"
#include "memory_advice.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "sftrun/spec/blocks.h"
#include "sftrun/weights/adapter_file.h"
#include "sftrun/weights/hf_text_files.h"
#include "support/temporary_directory.h"
#include "support/test_data.h"
#include "weight_hashing.h"

namespace sftrun::engine {
namespace {

const app::ComputeRequest kOnCpu{.device = "cpu", .dtype = "fp32"};

TEST(ComputeChoice, OnTheCpuIsTheTypeThatIsAskedFor) {
  EXPECT_EQ(choose_compute("cpu", "fp32", 0).dtype, at::kFloat);
  EXPECT_EQ(choose_compute("cpu", "bf16", 3).dtype, at::kBFloat16);
  EXPECT_TRUE(choose_compute("cpu", config::DTypeChoice::kFp32, 0).device.is_cpu());
  const at::ScalarType chosen = choose_compute("cpu", "auto", 0).dtype;
  EXPECT_EQ(choose_compute("cpu", dtype_choice(chosen), 0).dtype, chosen);
}

TEST(ComputeChoice, TypesHaveNames) {
  EXPECT_EQ(dtype_name(at::kFloat), "fp32");
  EXPECT_EQ(dtype_name(at::kBFloat16), "bf16");
  EXPECT_EQ(dtype_name(at::kHalf), "fp16");
  EXPECT_EQ(dtype_choice(at::kHalf), config::DTypeChoice::kFp16);
}

TEST(DecoderChoice, FollowsTheConfiguration) {
  config::RunConfig config;
  config.tuning.mode = config::TuningMode::kQlora;
  config.tuning.quant = config::quant_of(QuantFormat::kNf4);
  config.tuning.lora.r = 4;
  config.tuning.lora.dora = true;
  config.tuning.backend = config::TuningBackend::kBnb;
  config.train.gradient_checkpointing = config::Checkpointing::kLayer;
  config.train.seed = 17;
  const auto base = weights::Checkpoint::open(test::kModels / "tied-gqa");
  const model::DecoderOptions lora = decoder_options(config, {at::kCPU, at::kFloat}, base.get());
  EXPECT_EQ(lora.trains, model::Trains::kLora);
  EXPECT_EQ(lora.lora.r, 4);
  EXPECT_TRUE(lora.lora.dora);
  EXPECT_FALSE(lora.lora.pissa);
  ASSERT_TRUE(lora.base.quant);
  EXPECT_EQ(lora.base.quant->format, QuantFormat::kNf4);
  EXPECT_EQ(lora.backend, &layers::plain_backend());
  EXPECT_TRUE(lora.gradient_checkpointing);
  EXPECT_EQ(lora.seed, 17U);
  EXPECT_EQ(lora.parts, TrainedParts::text());
  config.tuning.mode = config::TuningMode::kPartial;
  config.tuning.trainable = {"norm"};
  config.tuning.backend = config::TuningBackend::kFused;
  const model::DecoderOptions partial = decoder_options(config, {}, base.get());
  EXPECT_EQ(partial.trains, model::Trains::kPartial);
  EXPECT_EQ(partial.trainable, std::vector<std::string>{"norm"});
  EXPECT_FALSE(partial.base.quant) << "weights that are trained are dense";
  EXPECT_EQ(partial.backend, &layers::fused_backend());
}

TEST(OptionsOfADecoder, SayWhichPartsTrain) {
  config::RunConfig config;
  using enum config::PartTraining;
  config.tuning.train_parts = {.training = {{kLora, kFull, kFrozen}}};
  const auto base = weights::Checkpoint::open(fs::path(SFTRUN_TEST_DATA) / "vision" / "gemma3");
  const model::DecoderOptions options = decoder_options(config, {at::kCPU, at::kFloat}, base.get());
  EXPECT_EQ(options.parts, (TrainedParts{.language = true, .projector = true, .vision = false}));
  EXPECT_EQ(options.lora.parts, options.parts);
  EXPECT_EQ(options.lora.modules_to_save, std::vector<std::string>{"multi_modal_projector"});
}

TEST(TextOfAModel, KnowsTheRowsOfItsEmbedding) {
  const auto base = weights::Checkpoint::open(test::kModels / "tied-gqa");
  const data::TextModel text = text_model_of(*base, "");
  EXPECT_EQ(text.num_embeddings, 300);
  EXPECT_EQ(text.chat_template->source(), *base->chat_template());
  EXPECT_EQ(text_model_of(*base, "{{ messages }}").chat_template->source(), "{{ messages }}");
}

/// What the run was rendered with, and over it what the command says.
TEST(TextOfAModel, HasTheTemplateVariablesOfItsTraining) {
  log::configure({.console = log::Level::kOff});
  const test::TemporaryDirectory directory;
  std::filesystem::copy(
      test::kModels / "tied-gqa", directory.path(),
      std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing);
  weights::write_template_variables(directory.path(), {{"b", false}, {"a", 1}});
  const auto variables = [&](const app::ModelRequest& request) {
    return load_model(request, kOnCpu).text.render_defaults.kwargs.dump();
  };
  EXPECT_EQ(variables({.model = directory.path()}), R"({"b":false,"a":1})");
  EXPECT_EQ(
      variables({.model = directory.path(), .chat_template_kwargs = R"({"c": "x", "b": true})"}),
      R"({"b":true,"a":1,"c":"x"})");
  EXPECT_EQ(variables({.model = directory.path(),
                       .read_as = std::make_shared<const config::RunConfig>()}),
            "{}")
      << "the configuration says what they are";
  EXPECT_EQ(variables({.model = test::kModels / "tied-gqa"}), "{}");
  for (const char* damaged : {"[]", "{", R"({"chat_template_kwargs": 3})"}) {
    write_file_atomically(directory / "sftrun_chat.json", damaged);
    EXPECT_THROW(weights::read_template_variables(directory.path()), DataError) << damaged;
  }
}

/// A command without a run has no `tuning.lora` to change.
TEST(AdapterOfAModel, ThatDoesNotFitIsNamedByItsOwnFiles) {
  log::configure({.console = log::Level::kOff});
  const test::TemporaryDirectory adapter;
  const auto base = weights::Checkpoint::open(test::kModels / "tied-gqa");
  const spec::LinearSpec q = spec::layer_linears(base->arch(), 0)[0];
  const std::string name = spec::name_in_layer(base->arch(), 0, q.module);
  const auto zeros = [](const std::string& tensor, int64_t rows, int64_t columns) {
    const auto num_bytes = static_cast<size_t>(rows * columns) * sizeof(float);
    return weights::TensorToWrite{
        tensor, DType::kF32, {rows, columns}, [=](void* out) { std::memset(out, 0, num_bytes); }};
  };
  weights::write_adapter(adapter.path(), {.lora = {.r = 2, .alpha = 4, .target_modules = {"qkv"}}},
                         {zeros(weights::lora_a_name(name), 2, q.in_features),
                          zeros(weights::lora_b_name(name), q.out_features, 2)});
  const auto file = adapter / "adapter_config.json";
  try {
    load_model({.model = test::kModels / "tied-gqa", .adapter = adapter.path().string()}, kOnCpu);
    ADD_FAILURE() << "no error";
  } catch (const DataError& error) {
    EXPECT_EQ(error.message(), "no linear layer is named `qkv`");
    EXPECT_EQ(error.where(), file.string() + ": target_modules");
    EXPECT_EQ(error.fix().find("tuning.lora"), std::string::npos) << error.fix();
  }
}

TEST(MemoryAdvice, DependsOnTheCommand) {
  EXPECT_NE(memory_advice(app::WorkerRequest{}, Memory::kHost),
            memory_advice(app::GenerateRequest{}, Memory::kHost));
  EXPECT_EQ(memory_advice(app::ChatRequest{}, Memory::kGpu), general_memory_advice(Memory::kGpu));
  EXPECT_EQ(first_line("out of memory\nstack"), "out of memory");
}

TEST(MemoryAdvice, LeavesOutWhatIsInUse) {
  const auto has = [](const std::string& advice, const char* part) {
    return advice.find(part) != std::string::npos;
  };
  const auto check = [&](auto of_one) {
    EXPECT_FALSE(has(memory_advice(of_one, Memory::kHost), "--device cpu"));
    if constexpr (requires { of_one.batch_size; }) of_one.batch_size = 1;
    EXPECT_FALSE(has(memory_advice(of_one, Memory::kGpu), "--batch-size"));
  };
  check(app::GenerateRequest{});
  check(app::EvalRequest{});
  check(app::ScoreRequest{});
  check(app::BenchRequest{});
  check(app::ServeRequest{});
  check(app::MergeRequest{});
  EXPECT_EQ(memory_advice(app::GenerateRequest{}, Memory::kGpu),
            "lower --batch-size or --max-new-tokens, shorten the prompts, or use --device cpu");
  EXPECT_FALSE(has(memory_advice(app::EvalRequest{.generate = false}, Memory::kHost), "generate"));

  config::RunConfig run;
  const std::string all = training_memory_advice(run, Memory::kGpu);
  run.train.batch_size.value = 1;
  run.train.gradient_checkpointing = config::Checkpointing::kLayer;
  const std::string rest = training_memory_advice(run, Memory::kHost);
  for (const char* part : {"train.batch_size", "train.gradient_checkpointing", "train.cuda_graphs"})
    EXPECT_TRUE(has(all, part) && !has(rest, part)) << all << "\n" << rest;

  model::DecoderOptions options;
  EXPECT_TRUE(has(model_memory_advice(options, Memory::kGpu), "--device cpu"));
  EXPECT_FALSE(has(model_memory_advice(options, Memory::kHost), "--device cpu"));
  options.trains = model::Trains::kLora;
  EXPECT_TRUE(has(model_memory_advice(options, Memory::kHost), "tuning.quant"));
  options.base.quant.emplace();
  EXPECT_FALSE(has(model_memory_advice(options, Memory::kHost), "tuning.quant"));
}

TEST(WeightHashing, GivesTheHashesOfTheFiles) {
  log::configure({.console = log::Level::kOff});
  const std::shared_ptr<const weights::Checkpoint> base =
      weights::Checkpoint::open(test::kModels / "linear-bias-sharded");
  parallel::Communicator comm;
  WeightHashing hashing(base, {});
  const auto files = hashing.get(comm, [] { return false; });
  ASSERT_TRUE(files);
  const auto expected = weights::hash_weights(*base, FileHashes({}));
  ASSERT_EQ(files->size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ((*files)[i].name, expected[i].name);
    EXPECT_EQ((*files)[i].hash, expected[i].hash);
  }
}

}  // namespace
}  // namespace sftrun::engine
