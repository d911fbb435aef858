#include "reader_advice.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "sftrun/model/adapter_io.h"
#include "support/test_data.h"

namespace sftrun::engine {
namespace {

std::shared_ptr<const weights::Checkpoint> base_of(const char* name) {
  return weights::Checkpoint::open(test::kModels / name);
}

std::unique_ptr<model::Decoder> decoder_with(const std::vector<std::string>& targets) {
  model::DecoderOptions options;
  options.trains = model::Trains::kLora;
  options.lora.target_modules = targets;
  return model::Decoder::load(base_of("tied-gqa"), options);
}

TEST(AdaptedModules, AreThoseOfTheDecoder) {
  EXPECT_EQ(adapted_modules(*decoder_with({"q_proj"})),
            (std::set<std::string>{"model.layers.0.self_attn.q_proj",
                                   "model.layers.1.self_attn.q_proj"}));
  EXPECT_TRUE(
      adapted_modules(*decoder_with({"embed_tokens", "q_proj"})).contains("model.embed_tokens"));
}

TEST(IsStoredIn, AsksTheBasesFiles) {
  EXPECT_TRUE(is_stored_in(*base_of("bnb-nf4"), "nf4"));
  EXPECT_FALSE(is_stored_in(*base_of("bnb-nf4"), "fp4"));
  EXPECT_FALSE(is_stored_in(*base_of("tied-gqa"), "nf4"));
}

/// How to write the quantised base is said where no file has it.
TEST(ReaderLines, SayHowToQuantiseABaseThatTheRunQuantised) {
  const auto decoder = decoder_with({"q_proj"});
  const auto config = model::adapter_config_of(*decoder, "base");
  const auto lines_for = [&](const char* base, config::Quant quant) {
    config::BaseRecord held{.form = quant == config::quant_of(QuantFormat::kNf4) ? "nf4" : ""};
    held.tuning.mode = config::TuningMode::kLora;
    held.tuning.quant = quant;
    return reader_lines(config, adapted_modules(*decoder), held, *base_of(base),
                        test::kModels / base, "run/adapter", /*embeds=*/false);
  };
  const auto quantise = [](const std::vector<std::string>& lines) {
    return std::count_if(lines.begin(), lines.end(), [](const std::string& line) {
      return line.find("sftrun quantize") != std::string::npos;
    });
  };
  EXPECT_GT(quantise(lines_for("tied-gqa", config::quant_of(QuantFormat::kNf4))), 0);
  EXPECT_EQ(quantise(lines_for("tied-gqa", config::Quant::kNone)), 0);
  EXPECT_EQ(quantise(lines_for("bnb-nf4", config::quant_of(QuantFormat::kNf4))), 0);
}

/// vLLM and llama.cpp serve models that write texts.
TEST(ReaderLines, OfAnEmbeddingModelAreAboutWhatLoadsIt) {
  const auto decoder = decoder_with({"q_proj"});
  const auto config = model::adapter_config_of(*decoder, "base");
  const auto lines_for = [&](bool embeds) {
    return reader_lines(config, adapted_modules(*decoder), {}, *base_of("tied-gqa"),
                        test::kModels / "tied-gqa", "run/adapter", embeds);
  };
  ASSERT_EQ(lines_for(true).size(), 1U);
  EXPECT_TRUE(lines_for(true)[0].starts_with("PEFT: ")) << lines_for(true)[0];
  EXPECT_EQ(lines_for(false).size(), 3U);
}

}  // namespace
}  // namespace sftrun::engine
