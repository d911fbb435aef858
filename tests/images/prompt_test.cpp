#include "sftrun/images/prompt.h"

#include <gtest/gtest.h>

#include <set>

#include "sftrun/core/file.h"
#include "sftrun/images/processor.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace sftrun::images {
namespace {

using PromptTestJson = nlohmann::json;

/// A model's folder with these files.
class PromptFolder {
 public:
  explicit PromptFolder(const PromptTestJson& files) {
    for (const auto& [name, content] : files.items())
      write_file_atomically(folder_.path() / name,
                            content.is_string() ? content.get<std::string>() : content.dump());
  }
  ImagePrompt prompt(ProcessorKind kind) const { return read_prompt(folder_.path(), kind); }
  ImageProcessor processor() const { return read_processor(folder_.path()); }

 private:
  test::TemporaryDirectory folder_;
};

/// Runs of a token as their number.
std::string shortened(const std::string& text, const std::string& token) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    size_t count = 0;
    while (text.compare(at, token.size(), token) == 0) at += token.size(), ++count;
    if (count > 0)
      result += fmt::format("{{{}}}", count);
    else
      result += text[at++];
  }
  return result;
}

// What the reference's `replace_image_token` gives: scripts/fixtures/make_image_processors.py.
TEST(ImagePrompt, IsTheTextOfTransformers) {
  const auto cases = PromptTestJson::parse(
      read_text_file(std::filesystem::path(SFTRUN_TEST_DATA) / "image_processors" / "cases.json"));
  std::set<ProcessorKind> kinds;
  for (const PromptTestJson& expected : cases.at("cases")) {
    const PromptFolder folder(expected.at("files"));
    ImageProcessor processor = folder.processor();
    processor.do_pan_and_scan = expected.at("pan_and_scan").get<bool>();
    const ImagePrompt prompt = folder.prompt(processor.kind);
    for (const PromptTestJson& of : expected.at("images")) {
      if (!of.contains("prompt")) continue;
      SCOPED_TRACE(expected.at("name").get<std::string>() + ": " + of.dump());
      kinds.insert(processor.kind);
      const auto [width, height] = of.at("size").get<std::array<int64_t, 2>>();
      const ImagePlan plan = plan_image(processor, width, height);
      EXPECT_EQ(shortened(text_of_image(prompt, plan), prompt.feature), of.at("prompt"));
    }
  }
  EXPECT_EQ(kinds.size(), kProcessors.size()) << "each row has a case";
}

TEST(ImagePrompt, TakesTokensFromTheModelsFiles) {
  const PromptTestJson files = {
      {"tokenizer_config.json",
       {{"image_token", {{"content", "<soft>"}, {"special", true}}},
        {"extra_special_tokens", {{"boi_token", "<boi>"}, {"image_token", "<not this>"}}}}},
      {"processor_config.json", {{"eoi_token", "<eoi>"}, {"boi_token", "<not this>"}}},
      {"config.json", {{"image_token_index", 262144}}}};
  const PromptFolder named(files);
  const ImagePrompt prompt = named.prompt(ProcessorKind::kGemma3);
  EXPECT_EQ(prompt.placeholder, "<boi>");
  EXPECT_EQ(prompt.feature, "<soft>");
  EXPECT_EQ(prompt.end, "<eoi>");
  EXPECT_EQ(prompt.feature_id, 262144);
  EXPECT_EQ(prompt.tokens(), (std::vector<std::string>{"<boi>", "<soft>", "<eoi>"}));

  const ImagePrompt qwen = PromptFolder(PromptTestJson::object()).prompt(ProcessorKind::kQwen2Vl);
  EXPECT_EQ(qwen.tokens(),
            (std::vector<std::string>{"<|image_pad|>", "<|vision_start|>", "<|vision_end|>"}));
  EXPECT_EQ(qwen.feature_id, -1);
}

TEST(ImagePrompt, RefusesAnUnknownNumberOfTokens) {
  const PromptTestJson files = {
      {"preprocessor_config.json", {{"image_processor_type", "CLIPImageProcessor"}}}};
  const PromptFolder folder(files);
  const ImageProcessor processor = folder.processor();
  test::expect_error(
      [&] { text_of_image(folder.prompt(processor.kind), plan_image(processor, 9, 9)); },
      {"do not say how many tokens", "num_additional_image_tokens"});
  const PromptTestJson list = {{"tokenizer_config.json", "[]"}};
  const PromptFolder damaged(list);
  test::expect_error([&] { damaged.prompt(ProcessorKind::kLlava); }, {"tokenizer_config.json"});
}

}  // namespace
}  // namespace sftrun::images
