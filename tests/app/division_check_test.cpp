#include "division_check.h"

#include <gtest/gtest.h>

#include "run_check.h"
#include "support/expect_error.h"
#include "support/test_data.h"

namespace sftrun::app {
namespace {

/// Flags beside a model of 2 layers and 4 heads.
class DivisionChecks : public ::testing::Test {
 protected:
  DivisionChecks() { files.arch = read_headers(test::kData / "train/models/tied").arch; }

  void check(int64_t processes) { check_division(flags, use, &files, tuning, processes); }
  void refuses(int64_t processes, std::initializer_list<std::string> parts) {
    test::expect_error<ConfigError>([&] { check(processes); }, parts);
  }

  plan::ModelFiles files;
  config::TuningConfig tuning;
  DivisionFlags flags;
  DividedUse use;
};

TEST_F(DivisionChecks, FlagsThatFitAreAccepted) {
  flags = {.tp = 2};
  check(2), check(4);
  flags = {.tp = 2, .pp = 2};
  check(4);
  flags = {.strategy = "tensor"};
  check(4);
  flags = {.strategy = "pipeline"};
  check(4);
  flags = {.strategy = "device_map", .pp = 4};
  check(1);
  flags = {.strategy = "fsdp"};
  check(5);
  flags = {.tp = 3};
  check_division(flags, use, nullptr, tuning, 3);  // the engine reads the model
}

TEST_F(DivisionChecks, OneProcessDividesNothing) {
  flags = {.tp = 2};
  refuses(1, {"`--tp 2` divides the model over 2 processes, and there is one", "at   --tp on the",
              "fix: add --nproc-per-node 2"});
  flags = {.strategy = "pipeline"};
  refuses(1, {"`--strategy pipeline` divides the model over processes", "at   --strategy on the",
              "fix: add --nproc-per-node 2 or more"});
  flags = {.pp = 1};
  refuses(1, {"`--pp 1` divides nothing", "leave it out"});
  flags = {.tp = 2};
  use.is_stream = true;
  refuses(1, {"fix: name files for --input and --output, and add --nproc-per-node 2"});
}

TEST_F(DivisionChecks, StagesHaveAUnitEach) {
  constexpr const char* kFew =
      "the model has 2 layers, an embedding and a head, too few for 5 stages";
  flags = {.pp = 5};
  refuses(5,
          {kFew, "at   --pp on the", "fix: use --pp 4 or less, with --nproc-per-node a multiple"});
  flags = {.strategy = "pipeline"};
  refuses(5,
          {kFew, "at   --strategy and --nproc-per-node on", "fix: use --nproc-per-node 4 or less"});
  refuses(8, {"too few for 8 stages", "fix: add --pp 2 or 4, or use --strategy fsdp"});
  flags = {.strategy = "device_map", .pp = 5};
  refuses(1, {kFew, "fix: use --pp 4 or less"});
  files.arch.layers[1].keys_of = 0;
  flags = {.pp = 2};
  refuses(2, {"share keys", "at   --pp on the", "fix: use --strategy tensor or fsdp"});
}

TEST_F(DivisionChecks, PartsHaveHeads) {
  flags = {.tp = 3};
  refuses(3, {"4 attention heads, which cannot be divided by 3", "at   --tp on the command line",
              "fix: use --tp 2 or 4, with --nproc-per-node a multiple of it, or use --strategy"});
  refuses(6, {"fix: use --tp 2, or use --strategy pipeline or fsdp"});
  flags = {.strategy = "tensor"};
  refuses(8,
          {"divided by 8", "at   --strategy and --nproc-per-node on", "fix: add --tp 2 or 4, or"});
  use.has_one_copy = true;
  refuses(8, {"fix: use --nproc-per-node 2 or 4, or use --strategy pipeline"});
  files.arch.qk_norm = spec::QkNorm::kWhole;
  refuses(2, {"over all heads together", "fix: use --strategy pipeline or fsdp"});
}

TEST_F(DivisionChecks, SizesDivideTheProcesses) {
  flags = {.tp = 2};
  refuses(3, {"`--tp 2` needs a multiple of 2 processes, and there are 3",
              "at   --tp on the command line; --nproc-per-node on the command line",
              "fix: use --nproc-per-node 2 or 4"});
  use.nnodes = 3;
  refuses(3, {"fix: use 2 or 4 processes on all machines together (--nproc-per-node)"});
  use.nnodes = 1;
  flags = {.tp = 2, .pp = 2};
  refuses(2, {"`--tp 2 --pp 2` needs 4 processes, and there are 2", "fix: use --nproc-per-node 4"});
}

TEST_F(DivisionChecks, ProcessesThatAnswerTogetherHaveOneCopy) {
  use = {.command = "serve", .has_one_copy = true, .takes_shards = false};
  flags = {.tp = 2};
  refuses(4, {"`--tp 2` on 4 processes makes 2 copies of the model, and serve has one",
              "fix: use --nproc-per-node 2, or add --pp 2"});
  refuses(16, {"makes 8 copies", "fix: use --nproc-per-node 2"});
  flags = {.pp = 2};
  refuses(8, {"makes 4 copies", "fix: use --nproc-per-node 2, or add --tp 4"});
  flags = {.strategy = "fsdp"};
  refuses(2, {"`--strategy fsdp` is not for serve", "fix: use --strategy tensor or pipeline"});
  use = {.command = "--prompt", .has_one_copy = true};
  check(2);
}

}  // namespace
}  // namespace sftrun::app
