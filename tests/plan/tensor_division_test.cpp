#include "sftrun/plan/tensor_division.h"

#include <gtest/gtest.h>

#include "sftrun/core/error.h"
#include "sftrun/plan/memory_plan.h"
#include "sftrun/plan/refusals.h"
#include "support/expect_error.h"
#include "support/llama_shapes.h"

namespace sftrun::plan {
namespace {

/// 32 heads of 128 channels, and an MLP of 14336.
config::RunConfig qlora_in_blocks(int64_t block_size) {
  config::RunConfig config;
  config.tuning.mode = config::TuningMode::kQlora;
  config.tuning.quant = config::quant_of(QuantFormat::kNf4);
  config.tuning.quant_block_size = block_size;
  return config;
}

constexpr const char* kOutProjection = "model.layers.0.self_attn.o_proj.weight";

void expect_fix(const config::RunConfig& config, const StoredBlocks& stored, int64_t parts,
                const std::string& what, const std::string& fix) {
  try {
    tensor_part(test::llama_8b(), config, stored, {.size = parts}, "run.yaml:7");
    ADD_FAILURE() << what << ": no error";
  } catch (const ConfigError& error) {
    EXPECT_NE(error.message().find(what), std::string::npos) << error.message();
    EXPECT_EQ(error.where(), "run.yaml:7");
    EXPECT_EQ(error.fix(), fix);
  }
}

TEST(TensorDivision, NamesSizesThatSuitTheBlocks) {
  const std::string without = "use, without parallel.tp, parallel.strategy fsdp or pipeline";
  EXPECT_EQ(tensor_part(test::llama_8b(), qlora_in_blocks(512), {}, {.size = 8}).multiple, 512);
  expect_fix(qlora_in_blocks(1024), {}, 8,
             "a part of model.layers.0.self_attn.o_proj.weight has 512 columns, and its format "
             "stores blocks of 1024 values",
             "set parallel.tp to 4, or set tuning.quant_block_size to 512, or " + without);
  expect_fix(qlora_in_blocks(4096), {}, 2, "blocks of 4096 values",
             "set tuning.quant_block_size to 2048, or " + without);
  // The blocks of files stay as they are.
  config::RunConfig stored = qlora_in_blocks(64);
  stored.tuning.quant = config::Quant::kStored;
  expect_fix(stored, {{kOutProjection, 1024}}, 8, "blocks of 1024 values",
             "set parallel.tp to 4, or " + without);
  expect_fix(stored, {{kOutProjection, 4096}}, 2, "blocks of 4096 values", without);
}

TEST(TensorDivision, NamesSizesThatDivideTheHeads) {
  spec::ArchSpec arch = test::llama_8b();
  arch.num_heads = 12, arch.num_kv_heads = 6;
  test::expect_error<ConfigError>(
      [&] { tensor_part(arch, {}, {}, {.size = 8}); },
      {"cannot be divided by 8", "set parallel.tp to 2, or use, without parallel.tp"});
  test::expect_error<ConfigError>([&] { tensor_part(arch, {}, {}, {.size = 5}); },
                                  {"cannot be divided by 5", "set parallel.tp to 2 or 3, or use"});
}

/// The first 49 of 99 rows of 32 values end within a block of 64.
TEST(TensorDivision, OfRowsThatShareBlocks) {
  spec::ArchSpec arch = test::llama_8b();
  arch.hidden_size = 32, arch.intermediate_size = 128, arch.vocab_size = 99;
  arch.num_heads = 16, arch.num_kv_heads = 4, arch.head_dim = 64;
  config::TuningConfig tuning = qlora_in_blocks(64).tuning;
  EXPECT_EQ(refusal_of_parts(arch, tuning, {}, 2), "");
  tuning.quant_embeddings = true;
  EXPECT_EQ(
      refusal_of_parts(arch, tuning, {}, 2),
      "tensor parallelism cannot divide model.embed_tokens.weight: its format stores blocks of 64 "
      "values");
  arch.vocab_size = 96;
  EXPECT_EQ(refusal_of_parts(arch, tuning, {}, 2), "");
}

/// Rows of memory-check, `auto` and changes ask the same.
TEST(TensorDivision, OfBlocksIsRefusedBeforeTheRun) {
  config::RunConfig config = qlora_in_blocks(1024);
  config.train.batch_size.value = 1, config.train.grad_accum.value = 8;
  config.parallel.strategy = config::Strategy::kDdp;
  config::resolve_axes(config.parallel, 8, 8);
  const RunDevices devices{.memory_bytes = uint64_t{24} << 30,
                           .element_bytes = 2,
                           .on_gpu = true,
                           .world_size = 8,
                           .local_world_size = 8};
  const auto refusal = [&](const StrategySizes& sizes, const StoredBlocks& blocks) {
    return with_strategy(test::llama_8b(), config, sizes, devices, {}, blocks).refusal;
  };
  using enum config::Strategy;
  EXPECT_NE(refusal({.strategy = kTensor}, {}).find("blocks of 1024 values"), std::string::npos);
  EXPECT_EQ(refusal({.strategy = kFsdp, .tp = 4}, {}), "");
  EXPECT_NE(refusal({.strategy = kFsdp, .tp = 4}, {{kOutProjection, 2048}}).find("2048"),
            std::string::npos);
  config.tuning.quant = config::quant_of(QuantFormat::kInt8);
  EXPECT_EQ(refusal({.strategy = kTensor}, {}), "") << "rows have scales of their own";
}

}  // namespace
}  // namespace sftrun::plan
