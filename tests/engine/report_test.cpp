#include "report.h"

#include <gtest/gtest.h>

#include "rank_report.h"
#include "support/rank_threads.h"
#include "support/single_strategy.h"
#include "support/test_data.h"

namespace sftrun::engine {
namespace {

std::unique_ptr<model::Decoder> lora_decoder(at::ScalarType dtype) {
  model::DecoderOptions options;
  options.trains = model::Trains::kLora;
  options.dtype = dtype;
  return model::Decoder::load(weights::Checkpoint::open(test::kModels / "tied-gqa"), options);
}

TEST(RunJson, StatusIsThatOfTheExitCode) {
  EXPECT_EQ(status_of_exit_code(0), "done");
  EXPECT_EQ(status_of_exit_code(130), "interrupted");
  EXPECT_EQ(status_of_exit_code(75), "stopped");
}

TEST(RunJson, OfARunHasNoNormsOfTheBase) {
  config::RunConfig config;
  config.model.name = "owner/model";
  config.tuning.backend = config::TuningBackend::kFused;
  const Compute compute;
  const config::BaseRecord held{.model = "owner/model",
                                .fingerprint = "xxh3-1",
                                .dtype = "fp32",
                                .norms = {1, 2},
                                .layout = "l"};
  const nlohmann::ordered_json identity = {{"config", {{"train.seed", 1}}}};
  ReportedRun run{config, compute,  "models/base", "xxh3-1", &held,
                  "data", identity, "gloo",        "ddp",    2};
  const observe::RunReport report = report_of_run(run);
  EXPECT_EQ(report.comm_backend, "gloo");
  EXPECT_EQ(report.backend, "fused");
  EXPECT_EQ(report.dtype, "fp32");
  EXPECT_TRUE(std::filesystem::path(report.base_model_path).is_absolute());
  EXPECT_EQ(report.base_model_fingerprint, "xxh3-1");
  EXPECT_EQ(report.device_names.size(), 2U);
  EXPECT_TRUE(held.to_json().contains("norms"));
  EXPECT_FALSE(report.base.contains("norms"));
  EXPECT_FALSE(report.base.contains("layout"));
  EXPECT_EQ(report.base["fingerprint"], "xxh3-1");
  run.world_size = 1;
  run.base_record = nullptr;
  EXPECT_EQ(report_of_run(run).comm_backend, "") << "a single process does not communicate";
  EXPECT_TRUE(report_of_run(run).base.is_null());
}

TEST(RunJson, TheConfigsFingerprintIsOfItsSettingsAlone) {
  const config::RunConfig config;
  const Compute compute;
  const auto fingerprint = [&](const nlohmann::ordered_json& identity) {
    return report_of_run({config, compute, "b", "", nullptr, "", identity, "", "single", 1})
        .config_fingerprint;
  };
  const auto one = fingerprint({{"config", {{"train.seed", 1}}}, {"model", "a"}});
  EXPECT_EQ(fingerprint({{"config", {{"train.seed", 1}}}, {"model", "b"}}), one);
  EXPECT_NE(fingerprint({{"config", {{"train.seed", 2}}}, {"model", "a"}}), one);
}

/// In fp32 the parameters are their own master copy.
TEST(RunJson, MemoryOfARank) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const auto decoder = lora_decoder(dtype);
    const auto values = static_cast<uint64_t>(decoder->parameters().numel());
    const parallel::StoredBytes stored = test::single_strategy(*decoder)->stored_bytes();
    const observe::RankBytes bytes = rank_bytes(77, stored, 300, 5000, 1000);
    EXPECT_EQ(bytes.base, 77U);
    EXPECT_EQ(bytes.trainable, values * (dtype == at::kFloat ? 4 : 6));
    EXPECT_EQ(bytes.gradients, decoder->parameters().grad().nbytes());
    EXPECT_EQ(bytes.optimizer, 300U);
    EXPECT_EQ(bytes.activations_peak, 3700U);
    EXPECT_EQ(rank_bytes(0, stored, 300, 1200, 1000).activations_peak, 0U)
        << "the optimizer's state may be in host memory";
    EXPECT_EQ(rank_bytes(0, stored, 0, 900, 1000).activations_peak, 0U);
  }
}

/// Memory and collectives of every rank arrive on every rank.
TEST(RunJson, RanksAreGathered) {
  test::run_ranks(2, [](parallel::Communicator& comm) {
    const uint64_t own = uint64_t{5} << (40 + comm.rank());
    comm.world().all_reduce(at::zeros({10}));
    if (comm.rank() == 0)
      comm.world().send(at::zeros({3}), 1);
    else
      comm.world().receive(at::zeros({3}), 0);
    const auto ranks = gather_rank_reports(comm, {1, 2, 3, 4, own}, 7 * own);
    ASSERT_EQ(ranks.size(), 2U);
    for (size_t rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(ranks[rank].bytes.base, 1U);
      EXPECT_EQ(ranks[rank].bytes.trainable, 2U);
      EXPECT_EQ(ranks[rank].bytes.gradients, 3U);
      EXPECT_EQ(ranks[rank].bytes.optimizer, 4U);
      EXPECT_EQ(ranks[rank].bytes.activations_peak, uint64_t{5} << (40 + rank));
      EXPECT_EQ(ranks[rank].collectives.all_reduce, 1);
      EXPECT_EQ(ranks[rank].collective_bytes.all_reduce, 40);
      EXPECT_EQ(ranks[rank].model_file_bytes, uint64_t{35} << (40 + rank));
      EXPECT_EQ(ranks[rank].collective_bytes.send, rank == 0 ? 12 : 0);
      EXPECT_EQ(ranks[rank].collectives.recv, rank == 0 ? 0 : 1);
    }
    comm.leave();
  });
}

}  // namespace
}  // namespace sftrun::engine
