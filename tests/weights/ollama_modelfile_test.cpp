#include "sftrun/weights/ollama_modelfile.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "sftrun/weights/gguf_export.h"
#include "support/test_data.h"

namespace sftrun::weights {
namespace {

namespace fs = std::filesystem;

using test::kData;

OllamaModelfile of(const fs::path& model, const std::optional<std::string>& chat_template) {
  return ollama_modelfile(*Checkpoint::open(kData / model), chat_template, "");
}

TEST(OllamaModelfile, StopsWhereTheModelDoes) {
  OllamaModelfile file = of("converted/llama-F32.gguf", std::nullopt);
  file.from = "./mine-F32.gguf";
  EXPECT_EQ(file.text(),
            "# The model has no chat template, so this file has no TEMPLATE. Add one to use the "
            "model for chat.\n"
            "FROM ./mine-F32.gguf\nPARAMETER stop \"<|endoftext|>\"\n");
}

TEST(OllamaModelfile, HasTheChatTemplateInGo) {
  const fs::path model = kData / "models/tied-gqa";
  const auto base = Checkpoint::open(model);
  const OllamaModelfile file = ollama_modelfile(*base, base->chat_template(), "");
  EXPECT_TRUE(file.remarks.empty());
  ASSERT_TRUE(file.template_text);
  EXPECT_NE(file.text().find("TEMPLATE \"\"\"" + *file.template_text + "\"\"\"\n"),
            std::string::npos);
  EXPECT_NE(file.text().find("<|turn|>user\n{{ .Content }}<|end|>\n"), std::string::npos);
}

TEST(OllamaModelfile, SaysWhyThereIsNoTemplate) {
  const OllamaModelfile dated =
      of("converted/llama-F32.gguf", "{{ strftime_now('%d') }}{{ messages[0].content }}");
  EXPECT_FALSE(dated.template_text);
  ASSERT_EQ(dated.remarks.size(), 1U);
  EXPECT_TRUE(dated.text().starts_with(
      "# There is no TEMPLATE, because no Ollama template equal to the chat template was found: it "
      "prints the current date. Ollama 0.30 and later use the GGUF file's chat template"))
      << dated.text();
  EXPECT_EQ(dated.text().find("\nTEMPLATE"), std::string::npos);
  const OllamaModelfile broken = of("converted/llama-F32.gguf", "{% for %}");
  EXPECT_FALSE(broken.template_text);
  EXPECT_NE(broken.remarks.at(0).find("the chat template cannot be parsed"), std::string::npos);
}

TEST(OllamaModelfile, RemarksAreCommentsOfOneLine) {
  const OllamaModelfile file{.from = "./base.gguf",
                             .adapter = "./mine-lora.gguf",
                             .template_text = std::nullopt,
                             .remarks = {"two\nlines"},
                             .stops = {"<\"end\">"}};
  EXPECT_EQ(file.text(),
            "# two lines\nFROM ./base.gguf\nADAPTER ./mine-lora.gguf\n"
            "PARAMETER stop \"\"\"<\"end\">\"\"\"\n");
}

/// What the runner adds is what the file says.
TEST(OllamaModelfile, BosIsThatOfTheFile) {
  const auto planned = [](const fs::path& model) {
    const auto base = Checkpoint::open(kData / model);
    return plan_gguf(*base, {.base_path = kData / model,
                             .is_changed = [](const std::string&) { return false; }});
  };
  EXPECT_EQ(planned("models/llama3-gguf/model-F16.gguf").added_bos, "<|begin|>");
  EXPECT_EQ(planned("models/tied-gqa").added_bos, "");
  const fs::path file = "models/llama3-gguf/model-F16.gguf";
  EXPECT_TRUE(planned(file).chat_template);
  EXPECT_EQ(planned(file).chat_template, Checkpoint::open(kData / file)->chat_template());
}

}  // namespace
}  // namespace sftrun::weights
