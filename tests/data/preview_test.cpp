#include "sftrun/data/preview.h"

#include <gtest/gtest.h>

#include "sftrun/core/file.h"
#include "toy_model.h"

namespace sftrun::data {
namespace {

Preview preview_of(const std::string& content, const TextModel& model, int64_t max_seq_len = 512) {
  const sftrun::test::TemporaryDirectory dir;
  write_file_atomically(dir / "f.jsonl", content);
  config::RunConfig config;
  config.model.max_seq_len = max_seq_len;
  config.data.too_long = config::TooLong::kTruncate;
  return preview_dataset(config, {.path = (dir / "f.jsonl").string()}, /*is_validation=*/false,
                         model, 10);
}

constexpr const char* kChat =
    R"({"messages": [{"role": "user", "content": "<b>\n"}, {"role": "assistant", "content": "é"}]})";

TEST(PreviewText, PlainShowsOriginsBoundariesAndLabels) {
  const TextModel model = test::toy_model();
  const std::string text = preview_text(preview_of(kChat, model), model, /*colour=*/false);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_NE(text.find("format messages: it has \"messages\""), std::string::npos);
  // 1 + 5 (user⏎) + 4 (<b>⏎) + 1 + 1 and 1 + 10 (assistant⏎) given; é is two tokens; then
  // <|im_end|>, and ⏎ given
  EXPECT_NE(text.find("line 1: 27 tokens, 3 trained on (11.1%)"), std::string::npos) << text;
  EXPECT_NE(text.find("   messages[0] user content"), std::string::npos) << text;
  EXPECT_NE(text.find("<│b│>│⏎\n"), std::string::npos) << text;
  EXPECT_NE(text.find("⟨<|im_start|>⟩"), std::string::npos) << text;
  EXPECT_NE(text.find(">> messages[1] assistant content"), std::string::npos) << text;
  EXPECT_NE(text.find("\\xC3│\\xA9"), std::string::npos) << text;
}

TEST(PreviewText, ColoursAreReset) {
  const TextModel model = test::toy_model();
  const std::string text = preview_text(preview_of(kChat, model), model, /*colour=*/true);
  EXPECT_NE(text.find("\x1b["), std::string::npos);
  for (size_t at = text.find('\n'); at != std::string::npos; at = text.find('\n', at + 1)) {
    const size_t escape = text.rfind("\x1b[", at);
    EXPECT_TRUE(escape == std::string::npos || text.substr(escape, 4) == "\x1b[0m")
        << text.substr(0, at);
  }
}

TEST(PreviewText, ShowsTruncatedAndOmittedRecords) {
  const TextModel model = test::toy_model();
  const std::string cut = preview_text(preview_of(R"({"text": "abcdef"})", model, 4), model, false);
  EXPECT_NE(cut.find("line 1: 7 tokens, 3 trained on (42.9%); TRUNCATED to its first 4"),
            std::string::npos)
      << cut;
  EXPECT_NE(cut.find("(cut) text"), std::string::npos) << cut;
  EXPECT_NE(cut.find("added by the tokenizer"), std::string::npos) << cut;
  const std::string out = preview_text(
      preview_of(R"({"messages": [{"role": "user", "content": "q"}]})", model), model, false);
  EXPECT_NE(out.find("LEFT OUT: no token has a label"), std::string::npos) << out;
}

/// What records say of their texts: classes, margins, rewards and groups.
TEST(PreviewText, ShowsWhatIsLearnt) {
  const TextModel model = test::toy_model();
  const sftrun::test::TemporaryDirectory dir;
  const auto shown = [&](config::Objective objective, const std::string& content) {
    write_file_atomically(dir / "f.jsonl", content);
    config::RunConfig config;
    config.train.objective = objective;
    config.data.train = {{.path = (dir / "f.jsonl").string()}};
    return preview_dataset(config, config.data.train[0], /*is_validation=*/false, model, 10);
  };
  const auto expect = [&](const Preview& preview, const std::vector<std::string>& texts) {
    const std::string text = preview_text(preview, model, /*colour=*/false),
                      page = preview_html({preview}, model, "t");
    for (const std::string& one : texts) {
      EXPECT_NE(text.find(one), std::string::npos) << one << "\n" << text;
      EXPECT_NE(page.find(one), std::string::npos) << one;
    }
  };
  const auto json = [&](const Preview& preview) {
    return preview_json({preview}, model)["data_sets"][0]["sequences"];
  };
  const Preview classes = shown(config::Objective::kClassify,
                                "{\"text\": \"x\", \"labels\": [\"joy\", \"anger\"]}\n"
                                "{\"text\": \"y\", \"labels\": [\"joy\"]}\n");
  expect(classes, {"; classes anger, joy", "; class joy",
                   "o token has a label; trained on: the "
                   "scores of each text"});
  EXPECT_EQ(preview_text(classes, model, false).find(">>"), std::string::npos);
  EXPECT_EQ(json(classes)[0]["num_labels"], 0);
  EXPECT_EQ(json(classes)[0]["trained_of_text"], "the scores of each text");
  EXPECT_EQ(json(classes)[0]["classes"], Json({"anger", "joy"}));
  const Preview pairs = shown(config::Objective::kReward,
                              R"({"prompt": "p", "chosen": "a", "rejected": "b", "margin": 0.5})");
  expect(pairs, {"line 1, chosen: 3 tokens; margin 0.5", "one score of each text"});
  EXPECT_EQ(json(pairs)[1]["margin"], 0.5);
  EXPECT_TRUE(json(pairs)[1]["classes"].is_null());
  const Preview answers = shown(config::Objective::kGrpo,
                                "{\"prompt\": \"p\", \"completion\": \"a\", \"reward\": 1}\n"
                                "{\"prompt\": \"q\", \"completion\": \"a\", \"reward\": 0.25}\n"
                                "{\"prompt\": \"p\", \"completion\": \"b\", \"reward\": 0}\n"
                                "{\"prompt\": \"q\", \"completion\": \"b\", \"advantage\": -2}\n");
  expect(answers, {"; reward 1, group 1", "; reward 0.25, group 2", "; reward 0, group 1",
                   "; advantage -2, group 2"});
  EXPECT_EQ(json(answers)[2]["group"], 1);
  EXPECT_EQ(json(answers)[1]["reward"], 0.25);
  EXPECT_TRUE(json(answers)[3]["reward"].is_null());
  EXPECT_EQ(json(answers)[3]["advantage"], -2);
}

TEST(PreviewJson, HasTokensLabelsAndOriginsSideBySide) {
  const TextModel model = test::toy_model();
  const std::vector<Preview> previews = {preview_of(kChat, model, /*max_seq_len=*/26)};
  const Json json = Json::parse(preview_json(previews, model).dump());
  const Json& data_set = json["data_sets"][0];
  EXPECT_EQ(data_set["format"], "messages");
  const Json& sequence = data_set["sequences"][0];
  EXPECT_EQ(sequence["place"], "line 1");
  EXPECT_TRUE(sequence["left_out"].is_null());
  EXPECT_EQ(sequence["num_kept"], 26);
  EXPECT_EQ(sequence["num_labels"], 3);
  for (const char* list : {"input_ids", "tokens", "labels", "origins"})
    ASSERT_EQ(sequence[list].size(), 27U) << list;
  EXPECT_EQ(sequence["tokens"][0], "<|im_start|>");
  EXPECT_EQ(sequence["origins"][7], "messages[0] user content");
  int64_t labelled = 0;
  for (size_t i = 0; i < 27; ++i) {
    if (sequence["labels"][i] == -100) continue;
    EXPECT_EQ(sequence["labels"][i], sequence["input_ids"][i]);
    ++labelled;
  }
  EXPECT_EQ(labelled, 3);
  EXPECT_EQ(sequence["labels"][25], test::kImEnd);
}

TEST(PreviewHtml, IsSelfContainedAndEscaped) {
  const TextModel model = test::toy_model();
  const std::string html = preview_html({preview_of(kChat, model)}, model, "a & b");
  EXPECT_TRUE(html.starts_with("<!doctype html>"));
  EXPECT_NE(html.find("<title>a &amp; b</title>"), std::string::npos);
  EXPECT_EQ(html.find("http"), std::string::npos);  // nothing is fetched
  EXPECT_EQ(html.find("<b>"), std::string::npos);
  EXPECT_NE(html.find("prefers-color-scheme: dark"), std::string::npos);
  EXPECT_NE(html.find("title=\"id 259&#10;trained on&#10;template\">&lt;|im_end|&gt;</span>"),
            std::string::npos)
      << html;
  EXPECT_NE(
      html.find("title=\"id 60&#10;not trained on&#10;messages[0] user content\">&lt;</span>"),
      std::string::npos);
}

}  // namespace
}  // namespace sftrun::data
