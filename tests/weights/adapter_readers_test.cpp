#include "sftrun/weights/adapter_readers.h"
#include "sftrun/spec/blocks.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "sftrun/core/file.h"
#include "sftrun/weights/checkpoint.h"
#include "support/test_data.h"

namespace sftrun::weights {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

using test::kData;
const std::string kMerge = "the output of `sftrun merge ",
                  kAs = "--adapter runs/a/adapter --output runs/a/adapter";

/// An adapter of every linear module, and what its readers make of it.
class AdapterReaders : public testing::Test {
 protected:
  AdapterReaders() { use_directory("llama"); }

  void use_directory(const char* family) {
    base_ = kData / "families" / family;
    arch_ = spec::ArchSpec::from_hf_config(json::parse(read_text_file(base_ / "config.json")),
                                           base_.string());
    adapt_linears();
  }
  void use_file(const char* name) {
    base_ = kData / "converted" / name;
    arch_ = Checkpoint::open(base_)->arch();
    config_.base_model_name_or_path = base_.string();
    adapt_linears();
  }
  void adapt_linears() {
    adapted_.clear();
    for (int64_t layer = 0; layer < arch_.num_layers; ++layer) {
      for (const spec::LinearSpec& linear : spec::layer_linears(arch_, layer)) {
        if (!linear.is_router) adapted_.insert(spec::name_in_layer(arch_, layer, linear.module));
      }
    }
  }
  void adapt_experts() {
    for (int64_t layer = 0; layer < arch_.num_layers; ++layer) {
      for (const spec::ExpertSpec& experts : spec::layer_experts(arch_, layer)) {
        adapted_.insert(spec::name_in_layer(arch_, layer, experts.module));
        if (layer == 0) config_.lora.target_parameters.push_back(experts.module);
      }
    }
  }

  std::string line(size_t i) const {
    WrittenAdapter written{config_, arch_, base_, "runs/a/adapter",
                           [&](const std::string& module) { return adapted_.contains(module); }};
    written.quantised_to = quantised_to_;
    written.dense_when_written = dense_when_written_;
    written.quantize_command = quantize_command_;
    written.unwritten_because = unwritten_because_;
    written.uses_pissa = takes_base_apart_;
    return reader_support(written).at(i);
  }
  std::string peft() const { return line(0); }
  std::string vllm() const { return line(1); }
  std::string llama_cpp() const { return line(2); }

