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

/// A video of 2 x 2 tokens a group.
std::string text_of(VideoKind kind, std::vector<double> seconds, int64_t tokens = 2) {
  VideoProcessor processor;
  processor.kind = kind;
  processor.row().defaults(processor);
  const VideoPrompt prompt = read_video_prompt(test::TemporaryDirectory().path(), kind);
  ImagePlan plan;
  plan.num_tokens = tokens;
  std::string text;
  for (const std::string& one : texts_of_video(prompt, processor, plan, seconds)) text += one;
  return text;
}

// What the reference's `replace_video_token` gives (tests/parity/videos_parity.py compares more).
TEST(VideoPrompt, IsTheTextOfTransformers) {
  EXPECT_EQ(text_of(VideoKind::kQwen2Vl, {0, 1, 2}),
            "<|video_pad|><|video_pad|><|video_pad|><|video_pad|>");
  // The mean of a pair; the last frame is a pair with itself. 0.25 is written as Python does it.
  EXPECT_EQ(text_of(VideoKind::kQwen3Vl, {0, 0.5, 1}, 1),
            "<0.2 seconds><|vision_start|><|video_pad|><|vision_end|>"
            "<1.0 seconds><|vision_start|><|video_pad|><|vision_end|>");
  EXPECT_EQ(text_of(VideoKind::kSmolVlm, {0, 65.9}, 1),
            "You are provided the following series of two frames from a 0:01:05 [H:MM:SS] video.\n"
            "\nFrame from 00:00:<fake_token_around_image><global-img><image>"
            "<fake_token_around_image>"
            "\nFrame from 01:05:<fake_token_around_image><global-img><image>"
            "<fake_token_around_image>\n\n");
  EXPECT_NE(text_of(VideoKind::kSmolVlm, {2 * 86'400 + 3661.0}).find("a 2 days, 1:01:01 ["),
            std::string::npos);
}

// num2words 0.5.14
TEST(VideoPrompt, WritesNumbersAsNum2words) {
  const std::pair<int64_t, const char*> numbers[] = {
      {0, "zero"},
      {13, "thirteen"},
      {20, "twenty"},
      {64, "sixty-four"},
      {100, "one hundred"},
      {119, "one hundred and nineteen"},
      {768, "seven hundred and sixty-eight"},
      {1000, "one thousand"},
      {1001, "one thousand and one"},
      {1100, "one thousand, one hundred"},
      {9999, "nine thousand, nine hundred and ninety-nine"},
      {123456, "one hundred and twenty-three thousand, four hundred and fifty-six"},
      {1000001, "one million and one"},
      {2345678,
       "two million, three hundred and forty-five thousand, six hundred and seventy-eight"}};
  for (const auto& [number, words] : numbers) EXPECT_EQ(in_words(number), words);
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
