#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sftrun/model/stage.h"
#include "sftrun/parallel/strategy.h"
#include "support/load_in_shards.h"
#include "support/rank_threads.h"
#include "support/reference.h"
#include "support/tensors.h"

/// Passes over the trained values as they were at the start (`Strategy::keep_start`).
namespace sftrun::parallel {
namespace {

using model::PassValues;
using test::same_bits;

struct StartCase {
  std::string name;
  config::Strategy strategy = config::Strategy::kDdp;
  model::Trains trains = model::Trains::kFull;
  at::ScalarType dtype = at::kFloat;
  bool is_plain = false;  // the backend that reads masters
  bool dora = false, trained_on_host = false;
};

model::DecoderOptions options_of(const StartCase& of) {
  model::DecoderOptions options;
  options.trains = of.trains;
  options.dtype = of.dtype;
  if (of.is_plain) options.backend = &layers::plain_backend();
  options.lora.r = 4;
  options.lora.dora = of.dora;
  return options;
}

/// A model, or a rank's part of one, with a tied head. Its start is not the base.
class StartedModel {
 public:
  StartedModel(Communicator& comm, const StartCase& of) {
    const std::filesystem::path path = std::filesystem::path(SFTRUN_TEST_DATA) / "models/tied-gqa";
    model::DecoderOptions options = options_of(of);
    auto parts = test::load_in_shards(of.strategy, comm, options, /*frozen_on_host=*/false,
                                      of.trained_on_host);
    decoder_ = model::Decoder::load(weights::Checkpoint::open(path), options);
    const bool reads_masters = decoder_->backend().reads_masters;
    MeshGroups groups(comm, test::mesh_of(of.strategy, comm));
    strategy_ = make_strategy(
        {.passes_read_masters = of.trains == model::Trains::kLora || reads_masters}, groups,
        {decoder_->parameters(), decoder_->units(), at::kCPU}, std::move(parts));
    change(3);
    strategy_->keep_start(reads_masters || of.dora);
    packed_ = std::make_unique<model::PackedBatch>(
        test::packed(*decoder_, test::read_reference(path).examples));
  }

  /// Adds other values to all parameters, as a step does.
  void change(uint64_t seed) {
    const layers::OwnedValues& owned = strategy_->owned();
    for (layers::Parameter& parameter : decoder_->parameters().parameters()) {
      const at::Tensor now = strategy_->master_of(parameter);
      strategy_->assign(parameter, now + 0.05 * test::normal(now.sizes(), ++seed));
    }
    ASSERT_TRUE(owned.flat.master.isfinite().all().item<bool>());
  }

  /// -log p of each label; of the last stage.
  at::Tensor losses(PassValues values) const {
    const model::Stage stage(*decoder_, strategy_.get(), strategy_->links());
    model::MicroBatchRun run(*packed_, values);
    stage.forward(run);
    return stage.label_losses(run);
  }

  /// Masters and copies in the compute dtype of what this rank updates.
  std::vector<at::Tensor> values() const {
    const layers::FlatValues& flat = strategy_->owned().flat;
    return {flat.master.clone(), flat.compute.clone()};
  }
  Strategy& strategy() { return *strategy_; }
  bool has_head() const { return model::Stage(*decoder_, nullptr, strategy_->links()).has_head(); }