  AdapterConfig config_{.base_model_name_or_path = "owner/name"};
  spec::ArchSpec arch_;
  fs::path base_;
  std::set<std::string> adapted_;
  std::string quantised_to_, dense_when_written_;
  std::string quantize_command_ = "sftrun quantize --to somewhere", unwritten_because_;
  bool takes_base_apart_ = false;
};

const std::string kLoraGguf = "llama.cpp: load " + kMerge + "--format lora-gguf " + kAs +
                              "-gguf` with the base as a GGUF file";

TEST_F(AdapterReaders, LinearLayers) {
  EXPECT_EQ(peft(), "PEFT: loads directly");
  EXPECT_EQ(vllm(), "vLLM: loads directly");
  EXPECT_EQ(llama_cpp(), kLoraGguf);
  config_.lora.rslora = true;
  EXPECT_EQ(vllm(), "vLLM: loads directly");
  EXPECT_EQ(llama_cpp(), kLoraGguf);
}

TEST_F(AdapterReaders, ABaseInAFormatThatNoFileHas) {
  quantised_to_ = "fp4";
  EXPECT_EQ(peft(),
            "PEFT: loads directly, over the base in fp4, written by `" + quantize_command_ + "`");
  unwritten_because_ = "its files are already quantised (NF4)";
  EXPECT_EQ(peft(),
            "PEFT: approximately, over the model that was quantised to fp4: its files are already "
            "quantised (NF4)");
  EXPECT_EQ(vllm(), "vLLM: approximately, over the same model");
  EXPECT_TRUE(llama_cpp().starts_with("llama.cpp: approximately, load the output of"));
}

TEST_F(AdapterReaders, Ranks) {
  config_.lora.r = 17;
  EXPECT_EQ(vllm(), "vLLM: loads directly, with --max-lora-rank 32");
  config_.lora.rank_pattern = {{"q_proj", 4}, {"o_proj", 300}};
  EXPECT_EQ(vllm(), "vLLM: loads directly, with --max-lora-rank 320");
  config_.lora.r = 513;
  EXPECT_EQ(vllm(), "vLLM: not as an adapter (a rank of 513): serve " + kMerge + kAs + "-merged`");
  EXPECT_EQ(llama_cpp(), kLoraGguf);
}

TEST_F(AdapterReaders, Magnitudes) {
  config_.lora.dora = true;
  EXPECT_EQ(peft(), "PEFT: loads directly");
  EXPECT_EQ(vllm(), "vLLM: not as an adapter (DoRA): serve " + kMerge + kAs + "-merged`");
  EXPECT_EQ(
      llama_cpp(),
      "llama.cpp: not as an adapter: llama.cpp's adapters do not support DoRA; merge it: `sftrun "
      "merge --format gguf --dtype q8_0 " +
          kAs + "-merged-gguf`");
}

TEST_F(AdapterReaders, WholeModules) {
  const std::string refused =
      "llama.cpp: not as an adapter: llama.cpp's adapters do not support modules_to_save; ";
  config_.lora.modules_to_save = {"lm_head"};
  arch_.tie_word_embeddings = false;
  EXPECT_EQ(vllm(),
            "vLLM: not as an adapter (modules_to_save): serve " + kMerge + kAs + "-merged`");
  EXPECT_EQ(llama_cpp(), refused + "merge it: `sftrun merge --format gguf --dtype q8_0 " + kAs +
                             "-merged-gguf`");
  use_directory("granite");
  ASSERT_TRUE(arch_.tie_word_embeddings);
  EXPECT_EQ(llama_cpp(), refused + "merge it: `sftrun merge --format gguf --dtype q8_0 " + kAs +
                             "-merged-gguf`");
  use_file("gemma2-F32.gguf");
  EXPECT_EQ(llama_cpp(), refused +
                             "for this family llama.cpp uses the embedding as the head: serve the "
                             "output of `sftrun merge` with another program");
  use_directory("granite");
  config_.lora.modules_to_save = {"input_layernorm"};
  EXPECT_EQ(llama_cpp(), refused + "merge it: `sftrun merge --format gguf --dtype q8_0 " + kAs +
                             "-merged-gguf`");
}

/// What peft itself cannot do over such a directory (0.21.2, tried).
TEST_F(AdapterReaders, QuantisedDirectories) {
  const auto over = [&](const char* model) {
    base_ = kData / "models" / model;
    return line(0);
  };
  use_directory("llama");
  for (const char* model : {"bnb-nf4", "bnb-int8", "fp8-dynamic"})
    EXPECT_EQ(over(model), "PEFT: loads directly");
  config_.lora.dora = true;
  EXPECT_TRUE(over("bnb-nf4").starts_with("PEFT: loads directly; on a CPU with AVX512-BF16"));
  EXPECT_EQ(over("fp8-dynamic"),
            "PEFT: does not load over this base (it does not support DoRA over FP8): load it over "
            "the unquantised model");
  config_.lora.dora = false;
  config_.lora.modules_to_save = {"lm_head", "norm"};
  EXPECT_EQ(over("bnb-int8"), "PEFT: loads directly");
  config_.lora.modules_to_save = {"q_proj"};
  EXPECT_EQ(over("bnb-nf4"),
            "PEFT: does not load over this base (it does not support modules_to_save over 4 bits): "
            "load it over the unquantised model");
}

TEST_F(AdapterReaders, EmbeddingAndHead) {
  adapted_.insert("lm_head");
  EXPECT_EQ(peft(), "PEFT: loads directly");
  EXPECT_EQ(vllm(), "vLLM: not as an adapter (an update of lm_head, for most families): serve " +
                        kMerge + kAs + "-merged`");
  EXPECT_EQ(llama_cpp(), kLoraGguf);
  use_directory("gemma3");
  adapted_.insert("model.embed_tokens");
  EXPECT_TRUE(llama_cpp().starts_with(
      "llama.cpp: not as an adapter: llama.cpp has one tensor for the embedding"))
      << llama_cpp();
  EXPECT_NE(llama_cpp().find("merge --format gguf"), std::string::npos);
}

TEST_F(AdapterReaders, Experts) {
  use_directory("mixtral");
  EXPECT_EQ(vllm(), "vLLM: loads directly");
  adapt_experts();
  EXPECT_EQ(peft(), "PEFT: loads directly, with transformers 5 or newer");
  EXPECT_EQ(
      vllm(),
      "vLLM: load " + kMerge + "--format vllm " + kAs +
          "-vllm`; without conversion: vLLM ignores an adapter's weights for Mixtral's experts");
  EXPECT_EQ(llama_cpp(), kLoraGguf);
  config_.lora.r = 64;
  EXPECT_NE(vllm().find("-vllm`, with --max-lora-rank 64; without conversion: "),
            std::string::npos);
  config_ = {.lora = {.r = 8}};
  use_file("gpt_oss-Q8_0.gguf");
  adapt_experts();
  EXPECT_EQ(vllm(), "vLLM: loads directly, over the model that the file was converted from");
  EXPECT_TRUE(llama_cpp().ends_with("-gguf` with " + base_.string())) << llama_cpp();
}

/// What a run quantised as it loaded it, no reader finds in the base's files.
TEST_F(AdapterReaders, BasesQuantisedByTheRun) {
  use_directory("llama");
  const std::string there = ", written by `sftrun quantize --to somewhere`";
  for (const char* method : {"nf4", "fp4", "int8", "fp8"}) {
    quantised_to_ = method;
    EXPECT_EQ(peft(), "PEFT: loads directly, over the base in " + quantised_to_ + there);
    EXPECT_EQ(vllm(), "vLLM: loads directly, over the same base");
  }
  dense_when_written_ = "embedding and head";
  EXPECT_EQ(peft(), "PEFT: loads directly, over the base in fp8" + there +
                        " (approximately: embedding and head are unquantised there, but were in "
                        "fp8 in this run)");
  dense_when_written_.clear();
  config_.lora.dora = true;
  EXPECT_EQ(peft(),
            "PEFT: does not load over this base (it does not support DoRA over FP8): load it over "
            "the unquantised model");
  quantised_to_ = "nf4";
  EXPECT_TRUE(
      peft().starts_with("PEFT: loads directly, over the base in nf4" + there + "; on a CPU"));
  config_ = {.lora = {.r = 8}};
  takes_base_apart_ = true;
  EXPECT_EQ(peft(),
            "PEFT: approximately, over the unquantised model: the run quantised the PiSSA "
            "residual, which is not saved");
  EXPECT_EQ(vllm(), "vLLM: approximately, over the unquantised model");
  EXPECT_TRUE(
      llama_cpp().starts_with("llama.cpp: approximately, load the output of `sftrun merge"));
  quantised_to_.clear();
  EXPECT_EQ(peft(), "PEFT: loads directly");
  EXPECT_EQ(vllm(), "vLLM: loads directly");
}

TEST_F(AdapterReaders, AGgufFileAsBase) {
  use_file("llama-Q8_0.gguf");
  EXPECT_EQ(peft(),
            "PEFT: over the GGUF file if transformers supports the family (from_pretrained(\"" +
                base_.parent_path().string() +
                "\", gguf_file=\"llama-Q8_0.gguf\")), or over the model that the file was "
                "converted from: the file does not name it, so set base_model_name_or_path in "
                "runs/a/adapter/adapter_config.json");
  EXPECT_EQ(vllm(), "vLLM: loads directly, over the model that the file was converted from");
  EXPECT_TRUE(llama_cpp().ends_with("-gguf` with " + base_.string())) << llama_cpp();
  config_.base_model_name_or_path = "owner/name";
  EXPECT_EQ(peft(),
            "PEFT: loads directly, over owner/name, from which llama-Q8_0.gguf was converted "
            "according to its metadata");
  EXPECT_EQ(vllm(), "vLLM: loads directly, over owner/name");
  use_file("llama_fused-Q8_0.gguf");
  EXPECT_NE(llama_cpp().find("llama.cpp: not as an adapter: the base has no tensor"),
            std::string::npos)
      << llama_cpp();
}

TEST_F(AdapterReaders, EveryFamilyHasALineOfEach) {
  for (const fs::directory_entry& family : fs::directory_iterator(kData / "families")) {
    if (!fs::exists(family.path() / "config.json")) continue;
    config_ = {.base_model_name_or_path = "owner/name"};
    use_directory(family.path().filename().c_str());
    adapt_experts();
    EXPECT_TRUE(peft().starts_with("PEFT: loads directly")) << family.path();
    EXPECT_TRUE(vllm().starts_with("vLLM: ")) << family.path();
    EXPECT_TRUE(llama_cpp() == kLoraGguf || llama_cpp().find("cannot express") != std::string::npos)
        << family.path() << " " << llama_cpp();
  }
}

TEST_F(AdapterReaders, AModelThatGgufHasNoWordFor) {
  arch_.ropes.at(0).type = spec::RopeType::kDynamic;
  arch_.ropes.at(0).factor = 4;
  for (const bool dora : {false, true}) {  // merged to GGUF it is refused, too
    config_.lora.dora = dora;
    EXPECT_NE(llama_cpp().find("cannot express this model's position embedding"), std::string::npos)
        << llama_cpp();
  }
}

}  // namespace
}  // namespace sftrun::weights
