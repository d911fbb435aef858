#include "sftrun/observe/html_report.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <limits>

#include "report/charts.h"
#include "report/findings.h"
#include "report/metrics_table.h"
#include "sftrun/core/file.h"
#include "sftrun/observe/system.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace sftrun::observe {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

MetricsTable table_of(const std::string& text) {
  const test::TemporaryDirectory dir;
  write_file_atomically(dir / "metrics.jsonl", text);
  return read_metrics_table(dir / "metrics.jsonl");
}

/// 40 steps whose losses lie within 0.05 of 2.
std::vector<double> steady_losses() {
  std::vector<double> losses;
  for (int step = 0; step < 40; ++step) losses.push_back(2 + 0.05 * std::sin(step));
  return losses;
}

TEST(MetricsTable, ReadsTrainingAndEvaluationLines) {
  const MetricsTable table = table_of(
      "{\"step\":0,\"eval_loss\":3}\n"
      "{\"step\":1,\"loss\":2.5,\"peak_memory_bytes\":[5,9]}\n"
      "{\"step\":2,\"loss\":null,\"peak_memory_bytes\":[6,7],\"rewards/margins\":0.5}\n");
  EXPECT_EQ(table.training.steps, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(table.training.find("loss")->at(0), 2.5);
  EXPECT_TRUE(std::isnan(table.training.find("loss")->at(1)));
  EXPECT_EQ(table.training.per_rank.at("peak_memory_bytes").at(1), (std::vector<double>{9, 7}));
  EXPECT_TRUE(std::isnan(table.training.find("rewards/margins")->at(0)));
  EXPECT_EQ(table.evaluation.find("eval_loss")->at(0), 3);
}

TEST(MetricsTable, LeavesOutDamagedLines) {
  const MetricsTable table = table_of(
      "{\"step\":1,\"loss\":2}\nnonsense\n{\"loss\":1}\n{\"step\":2,\"loss\":1}\n{\"step\":3,\"lo");
  EXPECT_EQ(table.training.steps, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(table.unreadable_lines, (std::vector<size_t>{2, 3}));
  EXPECT_TRUE(table.ends_within_line);
}

TEST(MetricsTable, AStepThatAppearsAgainReplacesItAndLaterOnes) {
  const MetricsTable table = table_of(
      "{\"step\":1,\"loss\":3}\n{\"step\":2,\"loss\":2,\"a\":1}\n{\"step\":3,\"loss\":1}\n"
      "{\"step\":2,\"loss\":2.5}\n");
  EXPECT_EQ(table.training.steps, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(*table.training.find("loss"), (std::vector<double>{3, 2.5}));
  EXPECT_EQ(table.training.find("a"), nullptr);
}

TEST(MetricsTable, ManyRanksBecomeLowestMedianAndHighest) {
  std::string ranks;
  for (int rank = 0; rank < 100; ++rank) ranks += (rank > 0 ? "," : "") + std::to_string(rank);
  const MetricsTable table = table_of("{\"step\":1,\"gpu_utilization\":[" + ranks + "]}\n");
  const auto& columns = table.training.per_rank.at("gpu_utilization");
  ASSERT_EQ(columns.size(), 3u);
  EXPECT_EQ(columns[0][0], 0);
  EXPECT_EQ(columns[1][0], 50);
  EXPECT_EQ(columns[2][0], 99);
}

TEST(MetricsTable, AFileWithManyKeysDoesNotFillTheMemory) {
  std::string text;
  for (int step = 1; step <= 1000; ++step)
    text += fmt::format("{{\"step\":{0},\"key {0}\":1}}\n", step);
  EXPECT_LE(table_of(text).training.values.size(), 64u);
}

TEST(Spikes, AreFarAboveTheValuesBefore) {
  std::vector<double> losses = steady_losses();
  EXPECT_TRUE(find_spikes(losses).empty());
  losses[30] = 2.2;  // ten usual deviations, but less than a fifth
  EXPECT_TRUE(find_spikes(losses).empty());
  losses[30] = 5, losses[31] = 6, losses[32] = kNone, losses[33] = 5.5;
  losses[38] = 4;
  EXPECT_EQ(find_spikes(losses), (std::vector<size_t>{31, 38}));
}

TEST(Spikes, AFallingLossHasNone) {
  std::vector<double> losses;
  for (int step = 0; step < 1000; ++step)
    losses.push_back(8 * std::exp(-step / 100.0) + 0.1 * std::cos(step));
  EXPECT_TRUE(find_spikes(losses).empty());
}

TEST(DrawnRows, KeepEveryExtremeOfALongColumn) {
  std::vector<double> values(100'000, 1.0);
  values[12'345] = 9, values[54'321] = -9;
  for (size_t row = 70'000; row < 71'000; ++row) values[row] = kNone;
  const std::vector<size_t> rows = rows_to_draw(values);
  EXPECT_LE(rows.size(), 2 * kDrawnRanges + 1);
  EXPECT_TRUE(std::is_sorted(rows.begin(), rows.end()));
  for (const size_t row : {12'345, 54'321, 99'999})
    EXPECT_TRUE(std::binary_search(rows.begin(), rows.end(), row)) << row;
  EXPECT_TRUE(
      std::any_of(rows.begin(), rows.end(), [&](size_t row) { return std::isnan(values[row]); }));
}

TEST(DrawnRows, AreAllRowsOfAShortColumn) {
  EXPECT_EQ(rows_to_draw({1, kNone, 3}), (std::vector<size_t>{0, 1, 2}));
}

/// Texts of the findings of a run with these files.
std::string findings_of(const std::string& metrics, const std::string& run = {},
                        const std::string& settings = {}, const std::string& log = {}) {
  const test::TemporaryDirectory dir;
  write_file_atomically(dir / "metrics.jsonl", metrics);
  if (!run.empty()) write_file_atomically(dir / "run.json", run);
  if (!settings.empty()) write_file_atomically(dir / "config.resolved.yaml", settings);
  std::filesystem::create_directory(dir / "logs");
  for (const char* name : {"logs/rank-0.log", "logs/rank-1.log"})
    write_file_atomically(dir / name, log);
  const HtmlReport report = html_report({dir.path()});
  std::string text;
  for (const Finding& finding : report.runs.front().findings)
    text += fmt::format("{}: {}\n", severity_name(finding.severity), finding.text);
  return text;
}

std::string metrics_lines(int steps, const std::string& rest) {
  std::string text;
  for (int step = 1; step <= steps; ++step)
    text += fmt::format("{{\"step\":{},\"loss\":2,\"grad_norm\":1{}}}\n", step, rest);
  return text;
}

void expect_part(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "wanted \"" << part << "\" in:\n" << text;
}

TEST(Findings, ARunWithoutAnythingUnusualHasNone) {
  EXPECT_EQ(findings_of(
                metrics_lines(30,
                              ",\"step_seconds\":1,\"tokens\":900,\"label_tokens\":300,"
                              "\"gpu_utilization\":[95]"),
                R"({"status":"done","planned_bytes":{"base":10},"ranks":[{"bytes":{"base":10}}]})",
                "data: {packing: true, bin_tokens: 500}\ntrain: {global_batch_size: 2}\n",
                "[12:00:00.000] [info] all is well\n"),
            "");
}

TEST(Findings, NameWhatIsUnusual) {
  const std::string text = findings_of(
      metrics_lines(
          30, ",\"step_seconds\":1,\"tokens\":900,\"label_tokens\":9,\"gpu_utilization\":[20]") +
          "{\"step\":31,\"loss\":null,\"grad_norm\":null,\"step_seconds\":9}\n"
          "{\"step\":10,\"eval_loss\":1.5}\n{\"step\":30,\"eval_loss\":1.75}\n",
      R"({"status":"failed","planned_bytes":{"base":1073741824},"ranks":[{"bytes":{"base":5}},{"bytes":{"base":1610612736}}]})",
      "data: {packing: true, bin_tokens: 1000}\ntrain: {global_batch_size: 2}\n",
      "[12:00:00.000] [warning] rank 1 is slow\n");
  for (const char* part :
       {"problem: the run failed; its last recorded step is 31",
        "problem: the loss has NaN or infinite values at step 31",
        "warning: 1 step took more than 5 times the median of 1 s, and 8 s longer together (step "
        "31)",
        "warning: the validation loss was lowest at step 10 (1.5000) and is 1.7500 at the end",
        "warning: the GPUs computed 20% of the time",
        "warning: rank 1 used 1.50 GiB, 50% more than the estimate of 1.00 GiB",
        "note: 55% of the positions of the packed sequences hold no token: longer packed sequences "
        "fit the records better (set both model.max_seq_len=2000 and data.bin_tokens=2000)",
        "note: only 1.0% of the tokens are trained on", "warning: log: rank 1 is slow (2 times)"})
    expect_part(text, part);
}

TEST(Findings, ALossBelowZeroThatIsAtItsBestIsNoOverfit) {
  const auto with = [](const char* last) {
    return findings_of(
        metrics_lines(30, ",\"step_seconds\":1") +
            "{\"step\":10,\"eval_loss\":-0.005}\n{\"step\":30,\"eval_loss\":" + last + "}\n",
        R"({"status":"done"})", "", "");
  };
  EXPECT_EQ(with("-0.0077").find("overfits"), std::string::npos);
  expect_part(with("-0.0040"), "lowest at step 10 (-0.0050) and is -0.0040 at the end");
}

TEST(Findings, NamesLongerSequencesThatAreAllowed) {
  expect_part(
      findings_of(metrics_lines(30, ",\"step_seconds\":1,\"tokens\":300"), R"({"status":"done"})",
                  "model: {max_seq_len: 4096}\ndata: {packing: true, bin_tokens: 500}\n"
                  "train: {global_batch_size: 1}\n",
                  ""),
      "fit the records better (set data.bin_tokens=1000)");
}

/// A step of a batch that is larger than an epoch has the sequences of the epoch.
TEST(Findings, SequencesThatAnEpochLacksAreNotEmpty) {
  const std::string settings =
      "data: {packing: true, bin_tokens: 500}\ntrain: {global_batch_size: 9}\n";
  const auto text = [&](const char* epoch) {
    return findings_of(
        metrics_lines(30, std::string(",\"step_seconds\":1,\"tokens\":900,\"epoch\":") + epoch),
        R"({"status":"done"})", settings, "");
  };
  expect_part(text("15"), "80% of the positions of the packed sequences hold no token");
  EXPECT_EQ(text("30").find("hold no token"), std::string::npos) << text("30");
}

TEST(Findings, AWarningOfSeveralStepsIsOne) {
  std::string log = "[12:00:00.000] [warning] the loss of step twelve\n";
  for (const int step : {5, 10, 40})
    log += fmt::format("[12:00:00.000] [warning] the event `checkpoint` (step {}) failed\n", step);
  log += "[12:00:00.000] [warning] the event `end` (step 40) failed\n";
  const std::string text = findings_of(metrics_lines(3, ""), R"({"status":"done"})", "", log);
  expect_part(text, "the event `checkpoint` (step 5) failed (6 times, last at step 40)\n");
  expect_part(text, "the event `end` (step 40) failed (2 times)\n");
  expect_part(text, "the loss of step twelve (2 times)\n");
  EXPECT_EQ(text.find("(step 10)"), std::string::npos) << text;
}

TEST(Findings, AFailedRunSaysWhy) {
  const std::string text = findings_of(
      metrics_lines(3, ""),
      R"({"status":"failed","error":"training failed; first failure on rank 0: No space left\n  last lines of its log:\n    | secret\n  at   run/a\n  fix: free disk space"})");
  expect_part(text,
              "problem: the run failed; its last recorded step is 3: training failed; first "
              "failure on rank 0: No space left; at run/a; fix: free disk space\n");
}

TEST(Findings, AFewMebibytesMoreThanPlannedAreNone) {
  const auto of = [](int planned_mib, int used_mib) {
    return findings_of(
        metrics_lines(3, ""),
        fmt::format(
            R"({{"status":"done","planned_bytes":{{"base":{}}},"ranks":[{{"bytes":{{"base":{}}}}}]}})",
            planned_mib << 20, used_mib << 20));
  };
  EXPECT_EQ(of(3, 9), "");
  EXPECT_EQ(of(3, 66), "");
  expect_part(of(3, 68), "more than the estimate");
  EXPECT_EQ(of(1000, 1090), "");
  expect_part(of(1000, 1110), "more than the estimate");
}

TEST(Findings, ARunWhoseLauncherIsGoneWasKilled) {
  const test::TemporaryDirectory dir;
  write_file_atomically(dir / "run.json", R"({"status":"running"})");
  const auto status = [&] { return html_report({dir.path()}).runs.front().status; };
  EXPECT_EQ(status(), "running");  // nothing is known of its process
  write_file_atomically(dir / ".lock", "pid 4242 on another-machine\n");
  EXPECT_EQ(status(), "running");
  write_file_atomically(dir / ".lock", "pid 4242 on " + host_name() + "\n");
  EXPECT_EQ(status(), "killed");
  const int lock = ::open((dir / ".lock").c_str(), O_RDWR);
  EXPECT_EQ(::flock(lock, LOCK_EX), 0);
  EXPECT_EQ(status(), "running");
  ::close(lock);
  std::filesystem::remove(dir / ".lock");
  ASSERT_EQ(::mkfifo((dir / ".lock").c_str(), 0600), 0);
  EXPECT_EQ(status(), "running");  // reading a pipe would wait for ever
}

TEST(Findings, SkippedStepsOfFp16AreUsual) {
  const std::string text =
      findings_of(metrics_lines(20, ",\"loss_scale\":1024") +
                  "{\"step\":21,\"loss\":2,\"grad_norm\":null,\"loss_scale\":512}\n");
  expect_part(text, "note: 1 step was skipped because the gradients overflowed in fp16 (step 21)");
}

TEST(HtmlReport, DrawsTheScoresOfAnswers) {
  const test::TemporaryDirectory dir;
  std::string lines = metrics_lines(2, "");
  lines += R"({"step":2,"eval_loss":2,"eval_rouge_l":0.5,"eval_rouge1":0.6,"eval_exact_match":0})";
  write_file_atomically(dir / "metrics.jsonl", lines + "\n");
  const std::string html = html_report({dir.path()}).html;
  for (const char* part : {"\"answers\"", "ROUGE-L", "ROUGE-1", "exact match"})
    expect_part(html, part);
  EXPECT_EQ(html.find("ROUGE-2"), std::string::npos);
}

TEST(HtmlReport, DrawsEachValidationSetAndTheAccuracy) {
  const test::TemporaryDirectory dir;
  write_file_atomically(
      dir / "metrics.jsonl",
      "{\"step\":2,\"loss\":2}\n{\"step\":2,\"eval_loss\":1.5,\"eval_token_accuracy\":0.5,"
      "\"eval_losses\":{\"code.jsonl\":1.25,\"chat.jsonl\":1.75}}\n");
  const std::string page = html_report({dir.path()}).html;
  for (const char* part :
       {"\"validation code.jsonl\"", "\"validation chat.jsonl\"", "token_accuracy"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
}

TEST(HtmlReport, TheOverviewHasTheRewardOfAnObjectiveThatIsJudgedByIt) {
  const test::TemporaryDirectory first, second;
  write_file_atomically(first / "metrics.jsonl",
                        "{\"step\":1,\"loss\":0.1,\"reward\":0.25,\"rollouts/seconds\":1}\n"
                        "{\"step\":2,\"loss\":0.1,\"reward\":null}\n"
                        "{\"step\":2,\"eval_reward\":0.75,\"eval_seconds\":1}\n");
  write_file_atomically(first / "config.resolved.yaml", "train: {objective: grpo}\n");
  write_file_atomically(second / "metrics.jsonl",
                        "{\"step\":1,\"loss\":0.7,\"rewards/accuracies\":0.5}\n");
  write_file_atomically(second / "config.resolved.yaml", "train: {objective: dpo}\n");
  const std::string html = html_report({first.path(), second.path()}).html;
  expect_part(html, "Training reward</th><td>0.2500</td><td></td>");
  expect_part(html, "Validation reward</th><td>0.7500</td><td></td>");
  expect_part(html, "Training accuracy</th><td></td><td>0.5000</td>");
  EXPECT_EQ(html.find("Training divergence"), std::string::npos);
  write_file_atomically(first / "metrics.jsonl", "{\"step\":1,\"loss\":0.1,\"reward\":0.25}\n");
  EXPECT_EQ(html_report({first.path()}).html.find("Training reward"), std::string::npos)
      << "of answers that were sampled before";
}

TEST(HtmlReport, EscapesWhatFilesSay) {
  const test::TemporaryDirectory dir;
  write_file_atomically(dir / "metrics.jsonl", "{\"step\":1,\"loss\":2,\"</script><b>\":1}\n");
  write_file_atomically(dir / "run.json", "{\"base_model\":\"<i>&\\\"\",\"status\":\"\\u0000\"}");
  write_file_atomically(dir / "config.resolved.yaml", "model: {name: \"</table>\"}\n");
  const std::string html = html_report({dir.path()}).html;
  EXPECT_EQ(html.find("</script><b>"), std::string::npos);
  EXPECT_EQ(html.find("<i>&\""), std::string::npos);
  EXPECT_NE(html.find("&lt;i&gt;&amp;&quot;"), std::string::npos);
  EXPECT_NE(html.find("&lt;/table&gt;"), std::string::npos);
}

TEST(HtmlReport, RefusesADirectoryThatIsNoRun) {
  const test::TemporaryDirectory dir;
  test::expect_error([&] { html_report({dir.path()}); },
                     {"not a run directory", dir.path().string()});
}

}  // namespace
}  // namespace sftrun::observe
