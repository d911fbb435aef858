#include "division_choice.h"

#include <gtest/gtest.h>

#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace sftrun::app {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kOneGiB = uint64_t{1} << 30, kHostBytes = 64 * kOneGiB;

/// A machine with stand-in cards, and a model of Llama 3 70B's shape: 131 GiB, of which only the
/// header is there.
class DivisionChoices : public ::testing::Test {
 protected:
  DivisionChoices() {
    log::configure({.console = log::Level::kOff, .file = directory_ / "log"});
    write_model(80);
  }
  ~DivisionChoices() override { log::configure({.console = log::Level::kOff}); }

  void write_model(int layers) {
    fs::create_directories(model());
    const nlohmann::json config = {
        {"model_type", "llama"},      {"hidden_size", 8192},
        {"intermediate_size", 28672}, {"num_hidden_layers", layers},
        {"num_attention_heads", 64},  {"num_key_value_heads", 8},
        {"vocab_size", 128256},       {"max_position_embeddings", 131072},
        {"rms_norm_eps", 1e-5},       {"tie_word_embeddings", false}};
    write_file_atomically(model() / "config.json", config.dump());
    // Its size alone counts: read_headers takes config.json where there are no weights of that name.
    write_file_atomically(model() / "part.safetensors", "");
    fs::resize_file(model() / "part.safetensors", static_cast<uint64_t>(layers) * kOneGiB);
  }
  fs::path model() const { return directory_ / "run" / "model"; }
  std::string told() const { return read_text_file(directory_ / "log"); }

  static launch::Machine machine(int count, uint64_t gib) {
    launch::Machine machine{.available_cpus = 8};
    for (int i = 0; i < count; ++i)
      machine.gpus.gpus.push_back({.index = i,
                                   .name = "H100",
                                   .uuid = "GPU-" + std::to_string(i),
                                   .compute_major = 9,
                                   .memory_total_bytes = gib * kOneGiB});
    machine.gpus.links.assign(static_cast<size_t>(count),
                              std::vector<std::string>(static_cast<size_t>(count), "NV18"));
    return machine;
  }

  /// The flags as they are then.
  std::string choose(const launch::Machine& machine) {
    UsedModel used = use;
    used.model = model();
    LaunchFlags chosen = launch;
    DivisionFlags division = flags;
    choose_division(used, machine, kHostBytes, chosen, division);
    std::string text = division.strategy;
    if (division.tp) text += fmt::format(" tp {}", *division.tp);
    if (division.pp) text += fmt::format(" pp {}", *division.pp);
    return text + ", " + chosen.nproc_per_node;
  }

  test::TemporaryDirectory directory_;
  UsedModel use{.sequences = {.rows = 8, .tokens = 1280, .prompt_tokens = 1024}};
  LaunchFlags launch;
  DivisionFlags flags;
};

TEST_F(DivisionChoices, AModelThatFitsIsWhole) {
  EXPECT_EQ(choose(machine(4, 180)), "auto, auto");
  EXPECT_EQ(told(), "");
  use.has_one_copy = true;
  EXPECT_EQ(choose(machine(4, 180)), "auto, 1");
}

TEST_F(DivisionChoices, OneThatDoesNotIsDividedAndALineSaysWhy) {
  EXPECT_EQ(choose(machine(4, 80)), "tensor tp 2, 4");
  EXPECT_NE(told().find("dividing the model, as with --strategy tensor --tp 2 --nproc-per-node 4: "
                        "it needs "),
            std::string::npos)
      << told();
  EXPECT_NE(told().find("and a H100 has 79.50 GiB"), std::string::npos) << told();
  use.has_one_copy = true;
  EXPECT_EQ(choose(machine(4, 80)), "tensor tp 2, 2");
}

TEST_F(DivisionChoices, FlagsThatDivideStayAsTheyAre) {
  flags.pp = 4;
  EXPECT_EQ(choose(machine(4, 80)), "auto pp 4, auto");
}

TEST_F(DivisionChoices, ProcessesThatAnswerTogetherDivideTheModelAlsoWhereItFits) {
  use.has_one_copy = true;
  launch.nproc_per_node = "4";
  EXPECT_EQ(choose(machine(4, 180)), "tensor tp 4, 4");
  EXPECT_NE(told().find("4 processes answer together"), std::string::npos) << told();
  use.has_one_copy = false;
  EXPECT_EQ(choose(machine(4, 180)), "auto, 4");
}

TEST_F(DivisionChoices, ADeviceMapHasOneProcess) {
  flags.device_map = "auto";
  EXPECT_EQ(choose(machine(4, 80)), "device_map pp 2, 1");
  EXPECT_EQ(choose(machine(4, 180)), "auto, 1");
  flags.device_map = "balanced";
  EXPECT_EQ(choose(machine(4, 80)), "device_map, auto");
  flags.tp = 2;
  test::expect_error<ConfigError>([&] { choose(machine(4, 80)); },
                                  {"--device-map balanced", "--device-map on the command line"});
}

TEST_F(DivisionChoices, FlagsThatDoNotFitAreNamedBeforeAWorkerStarts) {
  flags.tp = 3;
  test::expect_error<ConfigError>([&] { choose(machine(3, 80)); },
                                  {"64 attention heads, which cannot be divided by 3"});
  flags.tp = 2;
  use.has_one_copy = true;
  test::expect_error<ConfigError>([&] { choose(machine(4, 80)); }, {"makes 2 copies of the model"});
}

