#include "sftrun/observe/run_report.h"

#include <gtest/gtest.h>

#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "support/temporary_directory.h"

namespace sftrun::observe {
namespace {

using Json = nlohmann::ordered_json;

RunReport sample() {
  RunReport report;
  report.version = "0.1.0";
  report.backend = "fused";
  report.strategy = "ddp";
  report.base_model_path = "/models/a.gguf";
  report.base_model_fingerprint = "ab";
  report.dataset_fingerprint = "cd";
  report.world_size = 2;
  report.device_names = {"CPU", "CPU"};
  report.status = "done";
  report.error = "out of \"memory\"\n  fix: less";
  report.last_step = 12;
  report.evaluation = {{"step", 12}, {"eval_loss", 2.5}};
  report.best = {{"metric", "eval_loss"}, {"value", 2.25}, {"step", 8}};
  report.finished_at = 1.5;
  report.ranks.resize(2);
  report.ranks[1].bytes.base = 1ULL << 40;
  report.ranks[1].collectives.all_reduce = 7;
  report.ranks[1].collective_bytes.all_reduce = int64_t{1} << 33;
  return report;
}

TEST(RunReport, SurvivesTheFile) {
  const test::TemporaryDirectory dir;
  write_run_report(dir / "run.json", sample());
  EXPECT_EQ(read_run_report(dir / "run.json").to_json(), sample().to_json());
}

TEST(RunReport, FoundFromAnAdapterAndFromACheckpoint) {
  const test::TemporaryDirectory dir;
  make_directories(dir / "run/checkpoints/step-000001");
  EXPECT_EQ(run_directory_of(dir / "run/adapter"), "");
  write_run_report(dir / "run/run.json", sample());
  for (const char* adapter : {"run/adapter", "run/adapter/", "run/checkpoints/step-000001"})
    EXPECT_TRUE(std::filesystem::equivalent(run_directory_of(dir / adapter), dir / "run"))
        << adapter;
  EXPECT_EQ(run_directory_of(dir / "adapter"), "");
}

TEST(RunReport, AnAdapterIsFoundFromItsRun) {
  const test::TemporaryDirectory dir;
  const auto write_adapter = [&](const char* name) {
    make_directories(dir / name);
    write_file_atomically(dir / name / "adapter_config.json", "{}");
  };
  EXPECT_EQ(adapter_at(dir / "run"), dir / "run");
  for (const char* step : {"step-000009", "step-000100", "step-1000000", "abandoned-step-9999999"})
    write_adapter((std::string("run/checkpoints/") + step).c_str());
  make_directories(dir / "run/checkpoints/step-2000000");  // of a run that trains every weight
  EXPECT_EQ(adapter_at(dir / "run"), dir / "run/checkpoints/step-1000000");
  EXPECT_EQ(adapter_at(dir / "run/checkpoints/step-000009"), dir / "run/checkpoints/step-000009");
  write_adapter("run/adapter");
  EXPECT_EQ(adapter_at(dir / "run"), dir / "run/adapter");
  EXPECT_EQ(adapter_at(dir / "run/adapter"), dir / "run/adapter");
}

/// An earlier result of a run that was continued is not used in silence.
TEST(RunReport, SaysWhatIsNotFinished) {
  const test::TemporaryDirectory dir;
  const auto run = dir / "run";
  for (const char* folder : {"checkpoints/step-000012", "checkpoints/step-000009"}) {
    std::filesystem::create_directories(run / folder);
    write_file_atomically(run / folder / "adapter_config.json", "{}");
  }
  RunReport report = sample();
  report.status = "stopped";
  write_run_report(run / "run.json", report);
  const auto notice = [&] { return notice_of_result(run, adapter_at(run)); };
  EXPECT_EQ(notice(), (run / "").parent_path().string() + " is not finished: using " +
                          (run / "checkpoints/step-000012").string());
  std::filesystem::create_directories(run / "adapter");
  write_file_atomically(run / "adapter/adapter_config.json", "{}");
  EXPECT_NE(notice().find("this is its earlier result; for the newest checkpoint give " +
                          (run / "checkpoints/step-000012").string()),
            std::string::npos)
      << notice();
  EXPECT_EQ(notice_of_result(run / "adapter", run / "adapter"), "");
  report.status = "done";
  write_run_report(run / "run.json", report);
  EXPECT_EQ(notice(), "");
  write_file_atomically(run / "run.json", "{\"status\": ");
  EXPECT_EQ(notice(), "");
}

TEST(RunReport, HasTheKeysUsersRelyOn) {
  const Json json = sample().to_json();
  for (const char* key :
       {"version", "builds", "backend", "base_model_fingerprint", "dataset_fingerprint",
        "world_size", "device_names", "strategy", "ranks", "evaluation", "best_evaluation"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  const Json& rank = json["ranks"][1];
  EXPECT_EQ(rank["bytes"], Json::parse(R"({"base": 1099511627776, "trainable": 0, "gradients": 0,
                                           "optimizer": 0, "activations_peak": 0})"));
  EXPECT_EQ(rank["collectives"],
            Json::parse(R"({"all_reduce": 7, "all_gather": 0, "reduce_scatter": 0,
                            "all_to_all": 0, "broadcast": 0, "send": 0, "recv": 0})"));
  EXPECT_EQ(rank["collective_bytes"]["all_reduce"], int64_t{1} << 33);
  EXPECT_EQ(rank["collective_bytes"].size(), rank["collectives"].size());
}

TEST(RunReport, ErrorsNameTheFile) {
  const test::TemporaryDirectory dir;
  for (const char* text :
       {"", "[1]", "{\"world_size\": \"two\"}", "{\"ranks\": [{\"bytes\": 3}]}"}) {
    write_file_atomically(dir / "run.json", text);
    try {
      read_run_report(dir / "run.json");
      ADD_FAILURE() << "no error for " << text;
    } catch (const DataError& error) {
      EXPECT_TRUE(error.where().ends_with("run.json")) << error.where();
    }
  }
  EXPECT_THROW(read_run_report(dir / "none.json"), DataError);
}

}  // namespace
}  // namespace sftrun::observe
