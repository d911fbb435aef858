#include "sftrun/config/refusals.h"

#include <gtest/gtest.h>

#include "sftrun/core/file.h"
#include "sftrun/core/strings.h"
#include "support/expect_error.h"

namespace sftrun::config {
namespace {

using enum Strategy;

const std::filesystem::path kPage =
    std::filesystem::path(SFTRUN_TEST_DATA) / "../../docs/parallelism.md";

std::string with(std::string text, std::string_view word, const std::string& shown) {
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word))
    text.replace(at, word.size(), shown);
  return text;
}

/// "`tp` or `zero1`"
std::string words_of(const Divisions& where) {
  std::vector<std::string> words;
  const auto add = [&](bool is_meant, const char* word) {
    if (is_meant) words.push_back(word);
  };
  const bool shards = where.zero1 && where.zero2 && where.fsdp;
  add(where.pp, "`pp`"), add(where.device_map, "`device_map`"), add(where.tp, "`tp`"),
      add(where.cp, "`cp`");
  add(shards, "`dp_shard`");
  add(where.zero1 && !shards, "`zero1`"), add(where.zero2 && !shards, "`zero2`");
  return join(words, " or ");
}

std::string line_of(const Refusal& row) {
  const std::string by = words_of(row.where);
  std::string text = row.message;
  for (const char* shown : {"`{by}`", "{by}"}) text = with(text, shown, by);
  const std::string values = row.values == nullptr ? "" : join(row.values(), ", ");
  for (const char* value : {"{optimizer}", "{backend}"}) text = with(text, value, values);
  return fmt::format("| {} | {} | {} |\n", by, text, row.fix({}));
}

TEST(Refusals, AreThoseOfTheDocument) {
  std::string table;
  for (const Refusal& row : refusals()) table += line_of(row);
  const std::string page = read_text_file(kPage);
  const std::string head = "<!-- refusals -->\n| with | refused | instead |\n|---|---|---|\n";
  ASSERT_NE(page.find(head), std::string::npos);
  const size_t begin = page.find(head) + head.size();
  EXPECT_EQ(page.substr(begin, page.find("\n\n", begin) + 1 - begin), table)
      << "copy these lines to docs/parallelism.md:\n"
      << table;
}

/// A setting divides a run in a way that a row names, exactly where its axes do.
TEST(Refusals, AskSettingsAsTheyAskAxes) {
  const std::vector<ParallelConfig> divided = {{.strategy = kDdp},
                                               {.strategy = kZero1},
                                               {.strategy = kZero2},
                                               {.strategy = kZero3},
                                               {.strategy = kFsdp},
                                               {.strategy = kHybrid},
                                               {.strategy = kPipeline},
                                               {.strategy = kTensor},
                                               {.dp_shard = 2},
                                               {.strategy = kFsdp, .pp = 2},
                                               {.strategy = kZero1, .tp = 2},
                                               {.pp = 2, .tp = 2},
                                               {.cp = 2}};
  for (const Refusal& row : refusals())
    for (const ParallelConfig& parallel : divided)
      EXPECT_EQ(row.where.setting(parallel).empty(), !row.where.has_any_of(axes_of(parallel, 4, 2)))
          << row.message << " with " << describe(axes_of(parallel, 4, 2));
  const Divisions stages{.pp = true}, map{.device_map = true};
  EXPECT_EQ(map.setting({.strategy = kDeviceMap}), "parallel.strategy: device_map");
  EXPECT_EQ(stages.setting({.strategy = kDeviceMap}), "");
  EXPECT_TRUE(map.has_any_of({.pp = 2, .stages_in_process = true}));
  EXPECT_FALSE(stages.has_any_of({.pp = 2, .stages_in_process = true}));
}

TEST(Refusals, NameTheSettingThatDivides) {
  RunConfig run;
  run.tuning.mode = TuningMode::kFull;
  run.train.optimizer = Optimizer::kMuon;
  run.parallel = {.dp_shard = 2};
  resolve_axes(run.parallel, 2, 2);
  const Refusal* found = find_refusal(run, run.parallel.axes, {});
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(message_of(*found, run),
            "train.optimizer muon computes each update from a whole matrix, and "
            "parallel.strategy: fsdp divides matrices over the processes");
  test::expect_error<ConfigError>(
      [&] {
        require_possible(run, run.parallel.axes, KnownBy::kProcesses, {},
                         [](const Divisions& where) { return where.fsdp ? "run.yaml:3" : ""; });
      },
      {"muon", "run.yaml:3", "use parallel.strategy ddp without parallel.dp_shard"});
  EXPECT_EQ(find_refusal(run, {.dp_replicate = 2}, {}), nullptr);
  EXPECT_EQ(find_refusal({}, {.pp = 2}, {}), nullptr);
  EXPECT_NE(find_refusal({}, {.pp = 2}, {.shares_keys = true}), nullptr);
  EXPECT_EQ(find_refusal({}, {.tp = 2}, {.shares_keys = true}), nullptr);
}

}  // namespace
}  // namespace sftrun::config