TEST_F(DivisionChoices, AMapOnACpuHasNoEffect) {
  flags.strategy = "device_map", flags.pp = 2;
  choose(machine(0, 0));  // two stages
  EXPECT_EQ(told(), "");
  flags.pp.reset();
  choose(machine(0, 0));
  EXPECT_NE(told().find("--strategy device_map has no effect on a CPU"), std::string::npos);
  flags.strategy = "auto", flags.device_map = "balanced";
  choose(machine(2, 180));
  EXPECT_EQ(told().find("--device-map"), std::string::npos) << told();
  choose(machine(0, 0));
  EXPECT_NE(told().find("--device-map balanced has no effect on a CPU"), std::string::npos);
}

TEST_F(DivisionChoices, AStreamHasOneProcess) {
  use.is_one_process = true;
  EXPECT_EQ(choose(machine(4, 80)), "device_map pp 2, 1");
  launch.nproc_per_node = "2";
  EXPECT_EQ(choose(machine(4, 80)), "auto, 2");
}

TEST_F(DivisionChoices, TheRunsOwnDivisionComesFirst) {
  write_file_atomically(directory_ / "run" / "config.resolved.yaml",
                        "model: {name: base}\ndata: {train: x.jsonl}\n"
                        "parallel: {strategy: pipeline, pp: 4}\n");
  EXPECT_EQ(choose(machine(4, 80)), "pipeline pp 4, 4");
  EXPECT_NE(told().find("(the division of its training run)"), std::string::npos) << told();
}

TEST_F(DivisionChoices, WhereItFitsNowhereAnErrorNamesTheCheapestChange) {
  launch.gpus = "0,1";
  test::expect_error<OutOfMemoryError>(
      [&] { choose(machine(4, 44)); },
      {"the model does not fit: a part of it needs ",
       "(--strategy tensor --tp 2 --nproc-per-node 2)", "each H100 has 43.50 GiB",
       "fix: use more of the GPUs of this machine: --strategy tensor --tp 4 --nproc-per-node 4"});
  launch.gpus.clear();
  test::expect_error<OutOfMemoryError>(
      [&] { choose(machine(2, 44)); },
      {"fix: quantise it to 4 bits: sftrun quantize --model ", " --method nf4 "});
  test::expect_error<OutOfMemoryError>(
      [&] { choose(machine(1, 16)); },
      {"it needs 13", "use a machine with 12 such GPUs (--tp 4 --pp 3 --nproc-per-node 12)"});
  test::expect_error<OutOfMemoryError>([&] { choose(machine(1, 4)); },
                                       {"fix: use GPUs with more memory, or a smaller model"});
}

TEST_F(DivisionChoices, OnSeveralMachinesTheFlagsAreAskedFor) {
  launch.nnodes = 2;
  launch.master_addr = "10.0.0.1";
  test::expect_error<ConfigError>(
      [&] { choose(machine(4, 80)); },
      {"--nnodes on the command line",
       "name the division on every machine, as in --strategy tensor --tp 2 --nproc-per-node 4"});
}

TEST_F(DivisionChoices, OnACpuProcessesShareTheMemory) {
  write_model(20);  // 36 GiB in bf16, 72 in fp32
  use.dtype = "bf16";
  launch.nproc_per_node = "2";
  EXPECT_EQ(choose(machine(0, 0)), "tensor tp 2, 2");
  launch.nproc_per_node = "auto";
  EXPECT_EQ(choose(machine(0, 0)), "auto, auto");
  use.dtype = "fp32";
  test::expect_error<OutOfMemoryError>(
      [&] { choose(machine(0, 0)); }, {"the model does not fit", "a quantised or a smaller model"});
}

TEST_F(DivisionChoices, MemoryThatOtherProcessesUseIsNotCounted) {
  launch::Machine busy = machine(4, 180);
  for (launch::GpuInfo& gpu : busy.gpus.gpus) gpu.memory_free_bytes = 179 * kOneGiB;
  EXPECT_EQ(choose(busy), "auto, auto");
  busy.gpus.gpus[2].memory_free_bytes = 80 * kOneGiB;
  EXPECT_EQ(choose(busy), "tensor tp 2, 4");
  EXPECT_NE(told().find("and a H100 has 80.00 GiB free (other processes use 99.50 GiB)"),
            std::string::npos)
      << told();
}

TEST_F(DivisionChoices, MachinesThatMustChooseAlikeCountOnlyWhatAllSee) {
  launch.nnodes = 2, launch.master_addr = "10.0.0.1";
  launch::Machine busy = machine(4, 180);
  busy.gpus.gpus[2].memory_free_bytes = 40 * kOneGiB;
  EXPECT_EQ(choose(busy), "auto, auto");
}

TEST_F(DivisionChoices, GpusOfUnknownMemoryChangeNothing) {
  launch::Machine unknown = machine(4, 80);
  for (launch::GpuInfo& gpu : unknown.gpus.gpus) gpu.memory_total_bytes.reset();
  EXPECT_EQ(choose(unknown), "auto, auto");
}

}  // namespace
}  // namespace sftrun::app
