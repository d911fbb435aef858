#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "../../src/train/checkpoint_state.h"
#include "sftrun/core/file.h"
#include "sftrun/core/hash.h"
#include "sftrun/data/image_load.h"
#include "sftrun/train/adamw.h"
#include "sftrun/train/checkpoint.h"
#include "sftrun/train/identity.h"
#include "sftrun/train/schedule.h"
#include "sftrun/train/trainer.h"
#include "support/expect_error.h"
#include "support/single_strategy.h"
#include "support/temporary_directory.h"
#include "support/tensors.h"

namespace sftrun::train {
namespace {

namespace fs = std::filesystem;

TEST(Schedule, EqualsTransformers) {
  const auto fixture = nlohmann::json::parse(
      read_text_file(fs::path(SFTRUN_TEST_DATA) / "train" / "schedules.json"));
  const std::map<std::string, config::Scheduler> kinds = {
      {"constant", config::Scheduler::kConstant},
      {"constant_with_warmup", config::Scheduler::kConstantWithWarmup},
      {"linear", config::Scheduler::kLinear},
      {"cosine", config::Scheduler::kCosine},
      {"cosine_with_restarts", config::Scheduler::kCosineWithRestarts},
      {"polynomial", config::Scheduler::kPolynomial},
      {"inverse_sqrt", config::Scheduler::kInverseSqrt}};
  EXPECT_EQ(fixture["cases"].size(), 3 * kinds.size());
  for (const auto& c : fixture["cases"]) {
    const Schedule schedule(kinds.at(c["kind"]), fixture["peak"], c["warmup"], c["total"],
                            config::WarmupFrom::kZero);
    for (size_t step = 0; step < c["rates"].size(); ++step) {
      EXPECT_NEAR(schedule.lr_at(static_cast<int64_t>(step)), c["rates"][step].get<double>(), 1e-15)
          << c["kind"] << " warmup " << c["warmup"] << " step " << step;
    }
  }
}

/// The first of n steps has 1/n, the last the whole; after them the rate is as it was.
TEST(Schedule, WarmupFromTheFirstStep) {
  for (const auto kind : {config::Scheduler::kLinear, config::Scheduler::kCosine,
                          config::Scheduler::kConstantWithWarmup}) {
    const Schedule from_zero(kind, 1e-3, 4, 20, config::WarmupFrom::kZero);
    const Schedule from_first(kind, 1e-3, 4, 20, config::WarmupFrom::kFirstStep);
    for (int64_t step = 0; step < 4; ++step)
      EXPECT_DOUBLE_EQ(from_first.lr_at(step), 1e-3 * static_cast<double>(step + 1) / 4);
    for (int64_t step = 4; step < 20; ++step)
      EXPECT_EQ(from_first.lr_at(step), from_zero.lr_at(step));
  }
  const Schedule short_run(config::Scheduler::kCosine, 1e-3, 1, 1, config::WarmupFrom::kFirstStep);
  EXPECT_EQ(short_run.lr_at(0), 1e-3);  // a run of one step learns, too
}

TEST(Schedule, WarmupFromRatioRoundsUp) {
  config::TrainConfig config;
  config.warmup_ratio = 0.03;
  EXPECT_EQ(warmup_steps_of(config, 100), 3);
  EXPECT_EQ(warmup_steps_of(config, 101), 4);
  config.warmup_steps = 7;
  EXPECT_EQ(warmup_steps_of(config, 100), 7);
}

TEST(Clip, FactorIsTorchs) {
  EXPECT_EQ(clip_factor(0.5, 1.0), 1.0);
  EXPECT_DOUBLE_EQ(clip_factor(4.0, 1.0), 1.0 / (4.0 + 1e-6));
  EXPECT_EQ(clip_factor(4.0, 0), 1.0);
}

data::BatchPlan plan_of(int64_t num_examples, int64_t global_batch_size) {
  data::BatchPlanOptions options;
  options.packing = false;
  options.global_batch_size = global_batch_size;
  const std::vector<int64_t> ones(static_cast<size_t>(num_examples), 1);
  return {ones, ones, options};
}

/// The longest bins of an epoch, whatever its order.
TEST(PlannedBatches, LongestIsOfTheLongestBins) {
  std::vector<data::Example> examples;
  for (const int64_t length : {3, 9, 2, 7, 5}) {
    data::Example example;
    example.tokens.assign(static_cast<size_t>(length), 1);
    example.labels.assign(static_cast<size_t>(length), 1);
    example.labels.back() = data::kIgnoreIndex;
    example.label_tokens = length - 1;
    examples.push_back(example);
  }
  const data::Dataset dataset{data::ExampleStore::in_memory(examples), {}, {}, "f"};
  config::RunConfig config;
  config.data.packing = false;
  config.model.max_seq_len = 16;
  config.train.max_steps = 1;
  config.train.global_batch_size.value = 2;
  const PlannedBatches batches(config, dataset);
  const data::StepBatch longest = batches.longest(2);
  EXPECT_EQ(longest.bins, (std::vector<data::Bin>{{1}, {3}}));
  EXPECT_EQ(longest.tokens, 16);
  EXPECT_EQ(longest.label_tokens, 14);
  EXPECT_EQ(batches.longest(9).bins.size(), 5U) << "no more than there are";
}

/// Memory may be short by tokens, by patches, or by both.
TEST(PlannedBatches, LargestAreByEachMeasure) {
  std::vector<data::Example> examples;
  for (const auto& [length, num_images] : {std::pair(9, 0), {5, 3}, {8, 2}, {2, 0}}) {
    examples.push_back({.label_tokens = 1});
    examples.back().tokens.assign(static_cast<size_t>(length), 1);
    examples.back().labels.assign(static_cast<size_t>(length), data::kIgnoreIndex);
    for (int image = 0; image < num_images; ++image)
      examples.back().media.push_back({.media = {.path = "a.png"}, .width = 112, .height = 112});
  }
  const data::Dataset dataset{data::ExampleStore::in_memory(examples), {}, {}, "f"};
  config::RunConfig config;
  config.data.packing = false;
  config.train.global_batch_size.value = 2;
  const PlannedBatches batches(config, dataset);
  images::ImageProcessor processor{.kind = images::ProcessorKind::kQwen2Vl};
  processor.row().defaults(processor);
  data::ImageCounter counter(processor, 14);
  const data::BinCost patches = [&](const data::ExampleStore& all, const data::Bin& bin) {
    return counter.of(all, bin).patches;
  };
  const data::BinCost both = [&](const data::ExampleStore& all, const data::Bin& bin) {
    return data::tokens_of(all, bin) + patches(all, bin) / 64;
  };
  const auto bins_of = [](const std::vector<data::StepBatch>& all) {
    std::vector<std::vector<data::Bin>> bins;
    for (const data::StepBatch& one : all) bins.push_back(one.bins);
    return bins;
  };
  using Bins = std::vector<std::vector<data::Bin>>;
  EXPECT_EQ(bins_of(batches.largest(1, {})), (Bins{{{0}}}));
  const std::vector<data::BinCost> measures = {patches, both};
  EXPECT_EQ(bins_of(batches.largest(1, measures)), (Bins{{{0}}, {{1}}, {{2}}}));
  EXPECT_EQ(bins_of(batches.largest(2, measures)), (Bins{{{0}, {2}}, {{1}, {2}}}))
      << "0 and 2 have most of both";
  const std::vector<data::BinCost> tokens = {data::tokens_of};
  EXPECT_EQ(batches.largest(2, tokens).size(), 1U) << "the longest, once";
  EXPECT_EQ(batches.micro_batch_images(2, /*of_longest=*/true, counter).patches, 5 * 64);
}

/// What a plan of memory is told is of the micro-batches that come.
TEST(PlannedBatches, KnowTheLargestMicroBatchThatIsDealt) {
  std::vector<data::Example> examples;
  for (const int64_t length : {9, 8, 2, 1}) {
    examples.push_back({.label_tokens = length - 1});
    examples.back().tokens.assign(static_cast<size_t>(length), 1);
    examples.back().labels.assign(static_cast<size_t>(length), data::kIgnoreIndex);
  }
  const data::Dataset dataset{data::ExampleStore::in_memory(examples), {}, {}, "f"};
  config::RunConfig config;
  config.data.packing = config.data.shuffle = false;
  config.train.max_steps = 1;
  config.train.global_batch_size.value = 4;
  PlannedBatches batches(config, dataset);
  EXPECT_EQ(batches.micro_batch_tokens(2, /*of_longest=*/false), 17);
  batches.deal_with({.cost = [](const data::ExampleStore& all, const data::Bin& bin) -> int64_t {
                       return all.stored(bin[0]).length;
                     },
                     .size = 2});
  EXPECT_EQ(batches.at(0).deal, (data::Deal{{0, 3}, {1, 2}}));
  EXPECT_EQ(batches.at(0).tokens, 20);
  EXPECT_EQ(batches.micro_batch_tokens(2, /*of_longest=*/false), 10);
  EXPECT_EQ(batches.micro_batch_tokens(2, /*of_longest=*/true), 17) << "may come in other epochs";
}

TEST(StepPlan, EpochsFractionsAndMaxSteps) {
  const data::BatchPlan plan = plan_of(10, 4);  // 3 steps an epoch
  const auto steps_of = [&](double epochs) {
    return StepPlan(plan, config::TrainConfig{.epochs = epochs}).total_steps();
  };
  EXPECT_EQ(steps_of(2), 6);
  EXPECT_EQ(steps_of(1.5), 5);
  EXPECT_EQ(steps_of(0.1), 1);
  const StepPlan by_steps(plan, config::TrainConfig{.max_steps = 7});
  EXPECT_EQ(by_steps.total_steps(), 7);
  const StepPosition last = by_steps.position(6);
  EXPECT_EQ(last.epoch, 2);
  EXPECT_EQ(last.step_in_epoch, 0);
}

ModelIdentity model_of(const std::string& name) {
  return {.configuration = {{"hidden_size", 8}, {"rope_theta", 1e4}},
          .layout = name,
          .tokenizer = "t",
          .chat_template = "c"};
}

/// A checkpoint from before a setting existed was trained with the setting's default.
TEST(Identity, SettingsThatACheckpointDoesNotNameHaveTheirDefaults) {
  config::RunConfig config;
  const auto now = identity_of(config, model_of("m"), "d", "");
  auto sft = now;
  sft["config"].erase("train.objective");
  sft["config"].erase("train.beta");
  sft["config"].erase("train.reference");
  sft["config"].erase("train.reference_logps");
  EXPECT_NO_THROW(require_same_identity(sft, now, "c", {}));
  config.train.objective = config::Objective::kDpo;
  const auto dpo = identity_of(config, model_of("m"), "d", "");
  config.train.beta = 0.5;
  test::expect_error<ConfigError>(
      [&] { require_same_identity(dpo, identity_of(config, model_of("m"), "d", ""), "c", {}); },
      {"train.beta was 0.1, is now 0.5"});
  test::expect_error<ConfigError>([&] { require_same_identity(sft, dpo, "c", {}); },
                                  {"train.objective was \"sft\", is now \"dpo\""});
}

/// The reference model of a run that started from an adapter is that adapter.
TEST(Identity, SaysWhichAdapterTheRunStartedFrom) {
  auto first = identity_of({}, model_of("m"), "d", ""), other = first;
  const auto none = first;
  add_start(first, "1a");
  add_start(other, "2b");
  EXPECT_NO_THROW(require_same_identity(first, first, "c", {}));
  for (const auto& now : {other, none})
    test::expect_error<ConfigError>(
        [&] { require_same_identity(first, now, "c", {.changed_data = true}); },
        {"the adapter of tuning.lora.init_from", "was \"1a\"",
         "give tuning.lora.init_from the adapter that the run began with"});
}

TEST(Identity, SaysWhetherTheReferenceModelHasChanged) {
  auto first = identity_of({}, model_of("m"), "d", ""), other = first;
  add_reference(first, "1a");
  EXPECT_NO_THROW(require_same_identity(first, other, "c", {})) << "before its files were read";
  add_reference(other, "2b");
  test::expect_error<ConfigError>([&] { require_same_identity(first, other, "c", {}); },
                                  {"the model of train.reference has changed",
                                   "give train.reference the model that the run began with"});
}

/// Checkpoints of versions that dealt in order, and of versions that may deal in another way.
TEST(Identity, SaysHowStepsAreDealt) {
  const auto earlier = identity_of({}, model_of("m"), "d", "");
  auto now = earlier;
  EXPECT_FALSE(deals_by_cost(earlier));
  add_deal_by_cost(now);
  EXPECT_TRUE(deals_by_cost(now));
  EXPECT_NO_THROW(require_same_identity(now, now, "c", {}));
  EXPECT_NO_THROW(require_same_identity(now, earlier, "c", {})) << "data without images";
  auto later = now;
  later["deal"] = "cost 2";
  test::expect_error<ConfigError>([&] { require_same_identity(later, now, "c", {}); },
                                  {"as another version of sftrun (\"cost 2\", here \"cost 1\")",
                                   "use the version that the run began with"});
}

/// The file was written when the list of settings was in identity.cpp: checkpoints of that time must
/// resume. A new field changes it only if it changes results (OnResume in src/config/fields.h).
TEST(Identity, IsTheOneOfOlderCheckpoints) {
  config::RunConfig config;
  config.tuning.mode = config::TuningMode::kQlora;
  config.tuning.lora.rank_pattern = {{"o_proj", 8}, {"layers.[01].mlp.down_proj", 32}};
  config.tuning.lora.alpha_pattern = {{"o_proj", 16.5}};
  config.tuning.lora.modules_to_save = {"lm_head"};
  config.data.train = {{.path = "chat.jsonl", .weight = 2}};
  config.data.fields = {{"prompt", "question"}, {"completion", "answers.0.text"}};
  config.data.chat_template_kwargs = {{"enable_thinking", false}};
  config.train.optimizer = config::Optimizer::kMuon;
  config.train.max_steps = 12;
  config.train.neftune_noise_alpha = 5;
  config::resolve(config, "run.yaml", /*world_size=*/2);
  const auto identity = identity_of(config,
                                    {.configuration = {{"hidden_size", 8}},
                                     .layout = "l",
                                     .tokenizer = "t",
                                     .chat_template = "c",
                                     .chat_template_source = "s"},
                                    "d", "v", {{"chat.jsonl", "e"}});
  const auto older = nlohmann::ordered_json::parse(
      read_text_file(std::filesystem::path(SFTRUN_TEST_DATA) / "train/identity.json"));
  EXPECT_NO_THROW(require_same_identity(older, identity, "c", {}));
  for (const auto& [key, value] : older["config"].items())
    EXPECT_EQ(identity["config"].value(key, nlohmann::ordered_json()), value) << key;
}

/// The first pattern that matches applies.
TEST(Identity, TheOrderOfPatternsMatters) {
  config::RunConfig config;
  config.tuning.lora.alpha_pattern = {{"layers.0.mlp.up_proj", 12}, {".*", 1}};
  const auto saved = identity_of(config, model_of("m"), "d", "");
  EXPECT_NO_THROW(require_same_identity(saved, saved, "c", {}));
  config.tuning.lora.alpha_pattern = {{".*", 1}, {"layers.0.mlp.up_proj", 12}};
  test::expect_error<ConfigError>(
      [&] { require_same_identity(saved, identity_of(config, model_of("m"), "d", ""), "c", {}); },
      {"the order of tuning.lora.alpha_pattern was layers.0.mlp.up_proj, .*, is now .*, layers.0"});
}

TEST(Identity, DamagedListsAreDifferences) {
  config::RunConfig config;
  auto now = identity_of(config, model_of("m"), "d", "", {{"a.jsonl", "1"}});
  add_weights(now, {{"model.safetensors", "h"}});
  auto saved = now;
  for (const auto& damage : {nlohmann::ordered_json::array({1}), nlohmann::ordered_json("x"),
                             nlohmann::ordered_json::array({nlohmann::ordered_json::array()})}) {
    saved["model"]["weights"] = damage;
    test::expect_error<ConfigError>([&] { require_same_identity(saved, now, "c", {}); },
                                    {"model.safetensors"});
  }
}

TEST(Identity, TheLengthMayChangeWherePermitted) {
  config::RunConfig config;
  const auto saved = identity_of(config, model_of("m"), "d", "");
  config.train.epochs = 4;
  config.train.max_steps = 9;
  const auto now = identity_of(config, model_of("m"), "d", "");
  test::expect_error<ConfigError>([&] { require_same_identity(saved, now, "c", {}); },
                                  {"train.epochs was 3", "train.max_steps was"});
  EXPECT_NO_THROW(require_same_identity(saved, now, "c", {.changed_length = true}));
}

TEST(Identity, NamesWhatDiffers) {
  config::RunConfig config;
  const auto saved = identity_of(config, model_of("m"), "d", "");
  EXPECT_NO_THROW(require_same_identity(saved, saved, "c", {}));
  config.train.seed = 7;
  config.train.logging_steps = 99;  // changes nothing that is computed
  config.tuning.backend = config::TuningBackend::kBnb;
  const auto now = identity_of(config, model_of("m2"), "d2", "");
  test::expect_error<ConfigError>(
      [&] { require_same_identity(saved, now, "checkpoints/step-000001", {}); },
      {"the run differs from the checkpoint: another base model", "the training data differ",
       "train.seed was 42, is now 7", "tuning.backend was \"fused\", is now \"bnb\"",
       "checkpoints/step-000001",
       "fix: to resume, give the run the model files that it began with, and give the settings "
       "that "
       "differ their earlier values, and add --allow-changed-data and --allow-backend-change; to "
       "start a new run choose another output.dir, or --overwrite moves this run aside"});
  config = {};
  config.tuning.mode = config::TuningMode::kQlora;
  const auto qlora = identity_of(config, model_of("m"), "d", "");
  config.train.seed = 7;
  test::expect_error<ConfigError>(
      [&] { require_same_identity(qlora, identity_of(config, model_of("m"), "d", ""), "c", {}); },
      {"set tuning.lora.init_from"});
  config = {};
  config.tuning.mode = config::TuningMode::kFull;
  const auto full = identity_of(config, model_of("m"), "d", "");
  config.train.seed = 7;
  test::expect_error<ConfigError>(
      [&] { require_same_identity(full, identity_of(config, model_of("m"), "d", ""), "c", {}); },
      {"train.seed was 42, is now 7", "set model.name to the directory `model`"});
  config = {};
  EXPECT_NO_THROW(require_same_identity(saved, identity_of(config, model_of("m"), "d2", ""), "c",
                                        {.changed_data = true}));
}

TEST(Identity, OffersOnlyWhatWorks) {
  const config::RunConfig config;
  const auto saved = identity_of(config, model_of("m"), "d", "");
  const auto fix_of = [&](const nlohmann::ordered_json& now) {
    try {
      require_same_identity(saved, now, "c", {});
    } catch (const ConfigError& error) {
      return error.fix();
    }
    return std::string();
  };
  const std::string builds_on = "set tuning.lora.init_from to the directory `adapter`";
  config::RunConfig other = config;
  other.tuning.backend = config::TuningBackend::kBnb;
  const std::string permitted = fix_of(identity_of(other, model_of("m"), "d2", ""));
  EXPECT_TRUE(
      permitted.starts_with("--allow-changed-data and --allow-backend-change resume with "
                            "the new data and the new backend; "))
      << permitted;
  EXPECT_NE(permitted.find(builds_on), std::string::npos) << permitted;
  other = config;
  other.train.seed = 7;
  const std::string not_all = fix_of(identity_of(other, model_of("m"), "d2", ""));
  EXPECT_TRUE(
      not_all.starts_with("to resume, give the settings that differ their earlier values, "
                          "and add --allow-changed-data; "))
      << not_all;
  EXPECT_NE(not_all.find(builds_on), std::string::npos) << not_all;
  other = config;
  other.train.global_batch_size.value = 16;
  const std::string batch = fix_of(identity_of(other, model_of("m"), "d", ""));
  EXPECT_NE(batch.find("train.batch_size x train.grad_accum x the number of processes"),
            std::string::npos)
      << batch;
  other = config;
  other.tuning.lora.r = 4;
  const std::string rank = fix_of(identity_of(other, model_of("m"), "d", ""));
  EXPECT_EQ(rank.find("init_from"), std::string::npos) << "the adapter has another rank: " << rank;
  EXPECT_EQ(rank.find("--allow"), std::string::npos) << rank;
}

TEST(Identity, NamesWhatDiffersInTheModel) {
  using Files = std::vector<std::pair<std::string, std::string>>;
  const config::RunConfig config;
  const auto identity = [&](const ModelIdentity& model, const Files& files) {
    auto made = identity_of(config, model, "d", "");
    add_weights(made, files);
    return made;
  };
  const ModelIdentity model = model_of("m");
  const Files files = {{"a-1-of-2", "1"}, {"a-2-of-2", "2"}};
  const auto saved = identity(model, files);
  const auto expect_refused = [&](const nlohmann::ordered_json& now,
                                  std::initializer_list<std::string> parts) {
    test::expect_error<ConfigError>([&] { require_same_identity(saved, now, "c", {}); }, parts);
  };
  const auto changed = [&](auto change) {
    ModelIdentity other = model;
    change(other);
    return identity(other, files);
  };
  EXPECT_NO_THROW(require_same_identity(saved, identity(model, files), "c", {}));
  const Files renamed = {{"b-1", "1"}, {"b-2", "2"}};
  EXPECT_NO_THROW(require_same_identity(saved, identity(model, renamed), "c", {}));
  EXPECT_NO_THROW(require_same_identity(saved, identity_of(config, model, "d", ""), "c", {}))
      << "weights that are not yet known";
  expect_refused(identity(model, {{"a-1-of-2", "1"}, {"a-2-of-2", "3"}}),
                 {"weights have changed: a-2-of-2\n", "the model files that it began with"});
  expect_refused(identity(model, {{"a-1-of-2", "1"}}), {"weights have changed: fewer files"});
  expect_refused(changed([](ModelIdentity& m) { m.configuration["rope_theta"] = 5e4; }),
                 {"the model's configuration: rope_theta was 10000.0, is now 50000.0\n"});
  expect_refused(changed([](ModelIdentity& m) {
                   for (int i = 0; i < 9; ++i) m.configuration[std::to_string(i)] = i;
                 }),
                 {"0 was nothing, is now 0, 1 was nothing, is", "and 4 more"});
  expect_refused(changed([](ModelIdentity& m) { m.tokenizer = "u"; }),
                 {"the tokenizer differs (its hash was \"t\", is now \"u\")\n",
                  "use the tokenizer files that the run began with"});
  const auto other_template = changed([](ModelIdentity& m) { m.chat_template = "e"; });
  expect_refused(other_template, {"the chat template's special tokens", "model.chat_template"});
  EXPECT_NO_THROW(require_same_identity(saved, other_template, "c", {.changed_data = true}));
}

TEST(Identity, NamesWhereTheChatTemplateDiffers) {
  const config::RunConfig config;
  const auto identity = [&](const std::string& source) {
    ModelIdentity model = model_of("m");
    model.chat_template = model.chat_template_source = source;
    return identity_of(config, model, "d", "");
  };
  const auto expect_refused = [&](const std::string& was, const std::string& is,
                                  std::initializer_list<std::string> parts) {
    test::expect_error<ConfigError>(
        [&] { require_same_identity(identity(was), identity(is), "c", {}); }, parts);
  };
  expect_refused("a\nb\nc", "a\nB\nc",
                 {"the chat template differs: line 2 was `b`, is now `B`\n",
                  "use the chat template that the run began with", "another output.dir"});
  expect_refused("a", "a\nb", {"the chat template differs: it has more lines than the 1 it had"});
  expect_refused("a\nb\nc", "a", {"it has 1 line, and had 3"});
  expect_refused(std::string(100, 'x') + "é" + std::string(100, 'y'),
                 std::string(100, 'x') + "è" + std::string(100, 'y'),
                 {"…`xxxxxxxxxxxxxxxxxxxé", "`…, is now …`xxxxxxxxxxxxxxxxxxxè"});
  expect_refused("a", "", {"there was a chat template, now there is none"});
  auto before = identity("a");
  before.erase("chat_template_source");  // of an older version
  test::expect_error<ConfigError>([&] { require_same_identity(before, identity("b"), "c", {}); },
                                  {"the chat template differs\n"});
}

TEST(Identity, NamesTheDataSetsThatDiffer) {
  const config::RunConfig config;
  const auto saved = identity_of(config, model_of("m"), "d", "", {{"a", "1"}, {"b", "2"}});
  const auto expect_refused = [&](const NamedFingerprints& parts, const std::string& message) {
    test::expect_error<ConfigError>(
        [&] {
          require_same_identity(saved, identity_of(config, model_of("m"), "e", "", parts), "c", {});
        },
        {message, "--allow-changed-data resumes with the new data"});
  };
  expect_refused({{"a", "1"}, {"b", "3"}}, "the training data differ: b\n");
  expect_refused({{"a", "1"}}, "the training data differ: without b\n");
  expect_refused({{"a", "1"}, {"b", "2"}, {"x", "4"}}, "the training data differ: x\n");
  expect_refused({{"a", "1"}, {"b", "2"}}, "the training data differ in weight or order\n");
}

std::unique_ptr<model::Decoder> tiny_decoder() {
  model::DecoderOptions options;
  options.trains = model::Trains::kPartial;
  options.trainable = {"layernorm", "q_proj"};
  return model::Decoder::load(
      weights::Checkpoint::open(fs::path(SFTRUN_TEST_DATA) / "models" / "tied-gqa"), options);
}

/// Some of whose tensors have more than 4096 values, no multiple of 256 in mlp.
std::unique_ptr<model::Decoder> larger_decoder() {
  const nlohmann::json config = {{"model_type", "llama"},
                                 {"hidden_size", 72},
                                 {"intermediate_size", 77},
                                 {"num_hidden_layers", 2},
                                 {"num_attention_heads", 4},
                                 {"num_key_value_heads", 2},
                                 {"vocab_size", 90},
                                 {"max_position_embeddings", 64},
                                 {"tie_word_embeddings", false},
                                 {"rms_norm_eps", 1e-6}};
  model::DecoderOptions options;
  options.trains = model::Trains::kFull;
  return model::Decoder::random(spec::ArchSpec::from_hf_config(config, "config.json"), options);
}

void expect_same_state(const AdamW& a, const AdamW& b) {
  const auto of_a = a.state(), of_b = b.state();
  ASSERT_EQ(of_a.size(), of_b.size());
  for (size_t i = 0; i < of_a.size(); ++i) {
    EXPECT_EQ(of_a[i].name, of_b[i].name);
    EXPECT_TRUE(at::equal(of_a[i].values, of_b[i].values)) << of_a[i].name;
  }
}

std::unique_ptr<model::Decoder> adapted_decoder() {
  model::DecoderOptions options;
  options.trains = model::Trains::kLora;
  options.lora.dora = true;
  options.lora.r = 256;  // moments of 4096 values and more are in 8 bits where they may be
  options.lora.modules_to_save = {"model.norm"};
  return model::Decoder::load(
      weights::Checkpoint::open(fs::path(SFTRUN_TEST_DATA) / "models" / "tied-gqa"), options);
}

/// What one step makes of the same adapter and gradients.
std::unique_ptr<model::Decoder> after_a_step(double learning_rate, double loraplus_lr_ratio,
                                             bool is_8bit) {
  const at::NoGradGuard no_grad;
  auto decoder = adapted_decoder();
  layers::ParameterStore& store = decoder->parameters();
  AdamW optimizer(
      store,
      {.weight_decay = 0.1, .is_8bit = is_8bit, .rates = {.loraplus_lr_ratio = loraplus_lr_ratio}});
  store.grad().copy_(test::normal(store.grad().sizes(), 5));
  optimizer.step(learning_rate, 1);
  const auto state = optimizer.state();
  EXPECT_EQ(
      std::any_of(state.begin(), state.end(),
                  [](const StateTensor& part) { return part.values.scalar_type() == at::kByte; }),
      is_8bit);
  return decoder;
}

/// B and what has one dimension, weight decay as ever.
class LoraPlus : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Moments, LoraPlus, testing::Bool(), [](const auto& info) {
  return info.param ? std::string("eight_bits") : std::string("fp32");
});
TEST_P(LoraPlus, SomeLearnFaster) {
  const auto both = after_a_step(1e-3, 5, GetParam()), slow = after_a_step(1e-3, 1, GetParam()),
             fast = after_a_step(5e-3, 1, GetParam());
  int64_t num_fast = 0;
  for (const layers::Parameter& parameter : both->parameters().parameters()) {
    const bool is_fast =
        parameter.name.find("lora_B") != std::string::npos || parameter.shape.size() == 1;
    num_fast += is_fast ? 1 : 0;
    EXPECT_TRUE(at::equal(parameter.master,
                          (is_fast ? fast : slow)->parameters().find(parameter.name)->master))
        << parameter.name;
    EXPECT_FALSE(at::equal(parameter.master,
                           (is_fast ? slow : fast)->parameters().find(parameter.name)->master))
        << parameter.name;
  }
  EXPECT_GT(num_fast, 20);
}

/// An embedding's A and B have a rate of their own, its magnitudes the others'.
TEST(LoraPlusOfEmbeddings, HaveTheirOwnRate) {
  const at::NoGradGuard no_grad;
  model::DecoderOptions options;
  options.trains = model::Trains::kLora;
  options.lora.dora = true;
  options.lora.target_modules = {"embed_tokens"};
  const auto decoder = model::Decoder::load(
      weights::Checkpoint::open(fs::path(SFTRUN_TEST_DATA) / "models" / "tied-gqa"), options);
  AdamW optimizer(decoder->parameters(),
                  {.rates = {.loraplus_lr_ratio = 4, .loraplus_embedding_ratio = 0.25}});
  const at::Tensor before = decoder->parameters().master().clone();
  decoder->parameters().grad().fill_(1);
  optimizer.step(1e-2, 1);
  for (const layers::Parameter& parameter : decoder->parameters().parameters()) {
    const at::Tensor step =
        parameter.master.flatten() - before.narrow(0, parameter.offset, parameter.numel);
    const double ratio = parameter.shape.size() == 1 ? 4 : 0.25;
    EXPECT_NEAR(step.mean().item<double>(), -1e-2 * ratio, 1e-5) << parameter.name;
  }
}

class Checkpoints : public ::testing::Test {
 protected:
  void SetUp() override {
    decoder_ = tiny_decoder();
    optimizer_ = std::make_unique<AdamW>(decoder_->parameters(), AdamWConfig{});
    take_steps(*decoder_, *optimizer_, 3);
  }
  static void take_steps(model::Decoder& decoder, AdamW& optimizer, int count) {
    const at::NoGradGuard no_grad;
    for (int i = 0; i < count; ++i) {
      for (layers::Parameter& p : decoder.parameters().parameters()) {
        p.grad.copy_(test::normal(p.shape, 10 + static_cast<uint64_t>(i)));
      }
      optimizer.step(1e-3, 1);
    }
  }
  void save(int64_t step, std::optional<int64_t> limit = {}) {
    TrainState state;
    state.step = step;
    state.tokens = 1234;
    state.rendered_at_unix_s = 1'700'000'000;
    state.identity = {{"model", "m"}};
    const auto strategy = test::single_strategy(*decoder_);
    CheckpointStore(dir()).save(
        checkpoint_contents(*decoder_, *strategy, *optimizer_, /*is_adapter=*/false), std::nullopt,
        state, optimizer_->steps(), limit);
  }
  fs::path dir() const { return directory_.path() / "checkpoints"; }
  test::TemporaryDirectory directory_;
  std::unique_ptr<model::Decoder> decoder_;
  std::unique_ptr<AdamW> optimizer_;
};

TEST_F(Checkpoints, HoldTheStateOfTheBestEvaluation) {
  fs::create_directories(dir());
  save(3);
  EXPECT_FALSE(read_train_state(CheckpointStore(dir()).path_of(3)).best);
  TrainState state;
  state.step = 8;
  state.identity = {{"model", "m"}};
  state.best = {
      .metric = "eval_loss", .num_evaluations = 4, .value = 0.1, .step = 4, .num_worse = 2};
  state.evaluation_due = true;
  state.answer_seconds = 1.5;
  const auto strategy = test::single_strategy(*decoder_);
  CheckpointStore(dir()).save(
      checkpoint_contents(*decoder_, *strategy, *optimizer_, /*is_adapter=*/false), std::nullopt,
      state, optimizer_->steps(), {});
  const TrainState read = read_train_state(CheckpointStore(dir()).path_of(8));
  EXPECT_EQ(read.best, state.best);
  EXPECT_TRUE(read.evaluation_due);
  EXPECT_EQ(read.answer_seconds, 1.5);
}

TEST_F(Checkpoints, RestoreEveryBitAndGoOn) {
  fs::create_directories(dir());
  save(3);
  const auto other = tiny_decoder();
  AdamW other_optimizer(other->parameters(), AdamWConfig{});
  const fs::path latest = CheckpointStore(dir()).latest().value();
  EXPECT_EQ(latest.filename(), "step-000003");
  restore(latest, *test::single_strategy(*other), other_optimizer);
  EXPECT_EQ(read_train_state(latest).tokens, 1234);
  EXPECT_EQ(read_train_state(latest).rendered_at_unix_s, 1'700'000'000);
  take_steps(*decoder_, *optimizer_, 2);
  take_steps(*other, other_optimizer, 2);
  EXPECT_TRUE(at::equal(decoder_->parameters().master(), other->parameters().master()));
  expect_same_state(*optimizer_, other_optimizer);
}

TEST_F(Checkpoints, RestoreEightBitStatesAsTheyAre) {
  fs::create_directories(dir());
  const AdamWConfig in_8bit{.weight_decay = 0.1, .is_8bit = true};
  decoder_ = larger_decoder();
  optimizer_ = std::make_unique<AdamW>(decoder_->parameters(), in_8bit);
  take_steps(*decoder_, *optimizer_, 3);
  save(3);
  const fs::path checkpoint = CheckpointStore(dir()).latest().value();
  const auto other = larger_decoder();
  AdamW other_optimizer(other->parameters(), in_8bit);
  restore(checkpoint, *test::single_strategy(*other), other_optimizer);
  expect_same_state(*optimizer_, other_optimizer);
  take_steps(*decoder_, *optimizer_, 2);
  take_steps(*other, other_optimizer, 2);
  EXPECT_TRUE(at::equal(decoder_->parameters().master(), other->parameters().master()));
  expect_same_state(*optimizer_, other_optimizer);
  size_t num_8bit = 0;
  for (const StateTensor& part : other_optimizer.state())
    num_8bit += part.values.scalar_type() == at::kByte ? 1 : 0;
  EXPECT_GT(num_8bit, 0U);
  AdamW in_fp32(other->parameters(), AdamWConfig{});
  test::expect_error([&] { restore(checkpoint, *test::single_strategy(*other), in_fp32); },
                     {"lacks exp_avg.", "another size", "optimizer.safetensors"});
}

/// From host memory and into it, and where a run resumes with them elsewhere.
TEST_F(Checkpoints, MomentsOnTheHostComeBack) {
  fs::create_directories(dir());
  for (const bool is_8bit : {false, true}) {
    const AdamWConfig there{.is_8bit = is_8bit, .moments_on_host = true, .values_of_part = 300},
        here{.is_8bit = is_8bit};
    decoder_ = larger_decoder();
    optimizer_ = std::make_unique<AdamW>(decoder_->parameters(), there);
    take_steps(*decoder_, *optimizer_, 3);
    save(is_8bit ? 4 : 3);
    take_steps(*decoder_, *optimizer_, 2);
    for (const AdamWConfig& config : {there, here}) {
      const auto other = larger_decoder();
      AdamW other_optimizer(other->parameters(), config);
      restore(CheckpointStore(dir()).latest().value(), *test::single_strategy(*other),
              other_optimizer);
      take_steps(*other, other_optimizer, 2);
      EXPECT_TRUE(at::equal(decoder_->parameters().master(), other->parameters().master()));
      expect_same_state(*optimizer_, other_optimizer);
    }
  }
}

TEST(Identity, TheOptimizerBelongsToTheRun) {
  config::RunConfig config;
  const auto saved = identity_of(config, model_of("m"), "d", "");
  config.train.optimizer = config::Optimizer::kAdamW8bit;
  test::expect_error<ConfigError>(
      [&] { require_same_identity(saved, identity_of(config, model_of("m"), "d", ""), "c", {}); },
      {"train.optimizer was \"adamw\", is now \"adamw_8bit\""});
}

TEST_F(Checkpoints, WhatTheRunDidNotWriteIsNeitherCountedNorRemoved) {
  fs::create_directories(dir());
  const auto write_another = [&](int64_t step) {  // of another run, which began at another time
    const fs::path folder = CheckpointStore(dir()).path_of(step);
    fs::create_directories(folder);
    TrainState state;
    state.step = step;
    state.identity = {{"model", "m"}};
    write_state(folder, state, 0);
  };
  fs::create_directories(dir() / "step-001000");                       // a later step
  write_file_atomically(dir() / "step-000000", "a file");              // no folder
  fs::create_directories(dir() / "step-000002");                       // without state.json
  fs::create_directory_symlink("step-000001", dir() / "step-000001");  // a circle
  write_another(3);
  write_another(2000);
  for (const int64_t step : {4, 5, 6, 7}) save(step, 2);
  const auto is_there = [&](const char* name) {
    return fs::exists(fs::symlink_status(dir() / name));
  };
  for (const char* name : {"step-001000", "step-000000", "step-000002", "step-000001",
                           "step-000003", "step-002000", "step-000006", "step-000007"})
    EXPECT_TRUE(is_there(name)) << name;
  EXPECT_FALSE(is_there("step-000004"));
  EXPECT_FALSE(is_there("step-000005"));
  EXPECT_EQ(CheckpointStore(dir()).newest_step(7), 7);
}

/// Hours of training are not lost because something took the name.
TEST_F(Checkpoints, SomethingElseOfTheNameIsSetAside) {
  fs::create_directories(dir() / "step-000003");
  write_file_atomically(dir() / "step-000003" / "notes.txt", "x");
  write_file_atomically(dir() / "step-000004", "");
  fs::create_directory_symlink("step-000005", dir() / "step-000005");
  for (const int64_t step : {3, 4, 5}) {
    save(step);
    verify_checkpoint(CheckpointStore(dir()).path_of(step));
  }
  EXPECT_EQ(read_text_file(dir() / "abandoned-step-000003" / "notes.txt"), "x");
}

TEST_F(Checkpoints, ACircleOfLinksIsSkippedLikeADamagedOne) {
  fs::create_directories(dir());
  save(3);
  fs::create_directory_symlink("step-000004", dir() / "step-000004");
  fs::create_directories(dir() / "step-000005");
  fs::create_symlink("state.json", dir() / "step-000005" / "state.json");
  EXPECT_EQ(CheckpointStore(dir()).latest().value().filename(), "step-000003");
  test::expect_error<DataError>([&] { read_train_state(dir() / "step-000004"); },
                                {"Too many levels of symbolic links"});
  CheckpointStore(dir()).set_later_aside(3);
  EXPECT_FALSE(fs::exists(fs::symlink_status(dir() / "step-000004")));
}

TEST_F(Checkpoints, LaterOnesAreSetAsideNotLost) {
  fs::create_directories(dir());
  for (const int64_t step : {1, 2, 3}) save(step);
  CheckpointStore(dir()).set_later_aside(1);
  EXPECT_EQ(CheckpointStore(dir()).latest().value().filename(), "step-000001");
  EXPECT_TRUE(fs::exists(dir() / "abandoned-step-000002" / "state.json"));
  EXPECT_TRUE(fs::exists(dir() / "abandoned-step-000003" / "state.json"));
  save(3);
  EXPECT_EQ(CheckpointStore(dir()).latest().value().filename(), "step-000003");
}

TEST_F(Checkpoints, TheNewestWholeOneCounts) {
  fs::create_directories(dir());
  const CheckpointStore store(dir());
  EXPECT_FALSE(store.latest().has_value());
  EXPECT_FALSE(store.holds_any());
  for (const int64_t step : {1, 2, 3, 4}) save(step);
  fs::remove(dir() / "step-000004" / "state.json");
  {  // of the right length, with other bytes
    std::fstream file(dir() / "step-000003" / "trainable.safetensors",
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-4, std::ios::end);
    file.write("\xff\xff\xff\xff", 4);
  }
  EXPECT_EQ(store.latest().value().filename(), "step-000002");
  test::expect_error([&] { verify_checkpoint(dir() / "step-000003"); },
                     {"damaged", "the contents of trainable.safetensors changed"});
  fs::remove(dir() / "step-000002" / "optimizer.safetensors");
  fs::resize_file(dir() / "step-000001" / "optimizer.safetensors", 10);
  test::expect_error([&] { store.latest(); },
                     {"no checkpoint of the run is complete (4 checked)", "state.json is missing",
                      "choose another output.dir", "aside with --overwrite"});
  EXPECT_TRUE(store.holds_any());
}

TEST_F(Checkpoints, OldestGoFirstAndLeftoversGo) {
  fs::create_directories(dir() / ".unfinished-step-000009-1");
  for (const int64_t step : {1, 2, 3, 10}) save(step, 2);
  CheckpointStore(dir()).remove_leftovers();
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(dir())) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"step-000003", "step-000010"}));
}