 private:
  std::unique_ptr<model::Decoder> decoder_;
  std::unique_ptr<Strategy> strategy_;
  std::unique_ptr<model::PackedBatch> packed_;
};

class StartValuesTest : public testing::TestWithParam<StartCase> {};

/// However often both are read in turn: the start stays as it was, and so do the trained values.
TEST_P(StartValuesTest, AreReadInPlaceOfTheTrainedOnes) {
  test::run_ranks(2, [](Communicator& comm) {
    StartedModel model(comm, GetParam());
    EXPECT_TRUE(model.strategy().keeps_start());
    const at::Tensor at_start = model.losses(PassValues::kTrained);
    EXPECT_TRUE(same_bits(model.losses(PassValues::kStart), at_start));
    for (uint64_t step = 1; step <= 2; ++step) {
      model.change(1000 * step);
      const auto before = model.values();
      const at::Tensor trained = model.losses(PassValues::kTrained);
      if (model.has_head()) {
        EXPECT_GT((trained - at_start).abs().max().item<double>(), 1e-3);
      }
      for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
        EXPECT_TRUE(same_bits(model.losses(PassValues::kStart), at_start));
        EXPECT_TRUE(same_bits(model.losses(PassValues::kTrained), trained));
      }
      const auto after = model.values();
      for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(same_bits(after[i], before[i]));
      model.strategy().finish_step();
    }
    comm.leave();
  });
}

std::vector<StartCase> start_cases() {
  using enum config::Strategy;
  constexpr auto kLora = model::Trains::kLora;
  std::vector<StartCase> cases;
  for (const auto& [name, strategy] :
       {std::pair{"ddp", kDdp}, std::pair{"zero1", kZero1}, std::pair{"zero2", kZero2},
        std::pair{"fsdp", kFsdp}, std::pair{"pipeline", kPipeline}}) {
    cases.push_back({.name = fmt::format("{}_full", name), .strategy = strategy});
    cases.push_back(
        {.name = fmt::format("{}_full_bf16", name), .strategy = strategy, .dtype = at::kBFloat16});
    cases.push_back({.name = fmt::format("{}_adapter_bf16", name),
                     .strategy = strategy,
                     .trains = kLora,
                     .dtype = at::kBFloat16});
  }
  cases.push_back({.name = "ddp_dora_bf16", .trains = kLora, .dtype = at::kBFloat16, .dora = true});
  cases.push_back({.name = "ddp_plain_bf16", .dtype = at::kBFloat16, .is_plain = true});
  cases.push_back(
      {.name = "fsdp_plain_bf16", .strategy = kFsdp, .dtype = at::kBFloat16, .is_plain = true});
  cases.push_back({.name = "fsdp_host_bf16",
                   .strategy = kFsdp,
                   .dtype = at::kBFloat16,
                   .trained_on_host = true});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, StartValuesTest, testing::ValuesIn(start_cases()),
                         [](const auto& info) { return info.param.name; });

/// What is kept is what passes read: the compute dtype of weights, a part of them in shards.
TEST(StartValues, TakeAsMuchMemoryAsPassesRead) {
  const auto added_by = [](const StartCase& of) {
    uint64_t added = 0, values = 0;
    test::run_ranks(2, [&](Communicator& comm) {
      StartedModel model(comm, of);
      const uint64_t with = model.strategy().stored_bytes().trainable;
      if (comm.rank() == 0) {
        const layers::FlatValues& flat = model.strategy().owned().flat;
        values = static_cast<uint64_t>(flat.master.numel());
        added = with - stored_bytes_of(flat).trainable;
      }
      comm.leave();
    });
    return std::pair(added, values);
  };
  const auto [whole, of_whole] = added_by({.dtype = at::kBFloat16});
  EXPECT_EQ(whole, 2 * of_whole);
  const auto [shard, of_shard] =
      added_by({.strategy = config::Strategy::kFsdp, .dtype = at::kBFloat16});
  EXPECT_EQ(shard, 2 * of_shard);
  EXPECT_LT(static_cast<double>(of_shard), 0.75 * static_cast<double>(of_whole)) << "with padding";
  const auto [fp32, of_fp32] = added_by({});
  EXPECT_EQ(fp32, 4 * of_fp32);
  const auto [adapter, of_adapter] =
      added_by({.trains = model::Trains::kLora, .dtype = at::kBFloat16});
  EXPECT_EQ(adapter, 2 * of_adapter);
  const auto [dora, of_dora] =
      added_by({.trains = model::Trains::kLora, .dtype = at::kBFloat16, .dora = true});
  EXPECT_EQ(dora, 6 * of_dora);
}

}  // namespace
}  // namespace sftrun::parallel
