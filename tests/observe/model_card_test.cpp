#include "sftrun/observe/model_card.h"

#include <gtest/gtest.h>

namespace sftrun::observe {
namespace {

ModelCard card_of_an_adapter() {
  ModelCard card;
  card.base_model = "owner/model";
  card.is_on_hub = true;
  card.version = "1.2";
  card.data = {"owner/data", "more.jsonl"};
  card.settings = {{"tuning.mode", "lora"}, {"tuning.lora.target_modules", "a|b\nc"}};
  card.summary.first = StepLoss{1, 2.5};
  card.summary.last = StepLoss{40, 1.25};
  return card;
}

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(ModelCard, OfAnAdapterNamesItsBaseForTheHub) {
  const std::string text = to_markdown(card_of_an_adapter());
  EXPECT_TRUE(
      text.starts_with("---\nbase_model: \"owner/model\"\nbase_model_relation: adapter\n"
                       "library_name: peft\n"))
      << text;
  EXPECT_TRUE(holds(text, "on owner/data, more.jsonl.")) << text;
  EXPECT_TRUE(holds(text, "| last loss (step 40) | 1.2500 |")) << text;
  EXPECT_TRUE(holds(text, "| `tuning.lora.target_modules` | a\\|b c |")) << text;
  EXPECT_TRUE(holds(text, "PeftModel.from_pretrained(base, \".\")")) << text;
}

TEST(ModelCard, ShowsTheRewardBeforeTheLoss) {
  ModelCard card = card_of_an_adapter();
  card.summary.shown = {.word = "reward",
                        .first = StepLoss{1, 0.25},
                        .last = StepLoss{40, 0.75},
                        .first_eval = {},
                        .last_eval = StepLoss{40, 0.9}};
  const std::string text = to_markdown(card);
  EXPECT_TRUE(
      holds(text,
            "|---|---|\n| first reward (step 1) | 0.2500 |\n| last reward (step 40) | 0.7500 "
            "|\n| last validation reward (step 40) | 0.9000 |\n| first loss (step 1)"))
      << text;
  EXPECT_FALSE(holds(to_markdown(card_of_an_adapter()), "reward"));
}

/// The hub and transformers have other classes for models that see images.
TEST(ModelCard, OfAModelThatSeesImagesLoadsItAsSuch) {
  ModelCard card = card_of_an_adapter();
  card.reads_images = true;
  const std::string text = to_markdown(card);
  EXPECT_TRUE(holds(text, "pipeline_tag: image-text-to-text\n")) << text;
  EXPECT_TRUE(holds(text,
                    "base = AutoModelForImageTextToText.from_pretrained(\"owner/model\")\n"
                    "model = PeftModel.from_pretrained(base, \".\")\n"
                    "processor = AutoProcessor.from_pretrained(\".\")\n"))
      << text;
  EXPECT_TRUE(holds(text, "{\"type\": \"image\", \"path\": \"photo.png\"}")) << text;
  EXPECT_TRUE(holds(text, "--adapter . --image photo.png --prompt")) << text;
  card.leaves_template_unused = true;
  EXPECT_FALSE(holds(to_markdown(card), "apply_chat_template"));
  card.is_adapter = false;
  EXPECT_TRUE(
      holds(to_markdown(card), "model = AutoModelForImageTextToText.from_pretrained(\".\")\n"));
}

/// Where the files lay is nobody's business, and no name that the hub could look up.
TEST(ModelCard, HidesPathsOfThisMachine) {
  ModelCard card = card_of_an_adapter();
  card.base_model = "/home/somebody/models/tiny/";
  card.is_on_hub = false;
  const std::string text = to_markdown(card);
  EXPECT_FALSE(holds(text, "/home")) << text;
  EXPECT_FALSE(holds(text, "base_model:")) << text;
  EXPECT_TRUE(holds(text, "from_pretrained(\"path/to/tiny\")")) << text;
  card.base_model = "/home/somebody/models/tiny.Q4_1.gguf";
  EXPECT_TRUE(
      holds(to_markdown(card), "from_pretrained(\"path/to\", gguf_file=\"tiny.Q4_1.gguf\")"));
  EXPECT_TRUE(holds(text, "# An adapter for tiny\n")) << text;
}

/// The weights are not those of the lowest loss if another metric chose them.
TEST(ModelCard, GivesTheLossOfTheSavedWeights) {
  ModelCard card = card_of_an_adapter();
  card.summary.evals = {{10, 1.8}, {20, 0.8}};
  card.summary.best_eval = card.summary.last_eval = card.summary.evals.back();
  EXPECT_TRUE(holds(to_markdown(card), "| best validation loss (step 20) | 0.8000 |"));
  card.kept = KeptWeights{.step = 10, .metric = "eval_rouge_l", .value = 0.75};
  const std::string text = to_markdown(card);
  EXPECT_TRUE(
      holds(text, "| saved weights | those after step 10, with the best eval_rouge_l: 0.75 |"))
      << text;
  EXPECT_TRUE(holds(text, "| validation loss of the saved weights (step 10) | 1.8000 |")) << text;
  EXPECT_FALSE(holds(text, "best validation loss")) << text;
}

TEST(ModelCard, SaysWhereNoTemplateWasUsed) {
  ModelCard card = card_of_an_adapter();
  EXPECT_FALSE(holds(to_markdown(card), "--no-chat"));
  card.leaves_template_unused = true;
  EXPECT_TRUE(holds(to_markdown(card), "`sftrun generate --adapter . --no-chat --prompt \"…\"`"));
  card.is_adapter = false;
  EXPECT_TRUE(holds(to_markdown(card), "`sftrun generate --model . --no-chat --prompt \"…\"`"));
}

/// The example loads the base that the text names.
TEST(ModelCard, LoadsTheQuantisedBase) {
  ModelCard card = card_of_an_adapter();
  card.quantize_command = "sftrun quantize --model org/base --method nf4 --output org/base-nf4";
  card.quantised_base = "org/base-nf4";
  const std::string text = to_markdown(card);
  EXPECT_TRUE(holds(text, "AutoModelForCausalLM.from_pretrained(\"path/to/base-nf4\")")) << text;
  EXPECT_TRUE(holds(text, "`path/to` stands for the folder of the base model.")) << text;
}

TEST(ModelCard, OfAWholeModel) {
  ModelCard card = card_of_an_adapter();
  card.is_adapter = false;
  const std::string text = to_markdown(card);
  EXPECT_TRUE(holds(text, "base_model_relation: finetune\nlibrary_name: transformers\n")) << text;
  EXPECT_FALSE(holds(text, "peft")) << text;
}

/// Names of files and data sets are no markup, and end no string.
TEST(ModelCard, NamesAreNoMarkup) {
  ModelCard card = card_of_an_adapter();
  card.data = {"<img src=x onerror=alert(1)>", "[a](http://b)", "*a*_b_`c`|d\n# e",
               "my_data.jsonl"};
  card.base_model = "/models/a\"b\\c`d<e>";
  card.is_on_hub = false;
  card.quantize_command = "sftrun quantize --model 'a`b'";
  card.kept = KeptWeights{.step = 1, .metric = "eval_<b>_loss", .value = 1};
  const std::string text = to_markdown(card);
  EXPECT_TRUE(holds(text,
                    "\\<img src=x onerror=alert(1)\\>, \\[a\\](http://b), "
                    "\\*a\\*\\_b\\_\\`c\\`\\|d \\# e, my_data.jsonl."))
      << text;
  EXPECT_TRUE(holds(text, "from_pretrained(\"path/to/a\\\"b\\\\c`d<e>\")")) << text;
  EXPECT_TRUE(holds(text, "# An adapter for a\"b\\\\c\\`d\\<e\\>\n")) << text;
  EXPECT_TRUE(holds(text, "Write that base with ``sftrun quantize --model 'a`b'``, and")) << text;
  EXPECT_TRUE(holds(text, "eval\\_\\<b\\>\\_loss")) << text;
}

}  // namespace
}  // namespace sftrun::observe
