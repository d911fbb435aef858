#include "memory_report.h"

#include <gtest/gtest.h>

#include <set>

#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "sftrun/core/strings.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"
#include "support/test_data.h"

namespace sftrun::app {
namespace {

namespace fs = std::filesystem;

const fs::path kMemoryPage = fs::path(SFTRUN_TEST_DATA) / "../../docs/memory.md";

/// The text between two others.
std::string between(const std::string& text, const std::string& begin, const std::string& end) {
  const size_t first = text.find(begin);
  EXPECT_NE(first, std::string::npos) << begin;
  if (first == std::string::npos) return {};
  const size_t from = first + begin.size();
  return text.substr(from, text.find(end, from) - from);
}

class MemoryReports : public ::testing::Test {
 protected:
  MemoryReports() {
    log::configure({.console = log::Level::kOff});
    write_model({{"model_type", "llama"},
                 {"hidden_size", 8192},
                 {"intermediate_size", 28672},
                 {"num_hidden_layers", 80},
                 {"num_attention_heads", 64},
                 {"num_key_value_heads", 8},
                 {"vocab_size", 128256},
                 {"max_position_embeddings", 131072},
                 {"rms_norm_eps", 1e-5},
                 {"tie_word_embeddings", false}});
  }
  void write_model(const nlohmann::json& config) {
    fs::create_directories(model());
    write_file_atomically(model() / "config.json", config.dump());
  }
  fs::path model() const { return directory_ / "Llama-3.1-70B-Instruct"; }

  /// The run of docs/memory.md.
  TrainOptions options(const std::vector<std::string>& overrides = {},
                       const std::string& gpus = "2x RTX4090") {
    const std::string yaml = between(read_text_file(kMemoryPage), "```yaml\n", "```");
    write_file_atomically(directory_ / "run.yaml", yaml);
    TrainOptions options;
    options.config = directory_ / "run.yaml";
    options.overrides = overrides;
    options.gpus = gpus;
    return options;
  }

