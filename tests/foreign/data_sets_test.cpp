#include "foreign/import_test_base.h"
#include "sftrun/config/problem.h"
#include "support/expect_error.h"

/// Data sets of other tools: settings of each, and the columns that are read.
namespace sftrun::foreign {
namespace {

class DataSetsTest : public ImportTest {
 protected:
  Import torchtune(const std::string& sets) {
    return import("dataset:\n" + sets, Tool::kTorchtune);
  }
  /// The fields of a data set of LLaMA-Factory.
  std::string fields_of_factory(const std::string& entry) {
    write("data/dataset_info.json", "{\"mine\": {\"file_name\": \"a.jsonl\"" + entry + "}}");
    const Import run =
        import("model_name_or_path: m\nstage: sft\nfinetuning_type: lora\ndataset: mine\n",
               Tool::kLlamaFactory);
    const auto sources = nlohmann::ordered_json::parse(value_of(run, "data.train"));
    return sources[0].value("fields", nlohmann::ordered_json::object()).dump();
  }
  std::string fields_of_torchtune(const std::string& set) {
    const Import run = torchtune("  {_component_: torchtune.datasets." + set + "}\n");
    const auto sources = nlohmann::ordered_json::parse(value_of(run, "data.train"));
    return sources[0].value("fields", nlohmann::ordered_json::object()).dump();
  }
  static std::string notes_of(const Import& run, const std::string& key) {
    std::string text;
    for (const ImportNote& note : run.not_carried)
      if (note.key == key) text += note.why + "\n";
    return text;
  }
  static void expect_part(const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\nis not in\n" << text;
  }
};

constexpr const char* kInstruct =
    "  - {_component_: torchtune.datasets.instruct_dataset, source: a.jsonl, ";
constexpr const char* kChat =
    "  - {_component_: torchtune.datasets.chat_dataset, source: b.jsonl, ";
constexpr const char* kText =
    "  - {_component_: torchtune.datasets.text_completion_dataset, source: c.jsonl, ";

TEST_F(DataSetsTest, LabelsOfTorchtuneThatDisagreeAreListed) {
  const Import run = torchtune(std::string(kInstruct) + "train_on_input: True}\n" + kChat +
                               "train_on_input: False}\n");
  EXPECT_EQ(value_of(run, "data.loss_on"), "\"all\"");
  expect_part(notes_of(run, "dataset"), "all as for instruct_dataset");
  expect_part(notes_of(run, "dataset"), "chat_dataset (number 2)");
  const Import usual = torchtune(std::string(kInstruct) + "split: train}\n" + kChat +
                                 "masking_strategy: train_on_all}\n");
  expect_part(notes_of(usual, "dataset"), "assistant as for instruct_dataset");
  const Import same = torchtune(std::string(kText) + "packed: False}\n" + kInstruct +
                                "train_on_input: True}\n" + kChat + "train_on_input: True}\n");
  EXPECT_EQ(value_of(same, "data.loss_on"), "\"all\"") << "texts have no prompt";
  EXPECT_EQ(notes_of(same, "dataset"), "");
}

TEST_F(DataSetsTest, PackingAndLimitsOfEachOfTorchtuneAreListed) {
  const Import run =
      torchtune(std::string(kInstruct) + "packed: True}\n" + kChat + "max_seq_len: 64}\n");
  EXPECT_EQ(value_of(run, "data.packing"), "true");
  expect_part(notes_of(run, "dataset"), "packed: `data.packing`");
  expect_part(notes_of(run, "dataset"), "chat_dataset (number 2)");
  expect_part(notes_of(run, "dataset"), "max_seq_len");
}

TEST_F(DataSetsTest, TextsOfTorchtuneThatDifferAreListed) {
  expect_part(notes_of(torchtune(std::string(kText) + "add_eos: False}\n"), "dataset"), "add_eos");
  EXPECT_EQ(notes_of(torchtune(std::string(kText) + "add_eos: True}\n"), "dataset"), "");
  expect_part(notes_of(torchtune(std::string(kText) + "packed: True}\n"), "dataset"),
              "split_across_pack");
  EXPECT_EQ(notes_of(torchtune(std::string(kText) + "packed: True, split_across_pack: False}\n"),
                     "dataset"),
            "");
  expect_part(
      notes_of(torchtune("  {_component_: torchtune.datasets.alpaca_dataset}\n"), "dataset"),
      "prompt text of its own");
}

TEST_F(DataSetsTest, OnlyColumnsThatTorchtuneReadsAreRead) {
  EXPECT_EQ(fields_of_torchtune("instruct_dataset, source: a, "
                                "column_map: {input: instruction, output: output}"),
            R"({"input":"","system":""})");
  EXPECT_EQ(fields_of_torchtune("instruct_dataset, source: a"),
            R"({"instruction":"input","system":""})");
  EXPECT_EQ(fields_of_torchtune("alpaca_dataset"), R"({"system":""})");
  EXPECT_EQ(fields_of_torchtune("chat_dataset, source: a"), R"({"tools":""})");
}

TEST_F(DataSetsTest, OnlyColumnsThatLlamaFactoryReadsAreRead) {
  EXPECT_EQ(fields_of_factory(R"(, "columns": {"prompt": "instruction", "response": "output"})"),
            R"({"input":"","system":""})");
  EXPECT_EQ(fields_of_factory(R"(, "columns": {"prompt": "input", "response": "output"})"),
            R"({"instruction":"input","system":""})");
  EXPECT_EQ(fields_of_factory(R"(, "columns": {"prompt": "p", "query": "q", "system": "system"})"),
            R"({"instruction":"p","input":"q"})");
  EXPECT_EQ(fields_of_factory(""), R"({"system":""})");
  EXPECT_EQ(fields_of_factory(R"(, "formatting": "sharegpt")"), R"({"system":"","tools":""})");
}

TEST_F(DataSetsTest, ImagesOfLlamaFactory) {
  const auto run = [&](const std::string& file, const std::string& keys) {
    write("data/dataset_info.json",
          R"({"mine": {"file_name": ")" + file +
              R"(", "formatting": "sharegpt", "columns": {"messages": "messages", )"
              R"("images": "pictures", "videos": "videos"}}})");
    return import(
        "model_name_or_path: m\nstage: sft\nfinetuning_type: lora\ndataset: mine\n" + keys,
        Tool::kLlamaFactory);
  };
  const auto source = [&](const Import& import) {
    return nlohmann::ordered_json::parse(value_of(import, "data.train"))[0];
  };
  const Import plain = run("a.jsonl", "");
  EXPECT_EQ(source(plain)["fields"].value("images", ""), "pictures");
  EXPECT_FALSE(source(plain)["fields"].contains("videos"));
  EXPECT_FALSE(source(plain).contains("image_root"));
  EXPECT_EQ(value_of(plain, "data.image_root"), "none");
  EXPECT_EQ(notes_of(plain, "dataset").find("is not read"), std::string::npos);
  expect_part(notes_of(plain, "dataset"), "589824 pixels");
  const Import inside = run("sets/a.jsonl", "image_max_pixels: 1000\n");
  const std::string root = source(inside).value("image_root", "");
  EXPECT_TRUE(root.ends_with("/data")) << root;
  EXPECT_EQ(notes_of(inside, "dataset").find("589824"), std::string::npos);
  const Import rooted = run("sets/a.jsonl", "media_dir: pictures\n");
  EXPECT_EQ(value_of(rooted, "data.image_root"), R"("pictures")");
  EXPECT_FALSE(source(rooted).contains("image_root"));
}

TEST_F(DataSetsTest, ColumnsWithoutAPromptAreListed) {
  write("data/dataset_info.json",
        R"({"mine": {"file_name": "a.jsonl", "columns": {"response": "output"}}})");
  const Import run =
      import("model_name_or_path: m\nstage: sft\nfinetuning_type: lora\ndataset: mine\n",
             Tool::kLlamaFactory);
  expect_part(notes_of(run, "dataset"), "columns.prompt");
}

TEST_F(DataSetsTest, WhatIsLeftOutStaysLeftOutInTheYaml) {
  const Import run = torchtune(std::string(kInstruct) + "column_map: {input: q, output: a}}\n");
  const LoadedConfig loaded =
      load_config(write("imported.yaml", "model: {name: m}\n" + to_yaml(run)), {});
  EXPECT_EQ(loaded.config.data.train.at(0).fields.dump(),
            R"({"instruction":"q","output":"a","input":"","system":""})");
  test::expect_error<ConfigError>(
      [&] {
        load_config(
            write("bad.yaml", "model: {name: m}\ndata: {train: a.jsonl, fields: {prompt: ''}}\n"),
            {});
      },
      {"leaves out that part", "only features, images, input, negative, system, tools and videos"});
}

TEST_F(DataSetsTest, AnUnknownLossOfTorchtuneIsListed) {
  EXPECT_TRUE(
      has_key(import("loss: {_component_: my.OtherLoss}\n", Tool::kTorchtune).not_carried, "loss"));
}

TEST_F(DataSetsTest, FrozenLayersOfLlamaFactory) {
  const auto frozen = [&](const std::string& keys) {
    return import("model_name_or_path: m\nstage: sft\nfinetuning_type: freeze\n" + keys,
                  Tool::kLlamaFactory);
  };
  const Import open = frozen("freeze_trainable_layers: 3\n");
  EXPECT_EQ(value_of(open, "tuning.mode"), "\"partial\"");
  EXPECT_TRUE(std::find(open.missing.begin(), open.missing.end(), "tuning.trainable") !=
              open.missing.end());
  expect_part(notes_of(open, "freeze_trainable_layers"), R"(layers\.(29|30|31)\.)");
  EXPECT_EQ(value_of(frozen("freeze_trainable_layers: -2\n"), "tuning.trainable"),
            R"(["layers\\.(0|1)\\."])");
  write("m/config.json", R"({"num_hidden_layers": 6})");
  EXPECT_EQ(value_of(frozen(""), "tuning.trainable"), R"(["layers\\.(4|5)\\."])");
  EXPECT_EQ(value_of(frozen("freeze_trainable_layers: 9\n"), "tuning.trainable"),
            R"(["layers\\.(0|1|2|3|4|5)\\."])");
  const Import parts = frozen(
      "freeze_trainable_layers: 1\nfreeze_trainable_modules: mlp,self_attn\n"
      "freeze_extra_modules: embed_tokens\n");
  EXPECT_EQ(value_of(parts, "tuning.trainable"),
            R"x(["layers\\.5\\.(mlp|self_attn)","embed_tokens"])x");
  EXPECT_TRUE(parts.not_carried.empty());
  expect_part(notes_of(frozen("use_llama_pro: true\n"), "use_llama_pro"), "tuning.trainable");
}

TEST_F(DataSetsTest, FrozenPartsOfLlamaFactory) {
  const auto parts = [&](const std::string& keys) {
    return import("model_name_or_path: m\nstage: sft\n" + keys, Tool::kLlamaFactory);
  };
  const auto value = [&](const std::string& keys) {
    return value_of(parts(keys), "tuning.train_parts");
  };
  EXPECT_EQ(value("finetuning_type: full\nfreeze_vision_tower: false\n"),
            R"(["language","vision"])");
  EXPECT_EQ(value("finetuning_type: full\nfreeze_vision_tower: true\n"
                  "freeze_multi_modal_projector: false\nfreeze_language_model: true\n"),
            R"(["projector"])");
  const Import text = parts("finetuning_type: full\nfreeze_vision_tower: true\n");
  EXPECT_EQ(value_of(text, "tuning.train_parts"), "none");
  EXPECT_TRUE(has_key(text.no_meaning, "freeze_vision_tower"));
  const Import lora = parts(
      "finetuning_type: lora\nfreeze_vision_tower: false\nfreeze_multi_modal_projector: false\n");
  EXPECT_EQ(value_of(lora, "tuning.train_parts"), R"(["language","vision"])");
  EXPECT_TRUE(has_key(lora.no_meaning, "freeze_multi_modal_projector"));
  test::expect_error<ConfigError>(
      [&] { parts("finetuning_type: full\nfreeze_language_model: true\n"); },
      {"all parts of the model are frozen"});
}

TEST_F(DataSetsTest, TheProjectorAloneOfLlamaFactory) {
  const auto parts = [&](const std::string& keys) {
    return import("model_name_or_path: m\nstage: sft\n" + keys, Tool::kLlamaFactory);
  };
  const std::string full = "finetuning_type: full\n";
  EXPECT_EQ(value_of(parts(full + "train_mm_proj_only: true\n"), "tuning.train_parts"),
            R"(["projector"])");
  EXPECT_EQ(value_of(parts(full + "train_mm_proj_only: true\nfreeze_vision_tower: false\n"),
                     "tuning.train_parts"),
            R"(["projector","vision"])");
  EXPECT_TRUE(
      has_key(parts(full + "train_mm_proj_only: false\n").no_meaning, "train_mm_proj_only"));
  test::expect_error<ConfigError>(
      [&] { parts("finetuning_type: lora\ntrain_mm_proj_only: true\n"); },
      {"all parts of the model are frozen", "the projector trains with finetuning_type full"});
}

TEST_F(DataSetsTest, PartsOfAxolotlsModelsWithImages) {
  const auto images = [&](const std::string& keys) {
    return import("base_model: m\nprocessor_type: AutoProcessor\n" + keys, Tool::kAxolotl);
  };
  EXPECT_EQ(value_of(images(""), "tuning.train_parts"), R"(["language","projector","vision"])");
  const Import frozen = images("freeze_mm_modules: true\n");
  EXPECT_EQ(value_of(frozen, "tuning.train_parts"), "none");
  EXPECT_TRUE(has_key(frozen.no_meaning, "freeze_mm_modules"));
  EXPECT_TRUE(has_key(frozen.no_meaning, "processor_type"));
  const std::string lora = "adapter: lora\nlora_target_modules: ";
  const Import named = images(lora + "[q_proj, v_proj]\n");
  EXPECT_EQ(value_of(named, "tuning.train_parts"), "none");
  expect_part(notes_of(named, "processor_type"), "tuning.train_parts: [vision, language]");
  const Import expression = images(lora + "'model.language_model.layers.*.q_proj'\n");
  EXPECT_TRUE(has_key(expression.no_meaning, "processor_type"));
  EXPECT_FALSE(has_key(expression.not_carried, "processor_type"));
  EXPECT_EQ(value_of(expression, "tuning.lora.target_modules"),
            R"("model.language_model.layers.*.q_proj")");
}

TEST_F(DataSetsTest, KeysOfImagesSayWhatThereIs) {
  const Import run =
      import("base_model: m\nimage_size: 512\nimage_resize_algorithm: bilinear\n", Tool::kAxolotl);
  expect_part(notes_of(run, "image_size"), "data.image_longest_edge");
  expect_part(notes_of(run, "image_resize_algorithm"), "preprocessor_config.json");
  const Import factory = import(
      "model_name_or_path: m\nstage: sft\nfinetuning_type: lora\nimage_max_pixels: 1024\n"
      "image_min_pixels: 32\nvideo_fps: 2.0\nimage_do_pan_and_scan: false\n",
      Tool::kLlamaFactory);
  EXPECT_EQ(value_of(factory, "data.max_image_pixels"), "1024");
  expect_part(notes_of(factory, "image_min_pixels"), "preprocessor_config.json");
  expect_part(notes_of(factory, "video_fps"), "lists of frames");
  EXPECT_TRUE(has_key(factory.no_meaning, "image_do_pan_and_scan"));
  const Import trl =
      import("model_name_or_path: m\ndataset_name: o/d\nmax_length: null\n", Tool::kTrl);
  expect_part(notes_of(trl, "max_length"), "longer examples with images are left out");
}

TEST_F(DataSetsTest, StreamsStillNeedANumberOfSteps) {
  const std::string trl = "model_name_or_path: m\ndataset_name: o/d\ndataset_streaming: true\n";
  const Import run = import(trl, Tool::kTrl);
  ASSERT_EQ(run.missing.size(), 1U);
  expect_part(run.missing[0], "train.max_steps");
  EXPECT_TRUE(import(trl + "max_steps: 9\n", Tool::kTrl).missing.empty());
}

/// transformers: below 1 it is a share of the steps, rounded up.
TEST_F(DataSetsTest, SharesOfTheSteps) {
  const std::string shares = "eval_steps: 0.1\nsave_steps: 0.25\nlogging_steps: 0.01\n";
  const std::vector<std::pair<std::string, Tool>> heads = {
      {"base_model: m\nval_set_size: 0.1\n", Tool::kAxolotl},
      {"model_name_or_path: m\nval_size: 0.1\n", Tool::kLlamaFactory},
      {"model_name_or_path: m\n", Tool::kTrl}};
  for (const auto& [head, tool] : heads) {
    SCOPED_TRACE(head);
    const Import known = import(head + shares + "max_steps: 30\n", tool);
    EXPECT_EQ(value_of(known, "train.eval_steps"), "3");
    EXPECT_EQ(value_of(known, "train.save_steps"), "8");
    EXPECT_EQ(value_of(known, "train.logging_steps"), "1");
    const Import open = import(head + shares, tool);
    EXPECT_EQ(value_of(open, "train.save_steps"), "none");
    expect_part(notes_of(open, "eval_steps"), "each epoch ends with an evaluation");
    expect_part(notes_of(open, "eval_steps"), "Set train.eval_steps to 0.1 times");
    expect_part(notes_of(open, "save_steps"), "every 10 minutes");
    expect_part(notes_of(open, "logging_steps"), "each step has a line");
  }
  const Import often = import(
      "base_model: m\nval_set_size: 0.1\nevals_per_epoch: 4\nsaves_per_epoch: 2\n", Tool::kAxolotl);
  expect_part(notes_of(often, "evals_per_epoch"), "Set train.eval_steps to the steps of an epoch");
  expect_part(notes_of(often, "evals_per_epoch"), "divided by 4");
  expect_part(notes_of(often, "saves_per_epoch"), "divided by 2");
  expect_part(notes_of(import("epochs: 2\nmax_steps_per_epoch: 10\n", Tool::kTorchtune),
                       "max_steps_per_epoch"),
              "train.max_steps: 20");
}

}  // namespace
}  // namespace sftrun::foreign
