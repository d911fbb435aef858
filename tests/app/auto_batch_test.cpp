#include <gtest/gtest.h>

#include "memory_report.h"
#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "support/temporary_directory.h"
#include "support/test_data.h"

/// What automatic batch sizes become for released models on cards people have.
namespace sftrun::app {
namespace {

namespace fs = std::filesystem;

struct Shape {
  const char* model;  ///< of tests/data/shapes.json
  const char* gpus;
  const char* mode;
  int64_t max_seq_len;
  const char* strategy;
  int64_t batch_size, grad_accum;
};

void PrintTo(const Shape& shape, std::ostream* out) {
  *out << shape.model << " " << shape.mode << " on " << shape.gpus;
}

class AutoBatch : public ::testing::TestWithParam<Shape> {
 protected:
  AutoBatch() { log::configure({.console = log::Level::kOff}); }

  MemoryReport report(const std::vector<std::string>& overrides = {}) {
    const Shape& shape = GetParam();
    const auto shapes =
        nlohmann::json::parse(read_text_file(fs::path(SFTRUN_TEST_DATA) / "shapes.json"));
    const fs::path model = directory_ / shape.model;
    fs::create_directories(model);
    write_file_atomically(model / "config.json", shapes.at(shape.model).dump());
    const nlohmann::json run = {
        {"model", {{"name", model.string()}, {"max_seq_len", shape.max_seq_len}}},
        {"tuning", {{"mode", shape.mode}, {"lora", {{"r", 32}}}}},
        {"data", {{"train", "train.jsonl"}}},
        {"train", {{"gradient_checkpointing", true}}}};
    write_file_atomically(directory_ / "run.yaml", run.dump());
    TrainOptions options;
    options.config = directory_ / "run.yaml";
    options.overrides = overrides;
    options.gpus = shape.gpus;
    return memory_report(options);
  }

  test::TemporaryDirectory directory_;
};

/// 32 bins a step: the largest micro-batch that divides them over the ranks, leaves 4 accumulation
/// steps, and fits with a fifth of the memory left.
TEST_P(AutoBatch, IsTheLargestThatFits) {
  const Shape& shape = GetParam();
  const MemoryReport chosen = report();
  const config::TrainConfig& train = chosen.config.train;
  EXPECT_EQ(std::string(config::strategy_name(chosen.config.parallel.strategy)), shape.strategy);
  EXPECT_EQ(train.batch_size.value, shape.batch_size);
  EXPECT_EQ(train.grad_accum.value, shape.grad_accum);
  const int64_t ranks = chosen.devices.place.devices.world_size;
  EXPECT_EQ(*train.batch_size.value * *train.grad_accum.value * ranks,
            std::max(ranks, config::kTargetGlobalBatch / ranks * ranks));
  const auto bound = static_cast<int64_t>(0.8 * static_cast<double>(chosen.memory_bytes()));
  if (*train.batch_size.value > 1) {
    EXPECT_LE(chosen.plan.tensors(), bound);
  }
  const int64_t of_rank = *train.batch_size.value * *train.grad_accum.value;
  for (int64_t size = *train.batch_size.value + 1; size <= of_rank; ++size) {
    if (of_rank % size != 0 || (of_rank >= 4 && of_rank / size < 4)) continue;
    const MemoryReport larger = report({"train.batch_size=" + std::to_string(size),
                                        std::string("parallel.strategy=") + shape.strategy});
    EXPECT_GT(larger.plan.tensors(), bound) << "a micro-batch of " << size << " fits, too";
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, AutoBatch,
                         ::testing::Values(
                             // The worked example of SFT-Play's guide: 4 x 4 x 2.
                             Shape{"Gemma-3-27B", "2x H200", "qlora", 2048, "ddp", 4, 4},
                             Shape{"SmolLM2-135M", "1x RTX3060-12GB", "full", 2048, "single", 8, 4},
                             Shape{"Qwen2.5-0.5B", "1x A2", "full", 2048, "single", 8, 4},
                             Shape{"Gemma-3-1B", "1x RTX4060", "lora", 2048, "single", 8, 4},
                             Shape{"Llama-3.2-1B", "1x RTX4090", "full", 2048, "single", 1, 32},
                             Shape{"Qwen2.5-1.5B", "2x RTX3090", "full", 2048, "zero2", 2, 8},
                             Shape{"Llama-3.2-3B", "1x RTX3060-12GB", "lora", 4096, "single", 2,
                                   16},
                             Shape{"Gemma-3-4B", "4x L4", "lora", 4096, "ddp", 2, 4},
                             Shape{"Qwen3-4B", "8x A100-40GB", "full", 4096, "zero2", 1, 4},
                             Shape{"Mistral-7B-v0.3", "1x RTX4090", "lora", 2048, "single", 4, 8},
                             Shape{"Qwen2.5-7B", "2x RTX4090", "qlora", 2048, "ddp", 4, 4},
                             Shape{"Llama-3.1-8B", "1x RTX3090", "qlora", 8192, "single", 2, 16},
                             Shape{"Gemma-2-9B", "16x A100-80GB", "full", 4096, "zero2", 2, 1},
                             Shape{"Gemma-3-12B", "1x RTX4080", "qlora", 4096, "single", 1, 32},
                             Shape{"Qwen2.5-14B", "2x RTX4090", "qlora", 1536, "ddp", 4, 4},
                             Shape{"Qwen3-30B-A3B", "1x A100-80GB", "lora", 4096, "single", 4, 8},
                             Shape{"Qwen2.5-32B", "3x RTX6000Ada", "qlora", 4096, "ddp", 2, 5},
                             Shape{"Mixtral-8x7B", "4x H100", "lora", 2048, "fsdp", 2, 4},
                             Shape{"Llama-3.1-70B", "4x H200", "qlora", 4096, "ddp", 2, 4},
                             Shape{"Qwen2.5-72B", "64x H100", "full", 4096, "fsdp", 1, 1}));

}  // namespace
}  // namespace sftrun::app
