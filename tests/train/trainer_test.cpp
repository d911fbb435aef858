#include "sftrun/train/trainer.h"

#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <string>

#include "sftrun/core/file.h"
#include "sftrun/core/interruption.h"
#include "sftrun/core/log.h"
#include "sftrun/model/adapter_io.h"
#include "sftrun/parallel/tensor_group.h"
#include "support/expect_error.h"
#include "support/half_of_everything.h"
#include "support/load_in_shards.h"
#include "support/rank_threads.h"
#include "support/reference.h"
#include "support/temporary_directory.h"
#include "tiny_run.h"

/// The training loop as it is, over several strategies.
namespace sftrun::train {
namespace {

namespace fs = std::filesystem;

using test::kStepsOfRun, test::model_path, test::RepeatedBatches;

struct RunSetup {
  model::DecoderOptions decoder;
  config::Optimizer optimizer = config::Optimizer::kAdamW;
  bool is_sharded = false;  ///< by the toy strategy
  config::Strategy strategy = config::Strategy::kDdp;
  bool frozen_on_host = false, trained_on_host = false;
  config::Fetch fetch = config::Fetch::kPerMicroBatch;
  int64_t channels_at_once = 1;       ///< tensor parallelism: see `TensorParallel::multiple`
  int64_t stops_after = kStepsOfRun;  ///< with a checkpoint
  bool longest_batch_first = false, deals_by_cost = false;
  config::SaveStrategy save_strategy = config::SaveStrategy::kSteps;
  std::string build = "abc";
  int stops_when_asked =
      0;  ///< the last rank in an evaluation, by its answer to this question; 0: never