/// Of state.json, whatever it means: no bit may differ, nothing may be missing or be added.
TEST_F(Checkpoints, EveryByteOfTheStateCounts) {
  fs::create_directories(dir());
  for (const int64_t step : {1, 2}) save(step);
  const fs::path newest = dir() / "step-000002", state = newest / "state.json";
  const std::string whole = read_text_file(state);
  const auto expect_damage = [&](const std::string& text) {
    std::ofstream(state) << text;
    test::expect_error([&] { verify_checkpoint(newest); }, {"state file is damaged"});
    EXPECT_THROW(read_train_state(newest), DataError);
  };
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string flipped = whole;
    flipped[i] = static_cast<char>(flipped[i] ^ (1 << i % 7));
    expect_damage(flipped);
    if (i % 16 == 0) expect_damage(whole.substr(0, i));
  }
  expect_damage(whole + " ");
  std::string without_a_file = whole;
  const size_t entry = without_a_file.find("    \"optimizer.safetensors\"");
  without_a_file.erase(entry, without_a_file.find('}', entry) + 2 - entry);
  expect_damage(without_a_file);
  EXPECT_EQ(CheckpointStore(dir()).latest().value().filename(), "step-000001");
  std::ofstream(state) << whole;
  EXPECT_EQ(CheckpointStore(dir()).latest().value(), newest);
}