  test::TemporaryDirectory directory_;
};

/// The examples of the document are what the program prints. If the plan has changed, replace them by
/// what the commands there print.
TEST_F(MemoryReports, AreThoseOfTheDocument) {
  const std::string page = read_text_file(kMemoryPage);
  for (const std::vector<std::string>& overrides :
       {std::vector<std::string>{},
        {"parallel.strategy=tensor", "parallel.offload.activations=cpu",
         "parallel.offload.optimizer=cpu"}}) {
    std::string command = "$ sftrun memory-check --config run.yaml --gpus \"2x RTX4090\"";
    for (const std::string& override : overrides) command += " " + override;
    EXPECT_EQ(between(page, command + "\n", "```"), as_text(memory_report(options(overrides))));
  }
}

TEST_F(MemoryReports, JsonHasTheNumbersOfTheText) {
  const MemoryReport report = memory_report(options());
  const nlohmann::ordered_json json = as_json(report);
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  EXPECT_EQ(join(keys, " "),
            "peak_bytes needed_bytes tensor_bytes fits parts device settings activations "
            "answers strategies largest change error notes");
  EXPECT_EQ(json["peak_bytes"], report.plan.peak());
  EXPECT_EQ(json["fits"], false);
  EXPECT_EQ(json["device"]["name"], "2 x RTX 4090");
  EXPECT_EQ(json["settings"]["strategy"], "fsdp");
  EXPECT_EQ(json["settings"]["dtype"], "bf16");
  EXPECT_EQ(json["activations"][0]["layers"], 80);
  EXPECT_EQ(json["activations"][0]["gradient_checkpointing"]["true"]["kept_bytes"],
            int64_t{80} * 8192 * 2048 * 2);
  for (const auto& row : json["strategies"]) {
    EXPECT_EQ(row["fits"], row["needed_bytes"].get<int64_t>() <= report.memory_bytes())
        << row["strategy"];
  }
  EXPECT_TRUE(json["change"]["fits"]);
  EXPECT_FALSE(json["change"]["settings"].empty());
}

/// Of the run and of each row, though the name has only those that the strategy does not imply.
TEST_F(MemoryReports, SizesOfRowsAreThoseOfTheirAxes) {
  TrainOptions machines = options({"tuning.mode=full", "train.grad_accum=auto"}, "8x H100");
  machines.nnodes = 2;
  const nlohmann::ordered_json json = as_json(memory_report(machines));
  std::set<std::string> names;
  for (const auto& row : json["strategies"]) {
    names.insert(row["name"]);
    if (row.contains("refused")) continue;
    EXPECT_EQ(row["pp"].get<int>() * row["dp_replicate"].get<int>() * row["dp_shard"].get<int>() *
                  row["tp"].get<int>(),
              16)
        << row["name"];
    if (row["name"] == "hybrid") {
      EXPECT_EQ(row["dp_replicate"], 2);
      EXPECT_EQ(row["dp_shard"], 8);
    }
    if (row["name"] == "tensor, tp 8") {
      EXPECT_EQ(row["dp_replicate"], 2);
    }
  }
  EXPECT_TRUE(names.contains("tensor, tp 8"));
  EXPECT_FALSE(names.contains("tensor")) << "which has 16 parts";
  TrainOptions tensor = options({"parallel.strategy=tensor"}, "8x H100");
  tensor.nnodes = 2;
  const nlohmann::ordered_json own = as_json(memory_report(tensor))["settings"];
  EXPECT_EQ(own["name"], "tensor");
  EXPECT_EQ(own["tp"], 16);
}

TEST_F(MemoryReports, NameWhatAnswersOfEvaluationsNeed) {
  EXPECT_TRUE(as_json(memory_report(options()))["answers"].is_null());
  const std::vector<std::string> writes = {"train.predict_with_generate=true",
                                           "data.val_split=0.05", "train.generation_batch_size=4",
                                           "train.generation_max_new_tokens=128"};
  const MemoryReport report = memory_report(options(writes));
  const nlohmann::ordered_json answers = as_json(report)["answers"];
  // 80 layers of 8 key and value heads of 128, in bf16.
  EXPECT_EQ(answers["cache_bytes"], int64_t{4} * (2048 + 128) * 80 * 2 * 8 * 128 * 2);
  EXPECT_EQ(answers["gathered_bytes"], 2 * (report.plan.held.base + report.plan.held.trainable))
      << "fsdp on two devices: whole weights beside the device's own half";
  EXPECT_EQ(answers["fits"], false);
  EXPECT_NE(as_text(report).find("Lower train.generation_batch_size"), std::string::npos);
}

/// Gemma 3 4B's config.json and image processor: 256 tokens and 4096 patches for each image.
TEST_F(MemoryReports, HaveTermsOfImages) {
  const fs::path released = fs::path(SFTRUN_TEST_DATA) / "spec/vision/released/gemma-3-4b.json";
  write_model(nlohmann::json::parse(read_text_file(released))["config"]);
  write_file_atomically(model() / "preprocessor_config.json",
                        R"({"image_processor_type": "Gemma3ImageProcessor", "image_seq_length": 256,
                            "size": {"height": 896, "width": 896}})");
  const TrainOptions run = options({"train.batch_size=2"}, "80GB");
  const MemoryReport texts = memory_report(run);
  const PlannedImages three{.of_sequence = 3, .width = 640, .height = 480};
  const MemoryReport report = memory_report(run, three);
  const nlohmann::ordered_json json = as_json(report);
  EXPECT_EQ(json["settings"]["patches"], 2 * 3 * 4096);
  EXPECT_EQ(json["settings"]["tiles"], 2 * 3);
  EXPECT_GT(json["parts"]["base"], as_json(texts)["parts"]["base"]);
  // Patches of 3 x 14 x 14 pixels in fp32, their places, and rows of the text in bf16.
  EXPECT_EQ(json["parts"]["images"],
            int64_t{2} * 3 * (4096 * (3 * 14 * 14 * 4 + 8) + 256 * 2560 * 2));
  EXPECT_EQ(json["peak_bytes"].get<int64_t>(), report.plan.peak());
  EXPECT_FALSE(as_json(texts)["parts"].contains("images"));
  EXPECT_NE(as_text(report).find("3 images of 640 x 480 pixels in each packed sequence"),
            std::string::npos);
  // The run's data are not here.
  EXPECT_FALSE(as_json(texts)["settings"].contains("patches"));
  EXPECT_NE(as_text(texts).find("note: the data are not on this machine: the plan has no images"),
            std::string::npos);
  const PlannedImages nine{.of_sequence = 9, .width = 640, .height = 480};
  test::expect_error<ConfigError>([&] { memory_report(run, nine); }, {"2304 tokens", "2048"});
}

TEST_F(MemoryReports, RefuseImagesOfATextModel) {
  const PlannedImages one{.of_sequence = 1, .width = 64, .height = 64};
  test::expect_error<ConfigError>([&] { memory_report(options(), one); },
                                  {"the model reads text alone", "--images"});
  ImageFlags asked;
  EXPECT_FALSE(planned_images(asked));
  asked.of_sequence = 2, asked.size = "640x480";
  EXPECT_EQ(planned_images(asked)->height, 480);
  for (const char* size : {"640", "640x", "x480", "0x480", "640x480x3", "-1x4", "640x99999999"}) {
    asked.size = size;
    EXPECT_THROW(planned_images(asked), ConfigError) << size;
  }
}

/// A strategy that the model or the settings exclude is a row with the reason.
TEST_F(MemoryReports, SayWhyAStrategyIsExcluded) {
  const MemoryReport report = memory_report(options({"train.optimizer=adamw_8bit"}));
  const std::string text = as_text(report);
  EXPECT_NE(text.find("tensor                   no: train.optimizer adamw_8bit quantises"),
            std::string::npos)
      << text;
  for (const auto& row : as_json(report)["strategies"])
    EXPECT_EQ(row.contains("refused"), row["strategy"] == "tensor") << row["strategy"];
}

/// What config.json calls quantised counts as such, though the files are not here.
TEST_F(MemoryReports, OfQuantisedFilesThatAreNotHere) {
  const int64_t dense = memory_report(options({"tuning.mode=lora"})).plan.held.base;
  nlohmann::json config = nlohmann::json::parse(read_text_file(model() / "config.json"));
  config["quantization_config"] = {{"quant_method", "bitsandbytes"}, {"load_in_4bit", true}};
  write_model(config);
  const MemoryReport four_bits = memory_report(options({"tuning.mode=lora"}));
  EXPECT_LT(four_bits.plan.held.base, dense / 3);
  ASSERT_EQ(four_bits.notes.size(), 1U);
  EXPECT_NE(four_bits.notes[0].find("bitsandbytes"), std::string::npos);
  config["quantization_config"] = {{"quant_method", "mystery"}};
  write_model(config);
  test::expect_error([&] { memory_report(options({"tuning.mode=lora"})); },
                     {"quantised by \"mystery\""});
}

TEST_F(MemoryReports, SeveralMachinesAndMixedCards) {
  TrainOptions machines = options({}, "4x H100, 4x A100-40GB");
  machines.nnodes = 2;
  const MemoryReport report = memory_report(machines);
  EXPECT_EQ(report.devices.place.devices.world_size, 16);
  EXPECT_EQ(report.devices.place.devices.local_world_size, 8);
  EXPECT_EQ(report.devices.text, "4 x H100 80GB, 4 x A100 40GB on each of 2 machines");
  EXPECT_LT(report.memory_bytes(), int64_t{40} << 30);
  machines.nproc_per_node = "9";
  test::expect_error<ConfigError>([&] { memory_report(machines); },
                                  {"9 processes for 8 GPUs", "--nproc-per-node"});
  TrainOptions map = options({"parallel.device_map=auto"});
  EXPECT_EQ(memory_report(map).devices.place.devices.world_size, 1);
}

}  // namespace
}  // namespace sftrun::app
