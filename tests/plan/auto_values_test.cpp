#include "sftrun/plan/auto_values.h"

#include <gtest/gtest.h>

#include "sftrun/plan/quant_notes.h"
#include "support/expect_error.h"

namespace sftrun::plan {
namespace {

using config::Quant;
using test::expect_error;

nlohmann::json llama() {
  return {{"model_type", "llama"},      {"vocab_size", 64},       {"hidden_size", 32},
          {"intermediate_size", 64},    {"num_hidden_layers", 2}, {"num_attention_heads", 4},
          {"num_key_value_heads", 2},   {"rms_norm_eps", 1e-5},   {"max_position_embeddings", 128},
          {"tie_word_embeddings", true}};
}

spec::ArchSpec with_rope(const nlohmann::json& scaling) {
  nlohmann::json config = llama();
  config["rope_scaling"] = scaling;
  return spec::ArchSpec::from_hf_config(config, "config.json");
}

TEST(ResolvedDtype, FollowsTheDevice) {
  using enum config::DTypeChoice;
  EXPECT_EQ(resolved_dtype(kAuto, true), kBf16);
  EXPECT_EQ(resolved_dtype(kAuto, false), cpu_multiplies_bf16() ? kBf16 : kFp32);
  EXPECT_EQ(resolved_dtype(kFp32, true), kFp32);
  EXPECT_EQ(resolved_dtype(kFp16, true), kFp16);
  expect_error<ConfigError>([] { resolved_dtype(kFp16, false); },
                            {"fp16 is not supported on a CPU", "use bf16 or fp32"});
}

TEST(ResolvedQuant, IsWhatTheFilesHaveElseWhatTheModeAsksFor) {
  config::TuningConfig tuning;
  EXPECT_EQ(resolved_quant(tuning, {}), Quant::kNone);
  EXPECT_EQ(resolved_quant(tuning, {"stored", "gguf"}), Quant::kGguf);
  EXPECT_EQ(resolved_quant(tuning, {"stored", "gguf", "mxfp4"}), Quant::kGguf);
  EXPECT_EQ(resolved_quant(tuning, {"stored", "mxfp4"}), Quant::kMxfp4);
  EXPECT_EQ(resolved_quant(tuning, {"stored"}), Quant::kStored);
  tuning.mode = config::TuningMode::kQlora;
  EXPECT_EQ(resolved_quant(tuning, {}), config::quant_of(QuantFormat::kNf4));
  EXPECT_EQ(resolved_quant(tuning, {"stored"}), Quant::kStored);
  tuning.quant = config::quant_of(QuantFormat::kInt8);
  EXPECT_EQ(resolved_quant(tuning, {"stored"}), config::quant_of(QuantFormat::kInt8));
  tuning = {.mode = config::TuningMode::kFull};
  EXPECT_EQ(resolved_quant(tuning, {"stored", "gguf"}), Quant::kNone);
}

TEST(Positions, AreTheModelsWithItsRopeScaling) {
  EXPECT_EQ(num_positions(spec::ArchSpec::from_hf_config(llama(), "config.json")), 128);
  EXPECT_EQ(num_positions(with_rope({{"rope_type", "linear"}, {"factor", 4.0}})), 512);
  EXPECT_EQ(num_positions(with_rope({{"rope_type", "dynamic"}, {"factor", 2.0}})), std::nullopt);
  EXPECT_EQ(
      num_positions(with_rope(
          {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 128}})),
      512);
  EXPECT_EQ(
      num_positions(with_rope(
          {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32}})),
      128);
  EXPECT_EQ(num_positions(with_rope({{"rope_type", "llama3"},
                                     {"factor", 8.0},
                                     {"low_freq_factor", 1.0},
                                     {"high_freq_factor", 4.0},
                                     {"original_max_position_embeddings", 64}})),
            128);
}

TEST(Positions, MoreThanTheModelsAreWarnedOf) {
  const spec::ArchSpec arch = spec::ArchSpec::from_hf_config(llama(), "config.json");
  config::ModelConfig model{.max_seq_len = 128};
  EXPECT_EQ(position_warning(model, arch), "");
  model.max_seq_len = 129;
  EXPECT_NE(position_warning(model, arch).find("more than the model's 128 positions"),
            std::string::npos);
}

TEST(Pissa, IsRefusedOverGgmlBlocksThatItWouldChange) {
  const spec::ArchSpec arch = spec::ArchSpec::from_hf_config(llama(), "config.json");
  const StoredBytes stored = {{"model.layers.1.self_attn.q_proj.weight", 100}};
  const std::set<std::string> gguf = {"stored", "gguf"};
  config::TuningConfig tuning;
  tuning.lora.init = config::LoraInit::kPissa;
  const auto refuse = [&] { require_pissa_over(tuning, arch, stored, gguf); };
  expect_error<ConfigError>(refuse, {"layers.1.self_attn.q_proj", "ggml's blocks",
                                     "tuning.lora.init", "set tuning.quant to nf4 or none"});
  require_pissa_over(tuning, arch, stored, {"stored"});  // bitsandbytes' forms are written again
  tuning.lora.target_modules.names = {"v_proj"};
  refuse();
  tuning.lora.target_modules.names = {"all-linear"};
  tuning.quant = config::quant_of(QuantFormat::kNf4);
  refuse();
  tuning.quant = Quant::kGguf;
  tuning.skip_modules = {"layers.1"};
  refuse();
}

TEST(Blocks, StoredNeedsQuantisedFiles) {
  require_blocks(Quant::kStored, {"stored"});
  expect_error<ConfigError>([] { require_blocks(Quant::kStored, {}); },
                            {"`tuning.quant` is stored", "remove quant"});
  expect_error<ConfigError>(
      [] { require_blocks(Quant::kGguf, {"stored"}, "train.teacher_quant"); },
      {"`train.teacher_quant` is gguf", "train.teacher_quant\n", "remove teacher_quant"});
}

}  // namespace
}  // namespace sftrun::plan