TEST_F(Checkpoints, OfAnOlderVersionAreNamedSo) {
  fs::create_directories(dir());
  save(1);
  const fs::path checkpoint = dir() / "step-000001";
  const auto expect_older = [&](const std::string& state) {
    std::ofstream(checkpoint / "state.json") << state;
    test::expect_error([&] { read_train_state(checkpoint); },
                       {"of an older version of sftrun", "finish the run with the version"});
  };
  expect_older(R"({"format": 2, "step": 1})");
  const std::string object = "{\n  \"format\": 3\n}\n";  // with its fingerprint as first key
  const std::string sum = Fingerprint().add(object.data(), object.size()).hex();
  expect_older("{\n  \"fingerprint\": \"" + sum + "\"," + object.substr(1));
}

TEST_F(Checkpoints, DamageIsNoticed) {
  fs::create_directories(dir());
  save(3);
  const fs::path checkpoint = dir() / "step-000003";
  fs::resize_file(checkpoint / "optimizer.safetensors", 100);
  test::expect_error([&] { read_train_state(checkpoint); },
                     {"incomplete", "optimizer.safetensors has 100 bytes", "remove this"});
  for (const char* damaged : {"{", "[]", R"({"step": "x", "files": {}})"}) {
    std::ofstream(checkpoint / "state.json") << damaged;
    test::expect_error([&] { read_train_state(checkpoint); },
                       {"state file is damaged", "state.json"});
  }
  std::ofstream(checkpoint / "state.json") << "{";
  test::expect_error([&] { read_train_state(checkpoint); },
                     {"state file is damaged", "state.json"});
  fs::remove(checkpoint / "state.json");
  test::expect_error([&] { read_train_state(checkpoint); }, {"state.json is missing"});
}

}  // namespace
}  // namespace sftrun::train