  /// The same training with shards.
  RunSetup sharded() const {
    RunSetup setup = *this;
    setup.is_sharded = true;
    setup.decoder.buffers = layers::BufferLayout::per_unit();
    return setup;
  }
};

config::RunConfig configuration(const RunSetup& setup) {
  config::RunConfig config;
  config.train.batch_size.value = 1;
  config.train.grad_accum.value = 3;  // six places for five bins
  config.train.learning_rate = 1e-2;
  config.train.optimizer = setup.optimizer;
  config.train.weight_decay = 0.1;
  config.train.max_grad_norm = 0;
  config.train.scheduler = config::Scheduler::kConstant;
  config.train.warmup_steps = 0;
  config.parallel.strategy = setup.strategy;
  config.parallel.fetch = setup.fetch;
  config.train.eval_strategy = config::EvalStrategy::kSteps;
  config.train.eval_steps = 2;
  config.train.eval_batch_size.value = 1;
  config.train.save_strategy = setup.save_strategy;
  config.data.packing = false;
  config.output.tensorboard = false;
  return config;
}

/// Three documents: of two ranks, one evaluates two of them and the other one.
data::Dataset validation_set() {
  std::vector<data::Example> examples = test::read_reference(model_path()).examples;
  examples.push_back(examples[0]);
  return {data::ExampleStore::in_memory(examples), {}, {}, "v"};
}

/// Trains `kStepsOfRun` steps, or goes on from a checkpoint.
void train(parallel::Communicator& comm, const RunSetup& setup, const fs::path& run_dir,
           const std::optional<fs::path>& resume_from = {}) {
  const config::RunConfig config = configuration(setup);
  model::DecoderOptions options = setup.decoder;
  auto shards = test::load_in_shards(config.parallel.strategy, comm, options, setup.frozen_on_host,
                                     setup.trained_on_host);
  parallel::MeshGroups groups(comm, test::mesh_of(setup.strategy, comm));
  std::optional<parallel::TensorGroup> tensor_group;
  if (groups.mesh().sizes().tp > 1) {
    tensor_group.emplace(groups);
    options.tensor = {.rank = groups.mesh().rank(parallel::Axis::kTp),
                      .size = 2,
                      .multiple = setup.channels_at_once};
    options.tensor_ranks = &*tensor_group;
  }
  auto decoder = model::Decoder::load(weights::Checkpoint::open(model_path()), options);
  const parallel::DistributedModel model{decoder->parameters(), decoder->units(),
                                         decoder->options().device};
  std::unique_ptr<parallel::Strategy> strategy;
  if (setup.is_sharded) {
    strategy = std::make_unique<test::HalfOfEverything>(comm, model);
  } else {
    const bool reads_masters =
        options.trains == model::Trains::kLora || decoder->backend().reads_masters;
    strategy = parallel::make_strategy(
        {.name = std::string(config::strategy_name(config.parallel.strategy)),
         .passes_read_masters = reads_masters},
        groups, model, std::move(shards));
  }
  RepeatedBatches batches;
  TrainerInputs inputs;
  inputs.config = config;
  inputs.run_dir = run_dir;
  inputs.decoder = decoder.get();
  inputs.comm = &comm;
  inputs.strategy = strategy.get();
  inputs.batches = &batches;
  if (setup.deals_by_cost) {
    inputs.bin_cost = [](const data::ExampleStore& examples, const data::Bin& bin) -> int64_t {
      return 1000 + examples.stored(bin[0]).length * (bin[0] % 3);
    };
    batches.deal_with({.cost = inputs.bin_cost, .parts = groups.mesh().dp_size()});
  }
  const data::Dataset val = validation_set();
  inputs.val = &val;
  inputs.identity = {{"model", "m"}, {"config", {{"model.dtype", "fp32"}}}};
  inputs.resume_from = resume_from;
  inputs.longest_batch_first = setup.longest_batch_first;
  if (setup.longest_batch_first) inputs.tried_by = {data::tokens_of};
  if (setup.decoder.trains == model::Trains::kLora)
    inputs.adapter = model::adapter_config_of(*decoder, "");
  int64_t num_queued = resume_from ? 2 : 0, num_evaluated = 0;
  bool has_fitted = false, evaluates = false;
  inputs.hooks.on_event = [&](const TrainEvent& event) {
    has_fitted = has_fitted || event.phase == std::string("fitting");
    evaluates = event.phase == std::string("evaluating");
  };
  const bool is_last_rank = comm.rank() + 1 == comm.world_size();
  const bool stops_in_step = setup.stops_when_asked == 0 && setup.stops_after < kStepsOfRun;
  inputs.hooks.stop_exit_code = [&] {
    if (evaluates) return is_last_rank && ++num_evaluated == setup.stops_when_asked ? 75 : 0;
    return stops_in_step && ++num_queued == setup.stops_after ? 75 : 0;
  };
  inputs.build = {.version = "1.2.3", .id = setup.build};
  Trainer trainer(std::move(inputs));
  EXPECT_EQ(trainer.run().last_step, setup.stops_after);
  EXPECT_EQ(has_fitted, setup.longest_batch_first);
  comm.leave();
}

std::vector<nlohmann::json> metrics(const fs::path& run_dir) {
  std::vector<nlohmann::json> lines;
  std::ifstream file(run_dir / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

/// The bytes of each tensor of a checkpoint, in whole tensors or in parts named "tensor@begin".
std::map<std::string, std::string> tensors_of(const fs::path& checkpoint) {
  std::map<std::string, std::map<int64_t, std::string>> parts;
  for (const auto& file : fs::directory_iterator(checkpoint)) {
    if (file.path().extension() != ".safetensors") continue;
    const weights::SafetensorsFile content(file.path());
    for (const weights::SafetensorsEntry& entry : content.entries()) {
      const size_t at = entry.name.rfind('@');
      const int64_t begin = at == std::string::npos ? 0 : std::stoll(entry.name.substr(at + 1));
      parts[entry.name.substr(0, at)][begin].assign(
          reinterpret_cast<const char*>(entry.bytes.data()), entry.bytes.size());
    }
  }
  std::map<std::string, std::string> tensors;
  for (const auto& [name, of_tensor] : parts)
    for (const auto& [begin, bytes] : of_tensor) tensors[name] += bytes;
  return tensors;
}

void expect_same_run(const fs::path& one, const fs::path& other) {
  const auto expected = metrics(one), actual = metrics(other);
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t line = 0; line < actual.size(); ++line) {
    for (const char* key : {"step", "loss", "eval_loss", "eval_perplexity"})
      EXPECT_EQ(actual[line].value(key, 0.0), expected[line].value(key, 0.0)) << key << line;
    if (!actual[line].contains("grad_norm")) continue;
    EXPECT_NEAR(actual[line]["grad_norm"].get<double>() / expected[line]["grad_norm"].get<double>(),
                1, 1e-6);  // partial sums are in another order
  }
  EXPECT_EQ(actual.size(), static_cast<size_t>(kStepsOfRun) + 2) << "two evaluations";
  EXPECT_LT(actual[kStepsOfRun]["loss"].get<double>(), actual[0]["loss"].get<double>());
  const fs::path checkpoint = fs::path("checkpoints") / "step-000004";
  const auto tensors = tensors_of(one / checkpoint), others = tensors_of(other / checkpoint);
  ASSERT_EQ(others.size(), tensors.size());
  for (const auto& [name, bytes] : tensors) {
    const auto found = others.find(name);
    EXPECT_TRUE(found != others.end() && found->second == bytes) << name;
  }
}

void train_on_two_ranks(const RunSetup& setup, const fs::path& run_dir,
                        const std::optional<fs::path>& resume_from = {}) {
  test::run_ranks(2,
                  [&](parallel::Communicator& comm) { train(comm, setup, run_dir, resume_from); });
}

void expect_shards_train_alike(const RunSetup& setup) {
  const test::TemporaryDirectory whole, sharded;
  train_on_two_ranks(setup, whole.path());
  train_on_two_ranks(setup.sharded(), sharded.path());
  expect_same_run(whole.path(), sharded.path());
}

TEST(ShardedTraining, OfAnAdapterBesideNf4Bytes) {
  RunSetup setup;
  setup.decoder.trains = model::Trains::kLora;
  setup.decoder.lora.dropout = 0.1;
  setup.decoder.base.quant = QuantOptions{};
  expect_shards_train_alike(setup);
}

TEST(ShardedTraining, OfAllWeightsWithATiedHead) {
  RunSetup setup;
  setup.decoder.trains = model::Trains::kFull;
  expect_shards_train_alike(setup);
  setup.decoder.gradient_checkpointing = true;
  setup.optimizer = config::Optimizer::kLion;
  expect_shards_train_alike(setup);
}

/// Compares the fp32 tensors of two checkpoints.
void expect_close_tensors(const fs::path& one, const fs::path& other, float tolerance) {
  auto expected = tensors_of(one), actual = tensors_of(other);
  ASSERT_EQ(actual.size(), expected.size());
  for (auto& [name, bytes] : expected) {
    ASSERT_EQ(actual[name].size(), bytes.size()) << name;
    const auto numel = static_cast<int64_t>(bytes.size() / sizeof(float));
    const at::Tensor a = at::from_blob(bytes.data(), {numel}, at::kFloat),
                     b = at::from_blob(actual[name].data(), {numel}, at::kFloat);
    EXPECT_LE((a - b).abs().max().item<float>(), tolerance * a.abs().max().item<float>()) << name;
  }
}

/// @param rounding_grows the optimizer rounds to 16 bits in between
void expect_close_runs(const fs::path& one, const fs::path& other, bool rounding_grows = false) {
  const auto expected = metrics(one), actual = metrics(other);
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t line = 0; line < actual.size(); ++line) {
    for (const char* key : {"loss", "eval_loss", "grad_norm"}) {
      if (!expected[line].contains(key)) continue;
      EXPECT_NEAR(actual[line][key].get<double>() / expected[line][key].get<double>(), 1,
                  rounding_grows ? 1e-3 : 4e-6)
          << key << " in line " << line;
    }
  }
  const fs::path checkpoint = fs::path("checkpoints") / "step-000004";
  expect_close_tensors(one / checkpoint, other / checkpoint, rounding_grows ? 2e-2F : 1e-4F);
}

void expect_trains_as_on_two_ranks(const RunSetup& setup, config::Strategy strategy,
                                   int num_ranks) {
  const test::TemporaryDirectory ddp, divided;
  train_on_two_ranks(setup, ddp.path());
  RunSetup other = setup;
  other.strategy = strategy;
  test::run_ranks(num_ranks,
                  [&](parallel::Communicator& comm) { train(comm, other, divided.path()); });
  expect_close_runs(ddp.path(), divided.path(), setup.optimizer == config::Optimizer::kMuon);
}

/// @param whole a run of ddp on two ranks
void expect_continues(const RunSetup& whole, const RunSetup& divided, int num_ranks) {
  const test::TemporaryDirectory straight;
  train_on_two_ranks(whole, straight.path());
  for (const bool is_divided_first : {true, false}) {
    const test::TemporaryDirectory dir;
    const auto run = [&](bool is_divided, int64_t stops_after,
                         const std::optional<fs::path>& resume_from) {
      RunSetup setup = is_divided ? divided : whole;
      setup.stops_after = stops_after;
      test::run_ranks(is_divided ? num_ranks : 2, [&](parallel::Communicator& comm) {
        train(comm, setup, dir.path(), resume_from);
      });
    };
    run(is_divided_first, 2, {});
    run(!is_divided_first, kStepsOfRun, dir.path() / "checkpoints" / "step-000002");
    expect_close_runs(straight.path(), dir.path());
  }
}

/// Each strategy, over the number of ranks that it needs, trains as ddp does on two.
class Strategies : public testing::TestWithParam<std::pair<config::Strategy, int>> {
 protected:
  static void expect_trains_as_ddp(const RunSetup& setup) {
    expect_trains_as_on_two_ranks(setup, GetParam().first, GetParam().second);
  }
};
INSTANTIATE_TEST_SUITE_P(
    All, Strategies,
    testing::Values(std::pair{config::Strategy::kZero1, 2}, std::pair{config::Strategy::kZero2, 2},
                    std::pair{config::Strategy::kZero3, 2}, std::pair{config::Strategy::kFsdp, 3},
                    std::pair{config::Strategy::kHybrid, 4},
                    std::pair{config::Strategy::kPipeline, 4}),
    [](const auto& info) { return std::string(config::strategy_name(info.param.first)); });

TEST_P(Strategies, AnAdapterOverNf4) {
  RunSetup setup;
  setup.decoder.trains = model::Trains::kLora;
  setup.decoder.lora.dropout = 0.1;
  setup.decoder.base.quant = QuantOptions{};
  expect_trains_as_ddp(setup);
}

TEST_P(Strategies, AllWeightsWithATiedHead) {
  RunSetup setup;
  setup.decoder.trains = model::Trains::kFull;
  expect_trains_as_ddp(setup);
}

/// A run is the same to the bit if the longest micro-batch was computed before the first step.
void expect_same_after_longest_batch(const RunSetup& setup, int num_ranks) {
  RunSetup longest_first = setup;
  longest_first.longest_batch_first = true;
  const test::TemporaryDirectory plain, other;
  test::run_ranks(num_ranks,
                  [&](parallel::Communicator& comm) { train(comm, setup, plain.path()); });
  test::run_ranks(num_ranks,
                  [&](parallel::Communicator& comm) { train(comm, longest_first, other.path()); });
  expect_same_run(plain.path(), other.path());
  const auto expected = metrics(plain.path()), actual = metrics(other.path());
  for (size_t line = 0; line < expected.size(); ++line)
    EXPECT_EQ(actual[line].value("grad_norm", 0.0), expected[line].value("grad_norm", 0.0));
}

TEST_P(Strategies, AreTheSameAfterTheLongestBatch) {
  RunSetup adapter, full;
  adapter.decoder.trains = model::Trains::kLora;
  adapter.decoder.lora.dropout = 0.1;
  full.decoder.trains = model::Trains::kFull;
  for (RunSetup setup : {adapter, full}) {
    setup.strategy = GetParam().first;
    expect_same_after_longest_batch(setup, GetParam().second);
  }
}

TEST(LongestBatchFirst, ChangesNothing) {
  RunSetup setup;
  setup.decoder.trains = model::Trains::kFull;
  expect_same_after_longest_batch(setup, 1);
  expect_same_after_longest_batch(setup, 2);
  RunSetup tensor = setup;
  tensor.strategy = config::Strategy::kTensor;
  expect_same_after_longest_batch(tensor, 2);
  setup.strategy = config::Strategy::kFsdp;
  setup.fetch = config::Fetch::kPerStep;
  setup.trained_on_host = true;
  expect_same_after_longest_batch(setup, 2);
}

/// A step has the same sequences, with the same dropout; sums are in another order.
TEST(DealtByCost, TrainsAsInOrder) {
  RunSetup adapter, full;
  adapter.decoder.trains = model::Trains::kLora;
  adapter.decoder.lora.dropout = 0.1;
  full.decoder.trains = model::Trains::kFull;
  for (const RunSetup& setup : {adapter, full}) {
    const test::TemporaryDirectory in_order;
    train_on_two_ranks(setup, in_order.path());
    for (const auto strategy : {config::Strategy::kDdp, config::Strategy::kFsdp}) {
      RunSetup dealt = setup;
      dealt.strategy = strategy;
      dealt.deals_by_cost = true;
      const test::TemporaryDirectory by_cost;
      train_on_two_ranks(dealt, by_cost.path());
      expect_close_runs(in_order.path(), by_cost.path());
    }
  }
}

/// Autograd does not see that the memory of weights was released and gathered again.
TEST_P(Strategies, AllWeightsUnderAutograd) {
  RunSetup setup;
  setup.decoder.trains = model::Trains::kFull;
  setup.decoder.backend = &layers::plain_backend();
  expect_trains_as_ddp(setup);
}

/// A checkpoint of one strategy and number of ranks is continued under another.
TEST_P(Strategies, ContinuesARunOfDdpAndTheOtherWayRound) {
  RunSetup whole;
  whole.decoder.trains = model::Trains::kFull;
  RunSetup divided = whole;
  divided.strategy = GetParam().first;
  expect_continues(whole, divided, GetParam().second);
}

/// Frozen weights are copied for each use, whether or not they are divided.
TEST(OffloadedTraining, OfAnAdapterBesideNf4Bytes) {
  for (const auto strategy :
       {config::Strategy::kDdp, config::Strategy::kZero2, config::Strategy::kFsdp}) {
    RunSetup setup;
    setup.decoder.trains = model::Trains::kLora;
    setup.decoder.base.quant = QuantOptions{};
    setup.decoder.gradient_checkpointing = true;
    RunSetup offloaded = setup;
    offloaded.strategy = strategy;
    offloaded.frozen_on_host = true;
    const test::TemporaryDirectory plain, from_host, from_host_per_step;
    train_on_two_ranks(setup, plain.path());
    train_on_two_ranks(offloaded, from_host.path());
    expect_close_runs(plain.path(), from_host.path());
    offloaded.fetch = config::Fetch::kPerStep;
    train_on_two_ranks(offloaded, from_host_per_step.path());
    expect_close_runs(plain.path(), from_host_per_step.path());
  }
}

/// The micro-batches of a step pass each unit one after the other, which brings it once. With whole
/// weights the sums are the same, in the same order; embedding and head are not tied.
TEST(FetchPerStep, TrainsAsPerMicroBatch) {
  RunSetup adapter;
  adapter.decoder.trains = model::Trains::kLora;
  adapter.decoder.lora.dropout = 0.1;
  adapter.decoder.gradient_checkpointing = true;
  RunSetup full;
  full.decoder.trains = model::Trains::kFull;
  for (const RunSetup& setup : {adapter, full}) {
    const test::TemporaryDirectory plain;
    train_on_two_ranks(setup, plain.path());
    for (const auto strategy :
         {config::Strategy::kDdp, config::Strategy::kZero2, config::Strategy::kFsdp}) {
      RunSetup per_step = setup;
      per_step.strategy = strategy;
      per_step.fetch = config::Fetch::kPerStep;
      const test::TemporaryDirectory once;
      train_on_two_ranks(per_step, once.path());
      expect_close_runs(plain.path(), once.path());
    }
  }
}

TEST(OffloadedTraining, OfSomeWeights) {
  RunSetup setup;
  setup.decoder.trains = model::Trains::kPartial;
  setup.decoder.trainable = {"norm", "layers\\.1\\..*down_proj"};
  for (const auto optimizer : {config::Optimizer::kAdamW, config::Optimizer::kAdafactor}) {
    setup.optimizer = optimizer;
    RunSetup offloaded = setup;
    offloaded.frozen_on_host = true;
    const test::TemporaryDirectory plain, from_host;
    train_on_two_ranks(setup, plain.path());
    train_on_two_ranks(offloaded, from_host.path());
    expect_close_runs(plain.path(), from_host.path());
  }
}

/// Strategies whose trained weights may wait in host memory, over the number of ranks.
constexpr std::array kStrategiesOnHost = {std::pair{config::Strategy::kDdp, 2},
                                          std::pair{config::Strategy::kFsdp, 2},
                                          std::pair{config::Strategy::kHybrid, 4}};

/// Weights are brought for each use, and gradients are added up on the host. Backends read copies in
/// the compute dtype (fused) or masters (plain).
TEST(TrainedOnHost, TrainsAsDdp) {
  RunSetup full;
  full.decoder.trains = model::Trains::kFull;
  RunSetup autograd = full;
  autograd.decoder.backend = &layers::plain_backend();
  RunSetup some;
  some.decoder.trains = model::Trains::kPartial;
  some.decoder.trainable = {"norm", "layers\\.1\\..*down_proj"};
  some.decoder.gradient_checkpointing = true;
  RunSetup adapter;
  adapter.decoder.trains = model::Trains::kLora;
  adapter.decoder.base.quant = QuantOptions{};
  for (const RunSetup& setup : {full, autograd, some, adapter}) {
    const test::TemporaryDirectory plain;
    train_on_two_ranks(setup, plain.path());
    for (const auto& [strategy, num_ranks] : kStrategiesOnHost) {
      RunSetup on_host = setup;
      on_host.strategy = strategy;
      on_host.trained_on_host = true;
      on_host.frozen_on_host = setup.decoder.trains == model::Trains::kPartial;
      on_host.fetch = strategy == config::Strategy::kFsdp ? config::Fetch::kPerStep
                                                          : config::Fetch::kPerMicroBatch;
      const test::TemporaryDirectory dir;
      test::run_ranks(num_ranks,
                      [&](parallel::Communicator& comm) { train(comm, on_host, dir.path()); });
      expect_close_runs(plain.path(), dir.path());
    }
  }
}

TEST(TrainedOnHost, WithOtherOptimizers) {
  for (const auto& [optimizer, strategy] :
       {std::pair{config::Optimizer::kAdamW8bit, config::Strategy::kFsdp},
        std::pair{config::Optimizer::kPagedAdamW, config::Strategy::kFsdp},
        std::pair{config::Optimizer::kLion, config::Strategy::kFsdp},
        std::pair{config::Optimizer::kMuon, config::Strategy::kDdp}}) {
    RunSetup setup;
    setup.decoder.trains = model::Trains::kFull;
    setup.optimizer = optimizer;
    RunSetup on_host = setup;
    on_host.strategy = strategy;
    on_host.trained_on_host = true;
    const test::TemporaryDirectory plain, dir;
    train_on_two_ranks(setup, plain.path());
    train_on_two_ranks(on_host, dir.path());
    expect_close_runs(plain.path(), dir.path(), optimizer == config::Optimizer::kMuon);
  }
}

TEST(TrainedOnHost, ContinuesARunOfDdpAndTheOtherWayRound) {
  RunSetup whole;
  whole.decoder.trains = model::Trains::kFull;
  for (const auto& [strategy, num_ranks] : kStrategiesOnHost) {
    RunSetup on_host = whole;
    on_host.strategy = strategy;
    on_host.trained_on_host = true;
    expect_continues(whole, on_host, num_ranks);
  }
}

/// The matrices of a stage are whole, but a rank has state for its own stage alone.
TEST(PipelineTraining, WithOptimizersThatNeedWholeMatrices) {
  for (const config::Optimizer optimizer :
       {config::Optimizer::kAdafactor, config::Optimizer::kMuon, config::Optimizer::kAdamW8bit}) {
    RunSetup setup;
    setup.decoder.trains = model::Trains::kFull;
    setup.optimizer = optimizer;
    expect_trains_as_on_two_ranks(setup, config::Strategy::kPipeline, 4);
  }
}

/// Two groups of two ranks, each of which has a part of every matrix.
TEST(TensorTraining, TrainsAsDdp) {
  RunSetup adapter;
  adapter.decoder.trains = model::Trains::kLora;
  adapter.decoder.lora.dropout = 0.1;
  RunSetup recomputed = adapter;
  recomputed.decoder.gradient_checkpointing = true;
  RunSetup in_int8 = adapter;
  in_int8.decoder.base.quant = QuantOptions{.format = QuantFormat::kInt8};
  RunSetup full;
  full.decoder.trains = model::Trains::kFull;
  RunSetup partial;
  partial.decoder.trains = model::Trains::kPartial;
  partial.decoder.trainable = {"norm", "down_proj", "embed"};
  for (const RunSetup& setup : {adapter, recomputed, in_int8, full, partial})
    expect_trains_as_on_two_ranks(setup, config::Strategy::kTensor, 4);
}

/// Checkpoints hold whole tensors, whatever the parts.
TEST(TensorTraining, ContinuesARunOfDdpAndTheOtherWayRound) {
  RunSetup whole;
  whole.decoder.trains = model::Trains::kFull;
  RunSetup divided = whole;
  divided.strategy = config::Strategy::kTensor;
  divided.channels_at_once = 4;  // unequal parts of the MLP
  expect_continues(whole, divided, 4);
}

/// Either strategy continues the run of the other, from whole tensors or from parts.
TEST(ShardedTraining, ResumesFromCheckpointsOfEitherStrategy) {
  RunSetup setup;
  setup.decoder.trains = model::Trains::kFull;
  const test::TemporaryDirectory straight;
  train_on_two_ranks(setup, straight.path());
  for (const bool is_sharded_first : {true, false}) {
    RunSetup first = is_sharded_first ? setup.sharded() : setup;
    first.stops_after = 2;
    const test::TemporaryDirectory dir;
    train_on_two_ranks(first, dir.path());
    train_on_two_ranks(is_sharded_first ? setup : setup.sharded(), dir.path(),
                       dir.path() / "checkpoints" / "step-000002");
    expect_same_run(straight.path(), dir.path());
  }
}

/// A stop while the tensors of a checkpoint are read, whole or in parts, ends the start of the run and
/// changes nothing.
TEST(Resuming, IsInterruptedByAStop) {
  RunSetup whole;
  whole.decoder.trains = model::Trains::kFull;
  for (const RunSetup& setup : {whole, whole.sharded()}) {
    const test::TemporaryDirectory straight, dir;
    train_on_two_ranks(setup, straight.path());
    RunSetup first = setup, interrupted = setup;
    first.stops_after = 2;
    train_on_two_ranks(first, dir.path());
    const fs::path checkpoint = dir.path() / "checkpoints" / "step-000002";
    interrupted.decoder.stop_point = [] {};
    {
      const Interruptible scope([] { return true; });
      test::run_ranks(2, [&](parallel::Communicator& comm) {
        comm.barrier("connected");  // rank 0 leaves at once, and the store with it
        EXPECT_THROW(train(comm, interrupted, dir.path(), checkpoint), Interrupted);
      });
    }
    train_on_two_ranks(setup, dir.path(), checkpoint);
    expect_same_run(straight.path(), dir.path());
  }
}

/// The loss on a validation set is the mean over its label tokens, on any number of ranks.
TEST(Evaluation, IsOfTheWholeSetOnAnyNumberOfRanks) {
  const data::Dataset val = validation_set();
  const config::RunConfig config = configuration({});
  std::vector<double> losses;
  for (const int world_size : {1, 2, 4}) {
    std::vector<double> of_rank(static_cast<size_t>(world_size));
    test::run_ranks(world_size, [&](parallel::Communicator& comm) {
      auto decoder = model::Decoder::load(weights::Checkpoint::open(model_path()), {});
      parallel::MeshGroups groups(comm, parallel::Mesh::replicated(comm.world_size(), comm.rank()));
      const auto strategy = parallel::make_strategy(
          {}, groups, {decoder->parameters(), decoder->units(), decoder->options().device});
      const EvalResult result =
          Evaluator(config, val).run(*decoder, *strategy, Objective(config.train), comm, [] {
            return 0;
          });
      int64_t labels = 0;
      for (int64_t i = 0; i < val.examples().size(); ++i)
        labels += val.examples().stored(i).label_tokens;
      EXPECT_EQ(result.num_terms, labels);
      of_rank[static_cast<size_t>(comm.rank())] = result.loss;
      comm.leave();
    });
    for (const double loss : of_rank) EXPECT_EQ(loss, of_rank[0]);
    losses.push_back(of_rank[0]);
  }
  EXPECT_NEAR(losses[1], losses[0], 1e-12);
  EXPECT_NEAR(losses[2], losses[0], 1e-12);
  EXPECT_GT(losses[0], 1);
}

/// Each set has its loss, and the loss is that of all label tokens together.
TEST(Evaluation, OfSeveralSetsGivesTheLossOfEach) {
  const data::Dataset whole = validation_set();
  const data::ExampleStore& examples = whole.examples();
  const std::vector<data::DatasetPart> parts = {{.name = "one", .begin = 0, .end = 1},
                                                {.name = "empty", .begin = 1, .end = 1},
                                                {.name = "two", .begin = 1, .end = 3}};
  const data::Dataset val{examples, parts, {}, "v"};
  const config::RunConfig config = configuration({});
  for (const int world_size : {1, 2}) {
    test::run_ranks(world_size, [&](parallel::Communicator& comm) {
      auto decoder = model::Decoder::load(weights::Checkpoint::open(model_path()), {});
      parallel::MeshGroups groups(comm, parallel::Mesh::replicated(comm.world_size(), comm.rank()));
      const auto strategy = parallel::make_strategy(
          {}, groups, {decoder->parameters(), decoder->units(), decoder->options().device});
      const auto evaluate = [&](const data::Dataset& dataset) {
        return Evaluator(config, dataset)
            .run(*decoder, *strategy, Objective(config.train), comm, [] { return 0; });
      };
      const EvalResult together = evaluate(val);
      EXPECT_NEAR(together.loss, evaluate(whole).loss, 1e-6);
      EXPECT_TRUE(evaluate(whole).losses.empty());
      ASSERT_EQ(together.losses.size(), 2U);
      const data::Dataset one{examples.select({0}), {}, {}, "v"},
          two{examples.select({1, 2}), {}, {}, "v"};
      EXPECT_EQ(together.losses[0].first, "one");
      EXPECT_NEAR(together.losses[0].second, evaluate(one).loss, 1e-6);
      EXPECT_EQ(together.losses[1].first, "two");
      EXPECT_NEAR(together.losses[1].second, evaluate(two).loss, 1e-6);
      EXPECT_GT(std::abs(together.losses[0].second - together.losses[1].second), 1e-3);
      comm.leave();
    });
  }
}

/// Of the ranks one is asked to stop in the middle of an evaluation, in which they communicate.
TEST(Evaluation, AStopInterruptsItOnAllRanksAndTheRunIsTheSame) {
  for (const auto& [strategy, ranks] : {std::pair{config::Strategy::kDdp, 1},
                                        {config::Strategy::kZero3, 2},
                                        {config::Strategy::kPipeline, 2}}) {
    SCOPED_TRACE(config::strategy_name(strategy));
    RunSetup setup;
    setup.decoder.trains = model::Trains::kFull;
    setup.strategy = strategy;
    const test::TemporaryDirectory straight, stopped;
    const auto run = [&, ranks = ranks](const RunSetup& of, const fs::path& run_dir,
                                        const std::optional<fs::path>& resume_from) {
      test::run_ranks(ranks,
                      [&](parallel::Communicator& comm) { train(comm, of, run_dir, resume_from); });
    };
    run(setup, straight.path(), {});
    RunSetup first = setup;
    // An exchange empties a pipeline: it has one before the first of the few micro-batches only.
    first.stops_when_asked = strategy == config::Strategy::kPipeline ? 1 : 2;
    first.stops_after = 2;  // where the first evaluation is
    run(first, stopped.path(), {});
    EXPECT_EQ(metrics(stopped.path()).size(), 2U) << "no evaluation";
    const fs::path checkpoint = stopped.path() / "checkpoints" / "step-000002";
    EXPECT_TRUE(read_train_state(checkpoint).evaluation_due);
    run(setup, stopped.path(), checkpoint);
    expect_same_run(straight.path(), stopped.path());
  }
}

TEST(CheckpointsOfEpochs, AreWritten) {
  for (const auto strategy : {config::SaveStrategy::kSteps, config::SaveStrategy::kEpoch}) {
    const test::TemporaryDirectory dir;
    RunSetup setup;
    setup.decoder.trains = model::Trains::kLora;
    setup.save_strategy = strategy;
    test::run_ranks(1, [&](parallel::Communicator& comm) { train(comm, setup, dir.path()); });
    const bool is_epoch = strategy == config::SaveStrategy::kEpoch;
    EXPECT_EQ(fs::exists(dir.path() / "checkpoints" / "step-000002"), is_epoch);
    EXPECT_FALSE(fs::exists(dir.path() / "checkpoints" / "step-000001"));
    EXPECT_TRUE(fs::exists(dir.path() / "checkpoints" / "step-000004")) << "the end";
  }
}

TEST(Builds, OfARunAreInItsCheckpointsAndAnotherOneIsSaid) {
  const test::TemporaryDirectory dir;
  log::configure({.console = log::Level::kOff, .file = dir / "log"});
  RunSetup setup;
  setup.decoder.trains = model::Trains::kLora;
  setup.stops_after = 2;
  const auto run = [&](const std::optional<fs::path>& resume_from) {
    test::run_ranks(
        1, [&](parallel::Communicator& comm) { train(comm, setup, dir.path(), resume_from); });
  };
  run({});
  const fs::path first = dir.path() / "checkpoints" / "step-000002";
  setup.stops_after = kStepsOfRun;
  setup.build = "def";
  run(first);
  log::configure({.console = log::Level::kOff});
  const auto builds = read_train_state(dir.path() / "checkpoints" / "step-000004").builds;
  EXPECT_EQ(to_json(builds),
            nlohmann::ordered_json::parse(R"([{"version": "1.2.3", "build": "abc", "from_step": 0},
                                              {"version": "1.2.3", "build": "def", "from_step": 2}])"));
  const std::string text = read_text_file(dir / "log");
  EXPECT_NE(
      text.find("the checkpoint is of sftrun 1.2.3, build abc, this is sftrun 1.2.3, build def"),
      std::string::npos)
      << text;
}

TEST(ShardedTraining, RefusesOptimizersThatNeedWholeMatrices) {
  const test::TemporaryDirectory dir;
  RunSetup setup;
  setup.decoder.trains = model::Trains::kFull;
  setup.optimizer = config::Optimizer::kAdafactor;
  test::run_ranks(2, [&](parallel::Communicator& comm) {
    comm.barrier("connected");  // rank 0 leaves at once, and the store with it
    test::expect_error<ConfigError>([&] { train(comm, setup.sharded(), dir.path()); },
                                    {"adafactor", "whole matrix", "train.optimizer"});
  });
}

}  // namespace
}  // namespace sftrun::train
