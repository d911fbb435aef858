#include "sftrun/data/dataset.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/core/strings.h"
#include "toy_model.h"

namespace sftrun::data {
namespace {

using config::TooLong;

class Datasets : public ::testing::Test {
 protected:
  Datasets() {
    log::configure({.console = log::Level::kOff});
    config_.model.max_seq_len = 64;
    config_.data.cache_dir = (dir_ / "cache").string();
  }

  std::filesystem::path write(const std::string& content, const std::string& name = "train.jsonl") {
    write_file_atomically(dir_ / name, content);
    return dir_ / name;
  }
  Dataset load(const std::string& content, int num_threads = 1) {
    return load_dataset(config_, {{.path = write(content).string()}}, false, model_, num_threads);
  }
  /// What loading `content` warns of.
  std::string warnings(const std::string& content) {
    const std::filesystem::path file = dir_ / "log";
    std::filesystem::remove(file);
    log::configure({.console = log::Level::kOff, .file = file});
    load(content);
    log::flush();
    std::string found;
    for (const std::string& line : split(read_text_file(file), '\n')) {
      if (line.find("[warning]") != std::string::npos) found += line + "\n";
    }
    log::configure({.console = log::Level::kOff});
    return found;
  }
  DataError failure(const std::string& content, int num_threads = 1) {
    try {
      load(content, num_threads);
    } catch (const DataError& error) {
      return error;
    }
    ADD_FAILURE() << "no error";
    return DataError("");
  }

  sftrun::test::TemporaryDirectory dir_;
  config::RunConfig config_;
  TextModel model_ = test::toy_model();
};

std::string text_records(int count) {
  std::string content;
  for (int i = 0; i < count; ++i) content += R"({"text": "record )" + std::to_string(i) + "\"}\n";
  return content;
}

std::string chat(const std::string& question, const std::string& answer) {
  return Json({{"messages",
                {{{"role", "user"}, {"content", question}},
                 {{"role", "assistant"}, {"content", answer}}}}})
             .dump() +
         "\n";
}

TEST_F(Datasets, KeepsRecordOrderWhateverTheThreads) {
  const std::string content = text_records(500);
  const Dataset one = load(content, 1);
  config_.data.cache_dir = "none";
  const Dataset four = load(content, 4);
  ASSERT_EQ(one.examples().size(), 500);
  for (int64_t i = 0; i < 500; ++i) {
    EXPECT_TRUE(std::ranges::equal(one.examples()[i].tokens, four.examples()[i].tokens));
    EXPECT_EQ(four.examples().stored(i).record, i);
  }
  EXPECT_EQ(one.fingerprint(), four.fingerprint());
  EXPECT_EQ(one.parts()[0].format, RecordFormat::kText);
}

TEST_F(Datasets, Counts) {
  const Dataset data = load("{\"text\": \"ab\"}\n\n{\"text\": \"abc\"}\r\n");
  EXPECT_EQ(data.stats().num_records, 2);
  EXPECT_EQ(data.stats().num_examples, 2);
  EXPECT_EQ(data.stats().num_tokens, 3 + 4);
  EXPECT_EQ(data.stats().num_label_tokens, 2 + 3);  // nothing predicts the first token
  EXPECT_EQ(data.stats().longest, 4);
}

TEST_F(Datasets, TheFirstBadRecordIsNamed) {
  std::string content = text_records(300);
  content += "{\"text\": oops}\n" + text_records(200) + "{\"message\": 1}\n";
  for (const int threads : {1, 4}) {
    const DataError error = failure(content, threads);
    EXPECT_TRUE(error.where().ends_with("train.jsonl:301:10")) << error.where();
  }
}

TEST_F(Datasets, AllBadRecordsComeInOneMessage) {
  const std::string content = chat("q", "a") + "{\"messages\": oops}\n" + chat("q", "b") +
                              "{\"messages\": 3}\n" + R"({"messages": [{"role": "user",)" +
                              R"( "content": null}]})" + "\n";
  for (const int threads : {1, 4}) {
    const DataError error = failure(content, threads);
    EXPECT_TRUE(error.message().starts_with("3 records cannot be used:\n")) << error.message();
    for (const char* part : {"train.jsonl:2:14: malformed JSON", "train.jsonl:4: \"messages\" must",
                             "train.jsonl:5: messages[0].content is null"})
      EXPECT_NE(error.message().find(part), std::string::npos) << part << error.message();
    EXPECT_TRUE(error.where().ends_with("train.jsonl:2:14")) << error.where();
    EXPECT_NE(error.fix().find("data.bad_records: skip leaves these records out"),
              std::string::npos)
        << error.fix();
  }
  std::string many = text_records(1);
  for (int i = 0; i < 25; ++i) many += "{\"text\": " + std::to_string(i) + "}\n";
  const DataError alike = failure(many);
  EXPECT_EQ(
      alike.message(),
      "\"text\" must be a string, not number; 24 more records have the same problem: lines 3, "
      "4, 5, 6, 7, 8, 9, 10, 11, …");
}

TEST_F(Datasets, ARecordOverSeveralLinesIsToldFromADamagedOne) {
  const std::string good = text_records(1);
  EXPECT_NE(failure("{\"text\":\n\"a\"}\n" + good).fix().find("jq -c ."), std::string::npos);
  EXPECT_NE(failure(good + "{\"text\":\n" + good).fix().find("remove its line"), std::string::npos);
  EXPECT_NE(failure(good + "{\"text\":").fix().find("the file ends within this record"),
            std::string::npos);
}

TEST_F(Datasets, BadRecordsAreLeftOutWhenAskedFor) {
  const std::string good = chat("q", "a") + chat("r", "b"), bad = "oops\n{\"messages\": 3}\n";
  config_.data.bad_records = config::BadRecords::kSkip;
  EXPECT_NE(warnings(bad + good).find("data: 2 bad records left out (data.bad_records: skip): "),
            std::string::npos);
  const Dataset data = load(bad + good);
  EXPECT_EQ(data.stats().num_records, 4);
  EXPECT_EQ(data.stats().num_bad, 2);
  EXPECT_EQ(data.examples().size(), 2);
  EXPECT_EQ(data.examples().stored(0).number, 3U);
  EXPECT_EQ(data.parts()[0].format, RecordFormat::kMessages) << "of the first that has one";
  EXPECT_EQ(load(bad + good).fingerprint(), data.fingerprint());
  EXPECT_NE(load(good + bad).fingerprint(), data.fingerprint());
  EXPECT_EQ(failure(bad + bad).message().substr(0, 9), "4 records");
  config_.data.bad_records = config::BadRecords::kError;
  failure(bad + good);  // what was kept with skip is not taken
}

TEST_F(Datasets, ADataSetOfBadRecordsAloneIsNotReadToItsEnd) {
  config_.data.bad_records = config::BadRecords::kSkip;
  config_.data.format = config::RecordFormat::kText;
  std::string content;
  for (int i = 0; i < 300'000; ++i)
    content += "{\"text\": " + std::to_string(i) + ", \"pad\": \"" + std::string(20, 'x') + "\"}\n";
  const DataError error = failure(content);
  EXPECT_EQ(error.message().find("299999 more"), std::string::npos) << error.message();
  EXPECT_NE(error.message().find(" more records"), std::string::npos) << error.message();
}

TEST_F(Datasets, TooLongIsNoBadRecord) {
  config_.data.too_long = TooLong::kError;
  config_.data.bad_records = config::BadRecords::kSkip;
  const DataError error = failure(chat("q", "a") + chat("q", std::string(100, 'x')));
  EXPECT_NE(error.message().find("model.max_seq_len is 64"), std::string::npos) << error.message();
}

TEST_F(Datasets, AFileThatIsBrokenAsAWholeIsAnError) {
  config_.data.bad_records = config::BadRecords::kSkip;
  const auto array = write(R"([{"text": "a"}, {"text": "b")", "cut.json");
  EXPECT_THROW(load_dataset(config_, {{.path = array.string()}}, false, model_, 1), DataError);
  const auto parquet = write("no parquet", "a.parquet");
  EXPECT_THROW(load_dataset(config_, {{.path = parquet.string()}}, false, model_, 1), DataError);
}

TEST_F(Datasets, ReportsAllFaultyDataSets) {
  const auto a = write("{\"text\": oops}\n{\"text\": \"a\"}\n", "a.jsonl"),
             b = write(text_records(3), "b.jsonl"),
             c = write("{\"text\": \"a\"}\n{\"txt\": 1}\n", "c.jsonl");
  const auto errors = [&](const std::vector<std::filesystem::path>& files) {
    std::vector<config::DataSource> sources;
    for (const auto& file : files) sources.push_back({.path = file.string()});
    try {
      load_dataset(config_, sources, false, model_, 1);
    } catch (const DataError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string both = errors({a, b, c});
  EXPECT_NE(both.find("a.jsonl:1:10"), std::string::npos) << both;
  EXPECT_NE(both.find("\nerror: the record has no \"text\""), std::string::npos) << both;
  EXPECT_NE(both.find("c.jsonl:2"), std::string::npos) << both;
  const std::string missing = errors({dir_ / "none.jsonl", a, dir_ / "neither.jsonl"});
  EXPECT_NE(missing.find("none.jsonl"), std::string::npos) << missing;
  EXPECT_NE(missing.find("neither.jsonl"), std::string::npos) << missing;
  EXPECT_EQ(missing.find("a.jsonl:1"), std::string::npos) << "told before anything is tokenised";
}

TEST_F(Datasets, FilesOfOneDataSetHaveOneFormat) {
  std::filesystem::create_directory(dir_ / "parts");
  write(chat("q", "a") + "{\"messages\": 3}\n", "parts/a.jsonl");
  const auto alpaca = write(R"({"instruction": "i", "output": "o"})", "parts/b.jsonl");
  const config::DataSource source = {.path = (dir_ / "parts" / "*.jsonl").string()};
  const auto expect_named = [&](const auto& action) {
    try {
      action();
      ADD_FAILURE() << "no error";
    } catch (const DataError& error) {
      EXPECT_NE(error.message().find("must have the same format"), std::string::npos)
          << error.what();
      EXPECT_EQ(error.where(), alpaca.string() + ":1");
    }
  };
  expect_named([&] { load_dataset(config_, {source}, false, model_, 1); });
  expect_named([&] { try_dataset(config_, source, false, model_); });
  expect_named([&] { look_at_source(config_, source, false); });
  write("{\"messages\": 3}\n" + chat("q", "b"), "parts/b.jsonl");
  config_.data.bad_records = config::BadRecords::kSkip;
  EXPECT_EQ(load_dataset(config_, {source}, false, model_, 1).stats().num_bad, 2);
}

TEST_F(Datasets, WarnsOfPairsWithEqualAnswers) {
  config_.train.objective = config::Objective::kDpo;
  const std::string pairs = warnings(R"({"prompt": "p", "chosen": "a", "rejected": "b"})"
                                     "\n"
                                     R"({"prompt": "p", "chosen": "a", "rejected": "a"})"
                                     "\n");
  EXPECT_NE(pairs.find("pairs have the same chosen and rejected answer (1): "), std::string::npos)
      << pairs;
  EXPECT_NE(pairs.find("train.jsonl:2"), std::string::npos) << pairs;
}

TEST_F(Datasets, EmptyAnswersAndAssistantsThatBeginAreWarnedOf) {
  const auto first = [](const char* role) {
    return Json({{"messages",
                  {{{"role", "system"}, {"content", "s"}},
                   {{"role", role}, {"content", "hello"}},
                   {{"role", "assistant"}, {"content", "a"}}}}})
               .dump() +
           "\n";
  };
  const std::string begins = warnings(first("user") + first("assistant") + first("assistant"));
  EXPECT_NE(begins.find("conversations begin with an assistant turn (2): "), std::string::npos)
      << begins;
  EXPECT_NE(begins.find("train.jsonl:2"), std::string::npos) << begins;
  const std::string empty = warnings(chat("q", "a") + chat("q", "") + chat("q", " \n"));
  EXPECT_NE(empty.find("answers are empty (2): "), std::string::npos) << empty;
  EXPECT_NE(empty.find("trains the model to give empty answers"), std::string::npos) << empty;
  const std::string strings = warnings(R"({"prompt": "p", "completion": "c"})"
                                       "\n"
                                       R"({"prompt": "p", "completion": ""})"
                                       "\n");
  EXPECT_NE(strings.find("answers are empty (1): "), std::string::npos) << strings;
  const std::string untrained = Json({{"messages",
                                       {{{"role", "user"}, {"content", "q"}},
                                        {{"role", "assistant"}, {"content", ""}, {"train", false}},
                                        {{"role", "user"}, {"content", "q"}},
                                        {{"role", "assistant"}, {"content", "a"}}}}})
                                    .dump();
  EXPECT_EQ(warnings(chat("q", "a") + untrained + "\n"), "");
  EXPECT_EQ(warnings(text_records(2)), "");
}

TEST_F(Datasets, ColumnsThatAreNotReadAreWarnedOf) {
  const std::string record = R"({"instruction": "i", "output": "o", "history": [["a", "b"]]})"
                             "\n";
  const std::string said = warnings(record + record);
  EXPECT_NE(said.find("records have \"history\", which is not read (2): "), std::string::npos)
      << said;
  EXPECT_NE(said.find("earlier turns are read from \"messages\""), std::string::npos) << said;
  const std::string weighed = warnings(R"({"prompt": "p", "completion": "c", "weight": 0})"
                                       "\n"
                                       R"({"prompt": "p", "completion": "c", "weight": 1.0})"
                                       "\n"
                                       R"({"prompt": "p", "completion": "c", "weight": null})"
                                       "\n");
  EXPECT_NE(weighed.find("records have \"weight\", which is not read (1): "), std::string::npos)
      << weighed;
  const auto look = look_at_source(config_, {.path = write(record).string()}, false);
  ASSERT_EQ(look.warnings.size(), 1U);
  EXPECT_NE(look.warnings[0].find("\"history\""), std::string::npos);
}

TEST_F(Datasets, ALookAndATrialTakeBadRecordsAsTrainingDoes) {
  const config::DataSource source = {
      .path = write(text_records(2) + "oops\n{\"text\": 1}\n" + text_records(300)).string()};
  EXPECT_THROW(look_at_source(config_, source, false), DataError);
  try {
    try_dataset(config_, source, false, model_);
    ADD_FAILURE() << "no error";
  } catch (const DataError& error) {
    EXPECT_TRUE(error.message().starts_with("of the first 100 records: 2 records cannot be used"))
        << error.message();
  }
  config_.data.bad_records = config::BadRecords::kSkip;
  const SourceLook look = look_at_source(config_, source, false);
  ASSERT_EQ(look.warnings.size(), 1U);
  EXPECT_NE(look.warnings[0].find("of the first 100 records 2 bad records left out"),
            std::string::npos);
  const DatasetTrial trial = try_dataset(config_, source, false, model_);
  EXPECT_EQ(trial.stats.num_bad, 2);
  ASSERT_EQ(trial.warnings.size(), 1U);
}

TEST_F(Datasets, PreviewWarnsAsTrainingDoes) {
  const std::string with_tools = R"({"messages": [{"role": "assistant", "content": "a"}], )"
                                 R"("tools": [{"function": {"name": "add"}}]})"
                                 "\n";
  const std::string of_training =
      warnings(chat("q", "a") + chat("q", "") + chat("q", std::string(100, 'x')) + with_tools);
  const config::DataSource source = {.path = (dir_ / "train.jsonl").string()};
  const Preview preview = preview_dataset(config_, source, /*is_validation=*/false, model_, 1);
  EXPECT_EQ(preview.sequences.size(), 1U);
  EXPECT_FALSE(preview.refusal.has_value());
  EXPECT_EQ(preview.warnings.size(), 4U) << of_training;
  for (const std::string& warning : preview.warnings)
    EXPECT_NE(of_training.find(warning), std::string::npos) << warning;

  write(chat("q", "a") + "oops\n");
  const Preview later = preview_dataset(config_, source, /*is_validation=*/false, model_, 1);
  ASSERT_TRUE(later.refusal.has_value());
  EXPECT_TRUE(later.refusal->where().ends_with("train.jsonl:2:1")) << later.refusal->where();
  config_.data.bad_records = config::BadRecords::kSkip;
  const Preview skipped = preview_dataset(config_, source, /*is_validation=*/false, model_, 2);
  ASSERT_EQ(skipped.sequences.size(), 2U);
  EXPECT_NE(skipped.sequences[1].left_out.find("malformed JSON"), std::string::npos);
  ASSERT_EQ(skipped.warnings.size(), 1U);
  EXPECT_NE(skipped.warnings[0].find("1 bad record left out"), std::string::npos);
}

TEST_F(Datasets, LongConversationsAreDroppedAndTextsTruncated) {
  const Dataset dropped = load(chat("q", "a") + chat("q", std::string(100, 'x')));
  EXPECT_EQ(dropped.stats().num_dropped_too_long, 1);
  EXPECT_EQ(dropped.examples().size(), 1);
  const Dataset truncated = load("{\"text\": \"" + std::string(100, 'x') + "\"}\n");
  EXPECT_EQ(truncated.stats().num_truncated, 1);
  EXPECT_EQ(truncated.examples()[0].size(), 64);
  EXPECT_EQ(truncated.examples().stored(0).label_tokens, 63U);
}

TEST_F(Datasets, TruncatedAwayLabelsAreCounted) {
  config_.data.too_long = TooLong::kTruncate;
  const Dataset data =
      load(chat("q", "a") + chat("q", std::string(100, 'x')) + chat(std::string(100, 'q'), "a"));
  EXPECT_EQ(data.stats().num_truncated, 2);
  EXPECT_EQ(data.stats().num_labels_cut_off, 1);
  EXPECT_EQ(data.examples().size(), 2);
}

TEST_F(Datasets, LongRecordsCanBeRefused) {
  config_.data.too_long = TooLong::kError;
  const std::string long_record = chat("q", std::string(100, 'x'));
  for (const std::string& content :
       {chat("q", "a") + long_record, chat("q", "a") + "{\"messages\": 3}\n" + long_record}) {
    const std::string fix = failure(content).fix();
    EXPECT_EQ(fix.find("data.bad_records"), std::string::npos)
        << "it would leave out no record that is too long: " << fix;
  }
  EXPECT_TRUE(failure(chat("q", "a") + chat("q", std::string(100, 'x')))
                  .where()
                  .ends_with("train.jsonl:2"));
}

TEST_F(Datasets, RecordsWithoutLabelsAreLeftOut) {
  const Dataset data =
      load(chat("q", "a") + R"({"messages": [{"role": "user", "content": "q"}]})" + "\n");
  EXPECT_EQ(data.stats().num_without_labels, 1);
  EXPECT_EQ(data.examples().size(), 1);
}

TEST_F(Datasets, NoLabelAtAllIsAnErrorShowingARecord) {
  const DataError error = failure(R"({"messages": [{"role": "user", "content": "alone"}]})"
                                  "\n");
  EXPECT_NE(error.message().find("<|im_start|>user\nalone<|im_end|>"), std::string::npos)
      << error.message();
  EXPECT_TRUE(error.where().ends_with("train.jsonl:1"));
  EXPECT_NE(error.fix().find("sftrun preview"), std::string::npos);
}

TEST_F(Datasets, NothingShortEnoughIsAnError) {
  const DataError error =
      failure(chat("q", std::string(200, 'x')) + chat("q", std::string(100, 'x')));
  EXPECT_NE(error.message().find("longer than model.max_seq_len = 64"), std::string::npos)
      << error.message();
  EXPECT_TRUE(error.where().ends_with("train.jsonl:2")) << "names the shortest";
}

TEST_F(Datasets, EmptyAndMissingFiles) {
  EXPECT_NE(failure("").message().find("no records"), std::string::npos);
  EXPECT_NE(failure("\n \n").message().find("no records"), std::string::npos);
  EXPECT_THROW(load_dataset(config_, {{.path = (dir_ / "none.jsonl").string()}}, false, model_, 1),
               DataError);
}

/// Data that are equal but for the spelling of their path are tokenized once.
TEST_F(Datasets, SpellingsOfAPathShareTheCache) {
  const std::filesystem::path file = write(chat("q", "") + chat("q", "a"));
  std::filesystem::create_directory(dir_ / "sub");
  std::filesystem::create_symlink(file, dir_ / "link.jsonl");
  std::filesystem::create_symlink(file, dir_ / "link.txt");
  const auto folders = [&] {
    return std::distance(std::filesystem::directory_iterator(dir_ / "cache"), {});
  };
  const auto load_as = [&](const std::filesystem::path& path) {
    return load_dataset(config_, {{.path = path.string()}}, false, model_, 1);
  };
  const auto once = (load_as(file), folders());
  const std::filesystem::path log_file = dir_ / "log";
  log::configure({.console = log::Level::kOff, .file = log_file});
  for (const auto& path : {dir_ / "sub" / ".." / "train.jsonl", dir_ / "link.jsonl"}) {
    EXPECT_EQ(load_as(path).file_of(0).path, path.string());
    EXPECT_EQ(folders(), once) << path;
  }
  log::flush();
  const std::string lines = read_text_file(log_file);
  log::configure({.console = log::Level::kOff});
  EXPECT_NE(lines.find("link.jsonl is tokenized already: "), std::string::npos) << lines;
  EXPECT_NE(lines.find(" empty (1): " + (dir_ / "link.jsonl").string() + ":1;"), std::string::npos)
      << lines;
  config_.data.format = config::RecordFormat::kText;  // the name says how the lines are read
  EXPECT_EQ(load_as(dir_ / "link.txt").stats().num_examples, 2);
}

TEST_F(Datasets, FlagsOfTurnsThatAreNotReadAreNamed) {
  const auto turns = [](const std::string& extra) {
    return R"({"messages": [{"role": "user", "content": "q", "lang": "en", "at": 1},
               {"role": "assistant", "content": "a")" +
           extra + "}]}";
  };
  const auto one_line = [](std::string text) {
    std::erase(text, '\n');
    return text + "\n";
  };
  const std::string content =
      one_line(turns(R"(, "loss": false)")) + one_line(turns(R"(, "loss_weight": 0)"));
  const std::string found = warnings(content);
  EXPECT_NE(found.find("data: records have turns with \"loss\", which is not read (1): "),
            std::string::npos)
      << found;
  EXPECT_NE(found.find("turns with \"loss_weight\""), std::string::npos) << found;
  EXPECT_NE(found.find("records have turns with \"at\", \"lang\", which are not read"),
            std::string::npos)
      << found;
  const SourceLook look = look_at_source(config_, {.path = (dir_ / "train.jsonl").string()}, false);
  EXPECT_EQ(look.warnings.size(), 2U) << "the flags, which no template reads";
}

TEST_F(Datasets, TwoSystemMessagesAreWarnedOf) {
  const std::string turns = R"("conversations": [{"from": "system", "value": "S"},
      {"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]})";
  std::string both = R"({"system": "S", )" + turns, one = "{" + turns;
  std::erase(both, '\n');
  std::erase(one, '\n');
  EXPECT_NE(warnings(both + "\n" + one + "\n").find("records have a \"system\" and a turn"),
            std::string::npos);
}

TEST_F(Datasets, LinesOfTextMayBeginWithABracket) {
  config_.data.format = config::RecordFormat::kText;
  const auto load_text = [&](const std::string& content) {
    return load_dataset(config_, {{.path = write(content, "a.txt").string()}}, false, model_, 1)
        .stats();
  };
  EXPECT_EQ(load_text("[Verse 1]\nHello\n").num_examples, 2);
  EXPECT_EQ(load_text("{\"text\": \"a\"}\n").num_tokens, 14);
  const config::DataSource source{.path = (dir_ / "a.txt").string()};
  EXPECT_NE(try_dataset(config_, source, false, model_).warnings.at(0).find("look like JSON"),
            std::string::npos);
  config_.data.format = config::RecordFormat::kAuto;
  EXPECT_NE(failure("[]\n" + chat("q", "a")).message().find("must be a JSON object"),
            std::string::npos);
  config_.data.bad_records = config::BadRecords::kSkip;
  EXPECT_EQ(load("[]\n" + chat("q", "a")).stats().num_bad, 1);
}

/// Bad records that are left out may be the first ones.
TEST_F(Datasets, FirstRecordsMayAllBeBad) {
  config_.data.bad_records = config::BadRecords::kSkip;
  config_.data.format = config::RecordFormat::kText;
  std::string bad;
  for (int i = 0; i < 150; ++i) bad += "{}\n";
  const config::DataSource source{.path = write(bad + text_records(3)).string()};
  const Preview preview = preview_dataset(config_, source, /*is_validation=*/false, model_, 2);
  EXPECT_EQ(preview.sequences.size(), 2U);
  EXPECT_FALSE(preview.refusal);
  EXPECT_EQ(try_dataset(config_, source, false, model_).stats.num_examples, 3);
  EXPECT_EQ(look_at_source(config_, source, false).num_records, 100);
  std::string many;
  for (int i = 0; i < 1100; ++i) many += "{}\n";
  write(many + text_records(3));
  const DatasetTrial trial = try_dataset(config_, source, false, model_);
  EXPECT_EQ(trial.stats.num_bad, 1000);
  EXPECT_EQ(trial.warnings.size(), 1U);
  EXPECT_EQ(load(many + text_records(3)).stats().num_examples, 3);
  write(bad);
  EXPECT_TRUE(preview_dataset(config_, source, /*is_validation=*/false, model_, 2).refusal);
  EXPECT_THROW(preview_dataset(config_, source, /*is_validation=*/false, model_, 200), DataError);
  EXPECT_THROW(try_dataset(config_, source, false, model_), DataError);
}

TEST_F(Datasets, TheConfiguredFormatIsTaken) {
  config_.data.format = config::RecordFormat::kText;
  EXPECT_EQ(load(R"({"text": "x", "messages": []})"
                 "\n")
                .parts()[0]
                .format,
            RecordFormat::kText);
}

TEST_F(Datasets, FingerprintFollowsContents) {
  std::set<std::string> seen;
  const std::string content = chat("q", "a");
  const auto is_new = [&](const Dataset& data) { return seen.insert(data.fingerprint()).second; };
  EXPECT_TRUE(is_new(load(content)));
  EXPECT_FALSE(is_new(load(content)));
  EXPECT_TRUE(is_new(load(chat("q", "b"))));
  config_.model.max_seq_len = 65;
  config_.data.loss_on = config::LossOnChoice::kAll;
  EXPECT_FALSE(is_new(load(content))) << "settings are compared one by one, by name";
  model_ = test::toy_model(test::kThinkingChatMl);
  EXPECT_FALSE(is_new(load(content))) << "tokenizer and template are compared by themselves";
}

TEST_F(Datasets, SplitTakesWholeRecords) {
  config_.model.max_seq_len = 512;
  config_.data.thinking = config::Thinking::kSplit;
  std::string content;
  for (int i = 0; i < 40; ++i) {
    content += Json({{"messages",
                      {{{"role", "user"}, {"content", std::to_string(i)}},
                       {{"role", "assistant"}, {"content", "a"}},
                       {{"role", "user"}, {"content", "r"}},
                       {{"role", "assistant"}, {"content", "b"}}}}})
                   .dump() +
               "\n";
  }
  const auto [train, val] = split_dataset(load(content), 0.25, 7);
  EXPECT_EQ(train.stats().num_records, 30);
  EXPECT_EQ(val.stats().num_records, 10);
  EXPECT_EQ(train.examples().size(), 60);
  EXPECT_EQ(val.examples().size(), 20);
  std::set<int64_t> in_train, in_val;
  for (int64_t i = 0; i < train.examples().size(); ++i)
    in_train.insert(train.examples().stored(i).record);
  for (int64_t i = 0; i < val.examples().size(); ++i)
    in_val.insert(val.examples().stored(i).record);
  EXPECT_EQ(in_train.size(), 30U);
  for (const int64_t record : in_val) EXPECT_FALSE(in_train.contains(record));
}

TEST_F(Datasets, SplitDependsOnTheSeedAlone) {
  const auto val_records = [&](uint64_t seed, double val_split) {
    std::vector<int64_t> records;
    const Dataset val = split_dataset(load(text_records(100)), val_split, seed).second;
    for (int64_t i = 0; i < val.examples().size(); ++i)
      records.push_back(val.examples().stored(i).record);
    return records;
  };
  EXPECT_EQ(val_records(1, 0.1).size(), 10U);
  EXPECT_EQ(val_records(1, 25).size(), 25U);
  EXPECT_EQ(val_records(1, 0.001).size(), 1U);
  EXPECT_EQ(val_records(1, 0.1), val_records(1, 0.1));
  EXPECT_NE(val_records(1, 0.1), val_records(2, 0.1));
  const auto records = val_records(3, 20);
  EXPECT_TRUE(std::is_sorted(records.begin(), records.end()));
}

TEST_F(Datasets, SplitMustLeaveSomethingToTrainOn) {
  EXPECT_THROW(split_dataset(load(text_records(10)), 10, 1), DataError);
  EXPECT_THROW(split_dataset(load(text_records(1)), 0.5, 1), DataError);
  EXPECT_EQ(split_dataset(load(text_records(10)), 9, 1).first.examples().size(), 1);
}

TEST_F(Datasets, PreviewDecidesAsTrainingDoes) {
  const auto path = write(chat("q", "a") + chat("q", std::string(100, 'x')) +
                          R"({"messages": [{"role": "user", "content": "q"}]})" + "\nnot json\n");
  const Preview preview =
      preview_dataset(config_, {.path = path.string()}, /*is_validation=*/false, model_, 3);
  ASSERT_EQ(preview.sequences.size(), 3U);
  EXPECT_EQ(preview.sequences[0].left_out, "");
  EXPECT_EQ(preview.sequences[0].place, "line 1");
  EXPECT_NE(preview.sequences[1].left_out.find("more than model.max_seq_len = 64"),
            std::string::npos);
  EXPECT_EQ(preview.sequences[2].left_out, "no token has a label");
  EXPECT_THROW(
      preview_dataset(config_, {.path = path.string()}, /*is_validation=*/false, model_, 4),
      DataError);
}

/// ChatML with the turns closed by `end`, inside generation marks or not.
TextModel model_ending_in(const std::string& end) {
  return test::toy_model(
      "{%- for m in messages -%}{%- if m.role == 'assistant' -%}{% generation %}{{ m.content }}" +
      end + "{%- else -%}{{ m.content }}{%- endif -%}{%- endfor -%}");
}

TEST_F(Datasets, AModelThatWouldNeverStopIsRefused) {
  model_ = model_ending_in("{% endgeneration %}");  // no end at all
  const DataError no_end = failure(chat("q", "first") + chat("q", "second"));
  EXPECT_NE(no_end.message().find("would not stop"), std::string::npos);
  EXPECT_NE(no_end.message().find("\nfirst"), std::string::npos) << no_end.message();
  EXPECT_TRUE(no_end.where().ends_with("train.jsonl:1")) << no_end.where();
  EXPECT_NE(no_end.fix().find("`<|im_end|>`"), std::string::npos) << no_end.fix();
  model_ = model_ending_in("{% endgeneration %}<|im_end|>");  // outside what is trained on
  EXPECT_EQ(failure(chat("q", "first")).message(), failure(chat("q", "first")).message());
  model_ = model_ending_in("<|im_end|>{% endgeneration %}");
  EXPECT_EQ(load(chat("q", "a")).examples().size(), 1);
  model_ = model_ending_in("<|im_end|>{{ '\\n' }}{% endgeneration %}");
  EXPECT_EQ(load(chat("q", "a")).examples().size(), 1);
  model_ = model_ending_in("</s>{% endgeneration %}");  // special: trained on, with a warning
  model_.stop_ids = {test::kImEnd};
  EXPECT_EQ(load(chat("q", "a")).examples().size(), 1);
}

TEST_F(Datasets, EndsThatAreCutOffAreNotTrained) {
  config_.model.max_seq_len = 40;
  config_.data.too_long = TooLong::kTruncate;
  const std::string long_chat = chat("q", std::string(60, 'x'));
  EXPECT_NE(failure(long_chat).fix().find("raise model.max_seq_len"), std::string::npos);
  EXPECT_EQ(load(long_chat + chat("q", "a")).examples().size(), 2) << "one is trained";
  EXPECT_EQ(load(R"({"text": ")" + std::string(60, 'x') + "\"}").examples().size(), 1)
      << "a text may end anywhere";
}

TEST_F(Datasets, ADoubledBosIsRefused) {
  model_ = test::toy_model(test::kChatMl, /*adds_bos=*/true);
  EXPECT_EQ(load(R"({"text": "ab"})").examples().size(), 1);
  const DataError in_text = failure(R"({"text": "<s>ab"})");
  EXPECT_EQ(in_text.message(), "the example begins with <s> twice: <s> <s> a b </s> …");
  EXPECT_NE(in_text.fix().find("the tokenizer adds one"), std::string::npos);
  model_ = test::toy_model(std::string("{{ bos_token }}{{ bos_token }}") + test::kChatMl);
  EXPECT_NE(failure(chat("q", "a")).fix().find("chat template"), std::string::npos);
}

TEST_F(Datasets, EmptyReasoningIsLeftUntrainedWhenAsked) {
  model_ = test::toy_model(
      "{%- for m in messages -%}{{ '<|im_start|>' + m.role + '\\n' }}"
      "{%- if m.role == 'assistant' -%}{{ '<think>\\n\\n</think>\\n\\n' }}{%- endif -%}"
      "{{ m.content + '<|im_end|>' }}{%- endfor -%}"
      "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}");
  const std::string content = chat("q", "abc");
  const auto labels = [&] { return load(content).stats().num_label_tokens; };
  EXPECT_EQ(labels(), 19 + 4) << "<think></think> with four newlines, abc, <|im_end|>";
  config_.data.empty_thinking = config::EmptyThinking::kDrop;
  EXPECT_EQ(labels(), 4);
}

TEST_F(Datasets, EmptyReasoningIsWarnedOf) {
  using Pair = std::pair<const char*, const char*>;
  for (const auto& [opener, closer] :
       {Pair{"<think>", "</think>"}, Pair{"[THINK]", "[/THINK]"},
        Pair{"<|START_THINKING|>", "<|END_THINKING|>"}, Pair{"<seed:think>", "</seed:think>"}}) {
    const std::string empty = std::string(opener) + "\n\n" + closer + "\n\nb";
    const std::string said =
        warnings(chat("q", "a") + chat("q", empty) + chat("q", std::string(opener) + "x" + closer));
    EXPECT_NE(said.find("answers begin with empty reasoning"), std::string::npos) << said;
    EXPECT_NE(said.find("train.jsonl:2;"), std::string::npos) << said;
  }
  EXPECT_EQ(warnings(chat("q", "a")), "");
}

TEST_F(Datasets, EndsThatAreNotTrainedAreWarnedOf) {
  config_.model.max_seq_len = 40;
  config_.data.too_long = TooLong::kTruncate;
  const std::string cut = warnings(chat("q", std::string(60, 'x')) + chat("q", "a"));
  EXPECT_NE(cut.find("no end-of-turn token is trained on in 1 of 2 examples"), std::string::npos)
      << cut;
  config_ = {};
  model_ = model_ending_in("</s>{% endgeneration %}");
  model_.stop_ids = {test::kImEnd};
  const std::string other = warnings(chat("q", "a"));
  EXPECT_NE(other.find("`</s>`, but generation with this model stops only at"), std::string::npos)
      << other;
}

/// Some templates end an answer with the token that begins the next turn.
TEST_F(Datasets, OnlySpecialTokensAreAdvisedAsEnds) {
  model_ = test::toy_model(
      "{%- for m in messages -%}{%- if m.role == 'assistant' -%}{% generation %}{{ m.content }}"
      "{% if not loop.last %}</s>{% endif %}{% endgeneration %}{%- else -%}{{ m.content }}"
      "{%- endif -%}{%- endfor -%}");
  model_.stop_ids = {test::kImEnd};
  const std::string two_turns =
      R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "Hello"}, )"
      R"({"role": "user", "content": "r"}, {"role": "assistant", "content": "Fine"}]})"
      "\n";
  const std::string said = warnings(two_turns);
  EXPECT_NE(said.find("the last answer of a conversation has no end token, the answers before it "
                      "end in `</s>`"),
            std::string::npos)
      << said;
  EXPECT_EQ(said.find("`e`"), std::string::npos) << said;
}

/// A token inside the example decides, not the first example's last one.
TEST_F(Datasets, AnEndAfterTheFirstExampleIsNamed) {
  config_.model.max_seq_len = 40;
  config_.data.too_long = TooLong::kTruncate;
  model_ = model_ending_in("</s>{% endgeneration %}");
  model_.stop_ids = {test::kImEnd};
  const std::string said = warnings(chat("q", std::string(60, 'x')) + chat("q", "a"));
  EXPECT_NE(said.find("answers end in `</s>`, but"), std::string::npos) << said;
}

std::string record(const char* answer, const char* beside = "") {
  return std::string(R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", )") +
         answer + "}]" + beside + "}\n";
}

TEST_F(Datasets, WhatTheTemplateLeavesOutIsWarnedOf) {
  const std::string call =
      R"("content": "", "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1}}}])";
  const std::string calls = warnings(record(R"("content": "a")") + record(call.c_str()));
  EXPECT_NE(calls.find("answers call tools, but the chat template omits the calls (1)"),
            std::string::npos)
      << calls;
  EXPECT_NE(calls.find("train.jsonl:2;"), std::string::npos) << calls;
  EXPECT_NE(calls.find("the built-in templates do not"), std::string::npos) << calls;
  const std::string thoughts = warnings(record(R"("content": "a", "reasoning_content": "r")"));
  EXPECT_NE(thoughts.find("answers have reasoning"), std::string::npos) << thoughts;
  const std::string earlier =
      warnings(R"({"messages": [{"role": "user", "content": "q"}, )"
               R"({"role": "assistant", "content": "a", "reasoning_content": "r"}, )"
               R"({"role": "user", "content": "q"}, {"role": "assistant", "content": "b"}]})"
               "\n");
  EXPECT_NE(earlier.find("answers before the last one of a conversation have reasoning"),
            std::string::npos)
      << earlier;
  EXPECT_NE(earlier.find("data.thinking: split"), std::string::npos) << earlier;
  model_ = test::toy_model(test::kThinkingChatMl);
  const std::string in_content = warnings(
      R"({"messages": [{"role": "user", "content": "q"}, )"
      R"({"role": "assistant", "content": "<think>\nwhy\n</think>\n\na"}, )"
      R"({"role": "user", "content": "q"}, {"role": "assistant", "content": "because</think>b"}]})"
      "\n");
  EXPECT_NE(in_content.find("answers before the last one of a conversation have reasoning"),
            std::string::npos)
      << in_content;
  const std::string twice =
      warnings(R"({"messages": [{"role": "user", "content": "q"}, )"
               R"({"role": "assistant", "content": "why</think>a</think>b"}, )"
               R"({"role": "user", "content": "q"}, {"role": "assistant", "content": "c"}]})"
               "\n");
  EXPECT_NE(twice.find("answers have text outside their reasoning that the chat template omits"),
            std::string::npos)
      << twice;
  model_ = test::toy_model(
      "{% for m in messages if m.role != 'developer' %}{{ m.content }}"
      "{% if m.role == 'assistant' %}<|im_end|>{% endif %}{% endfor %}");
  const std::string role = warnings(
      R"({"messages": [{"role": "developer", "content": "S"}, {"role": "user", "content": "q"}, )"
      R"({"role": "assistant", "content": "a"}]})"
      "\n");
  EXPECT_NE(role.find("messages have text that the chat template omits"), std::string::npos)
      << role;
  model_ = test::toy_model(test::kChatMl);
  const std::string tools =
      warnings(record(R"("content": "a")", R"(, "tools": [{"function": {"name": "add"}}])"));
  EXPECT_NE(tools.find("conversations have tools"), std::string::npos) << tools;

  model_ = test::toy_model(
      "{{ tools | tojson if tools }}{% for m in messages %}{% if m.role == 'assistant' %}"
      "{% generation %}{{ m.reasoning_content }}{{ m.content }}"
      "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}"
      "{% endfor %}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}");
  EXPECT_EQ(warnings(record((call + R"(, "reasoning_content": "r")").c_str(),
                            R"(, "tools": [{"function": {"name": "add"}}])")),
            "");
}

TEST_F(Datasets, MisspeltRolesAreWarnedOf) {
  const auto turns = [](const std::string& user, const std::string& assistant) {
    return Json({{"messages",
                  {{{"role", user}, {"content", "q"}},
                   {{"role", "assistant"}, {"content", "a"}},
                   {{"role", assistant}, {"content", "b"}}}}})
               .dump() +
           "\n";
  };
  EXPECT_EQ(warnings(turns("user", "assistant") + turns("developer", "tool")).find("role"),
            std::string::npos);
  const std::string found =
      warnings(turns("usr", "asistant") + turns("user", "asistant") + turns("usr", "assistant"));
  EXPECT_NE(found.find("records have the role `usr`"), std::string::npos) << found;
  EXPECT_NE(found.find("records have the role `asistant`"), std::string::npos) << found;
  EXPECT_NE(found.find("did you mean `assistant`?"), std::string::npos) << found;
  EXPECT_EQ(split(found, '\n').size(), 3U) << "once a role\n" << found;
  model_ = test::toy_model("{# 'narrator' tells #}" + std::string(test::kChatMl));
  EXPECT_EQ(warnings(turns("narrator", "assistant")), "") << "the template's own";
}

TEST_F(Datasets, ReportsThatAMisspeltRoleIsNotTrained) {
  const DataError error = failure(
      R"({"messages": [{"role": "user", "content": "q"}, {"role": "asistant", "content": "a"}]})");
  EXPECT_NE(error.fix().find("did you mean `assistant`?"), std::string::npos) << error.fix();
}

TEST_F(Datasets, ATrialTakesTheFirstRecordsAsTrainingDoes) {
  const auto trial = [&](const std::string& content) {
    return try_dataset(config_, {.path = write(content).string()}, false, model_, 10);
  };
  const DatasetTrial begun = trial(text_records(500));
  EXPECT_EQ(begun.stats.num_records, 10);
  EXPECT_FALSE(begun.is_whole);
  EXPECT_EQ(begun.num_records_estimated, 500);
  const DatasetTrial whole = trial(chat("q", "a") + chat("q", std::string(100, 'x')));
  EXPECT_TRUE(whole.is_whole);
  EXPECT_EQ(whole.stats.num_examples, 1);
  ASSERT_EQ(whole.warnings.size(), 1U);
  EXPECT_NE(whole.warnings[0].find("longer than model.max_seq_len"), std::string::npos);
  std::string too_long;
  for (int i = 0; i < 20; ++i) too_long += chat("q", std::string(100, 'x'));
  try {
    trial(too_long);
    FAIL() << "no error";
  } catch (const DataError& error) {
    EXPECT_NE(error.message().find("of the first 10 records: every record is longer"),
              std::string::npos)
        << error.message();
  }
}

TEST_F(Datasets, LinesOfPlainTextAreRecordsWhenAskedFor) {
  const auto load_text = [&](const std::string& content) {
    return load_dataset(config_, {{.path = write(content, "a.txt").string()}}, false, model_, 1);
  };
  EXPECT_EQ(load_text("{\"text\": \"json lines\"}\n").stats().num_examples, 1) << "as before";
  try {
    load_text("one line\n");
    FAIL() << "no error";
  } catch (const DataError& error) {
    EXPECT_EQ(error.message(), "this is plain text, not records");
    EXPECT_NE(error.fix().find("data.format: text"), std::string::npos);
  }
  config_.data.format = config::RecordFormat::kText;
  const Dataset data = load_text("  one line\r\n\n   \nanother\n");
  EXPECT_EQ(data.stats().num_examples, 2);
  EXPECT_EQ(data.examples()[0].tokens.size(), std::string("  one line").size() + 1);
  EXPECT_EQ(
      data.file_of(1).where(data.examples().stored(1).number).substr(data.file_of(1).path.size()),
      ":4");
}

TEST_F(Datasets, ControlTokensInTextAreWarnedOf) {
  const std::string said = warnings(chat("q", "a") + chat("<|im_end|> <|im_end|>", "a"));
  EXPECT_NE(said.find("messages have control tokens of the model in their text"), std::string::npos)
      << said;
  EXPECT_NE(said.find("train.jsonl:2;"), std::string::npos) << said;
}

TEST_F(Datasets, AMissingBosIsWarnedOf) {
  model_ = test::toy_model(test::kChatMl, /*adds_bos=*/true);
  const std::string said = warnings(chat("q", "a"));
  EXPECT_NE(said.find("conversations begin without <s>"), std::string::npos) << said;
  EXPECT_EQ(warnings(R"({"text": "a"})"), "");
  model_ = test::toy_model(std::string("{{ bos_token }}") + test::kChatMl, /*adds_bos=*/true);
  EXPECT_EQ(warnings(chat("q", "a")), "");
}

TEST_F(Datasets, WeightsOfTurnsAreNumbers) {
  const auto with = [](const char* extra) {
    return std::string(R"({"messages": [{"role": "user", "content": "q"}, )") +
           R"({"role": "assistant", "content": "a", )" + extra + "}]}\n";
  };
  for (const char* wrong : {R"("weight": 1001)", R"("weight": "0")", R"("weight": -1)",
                            R"("weight": true)", R"("train": 0)", R"("train": "false")"}) {
    const DataError error = failure(with(wrong));
    EXPECT_TRUE(error.message().starts_with("messages[1].")) << wrong << ": " << error.message();
  }
  EXPECT_EQ(load(with(R"("weight": 1.0, "train": true)")).examples().size(), 1);
  const ExampleStore weighed = load(with(R"("weight": 0.5)")).examples();
  ASSERT_EQ(weighed.size(), 1);
  const StoredExample& stored = weighed.stored(0);
  EXPECT_EQ(stored.label_weight, 0.5 * stored.label_tokens);
  EXPECT_EQ(weighed.values_of(0).of(LabelColumn::kWeight),
            std::vector<float>(stored.label_tokens, 0.5F));
}

TEST_F(Datasets, SeveralAreMixed) {
  const auto a = write(text_records(10), "a.jsonl");
  const auto b = write(R"([{"q": "question", "a": 7}, {"q": "other", "a": 8}])", "b.json");
  const auto c = write(chat("q", "a") + chat("r", "b"), "c.jsonl");
  const std::vector<config::DataSource> sources = {
      {.path = a.string(), .weight = 0.5, .max_samples = 4},
      {.path = b.string(), .weight = 2, .fields = {{"prompt", "q"}, {"completion", "a"}}},
      {.path = c.string()}};
  const Dataset data = load_dataset(config_, sources, false, model_, 1);
  ASSERT_EQ(data.parts().size(), 3U);
  EXPECT_EQ(data.examples().size(), 4 + 2 + 2);
  EXPECT_EQ(data.stats().num_records, 8);
  EXPECT_EQ(data.parts()[1].format, RecordFormat::kPromptCompletion);
  EXPECT_EQ(data.parts()[1].begin, 4);
  EXPECT_EQ(data.parts()[1].end, 6);
  EXPECT_EQ(data.file_of(5).where(data.examples().stored(5).number), b.string() + ":1");
  EXPECT_EQ(data.file_of(7).where(data.examples().stored(7).number), c.string() + ":2");
  const auto [train, val] = split_dataset(data, 3, 1);
  EXPECT_EQ(train.examples().size(), 5);
  EXPECT_EQ(train.parts()[2].end, 5);
  EXPECT_EQ(val.parts()[2].end, 3);
  for (int64_t i = 0; i < val.examples().size(); ++i) EXPECT_FALSE(val.file_of(i).path.empty());
  std::vector<config::DataSource> heavier = sources;
  heavier[0].weight = 0.75;
  EXPECT_NE(load_dataset(config_, heavier, false, model_, 1).fingerprint(), data.fingerprint());
}

TEST_F(Datasets, CachedDataGiveTheSameRemarks) {
  const std::string content = chat("q", "a") + chat("q", std::string(100, 'x'));
  const std::string first = warnings(content);
  EXPECT_NE(first.find("1 example left out, because longer than"), std::string::npos) << first;
  const auto text_of = [](const std::string& line) { return line.substr(line.find("data: ")); };
  EXPECT_EQ(text_of(warnings(content)), text_of(first));
}

TEST_F(Datasets, SettingsThatChangeTokensAreNotMixedUp) {
  const std::string content = chat("question", "a") + chat("q", std::string(100, 'x'));
  const auto labels = [&] { return load(content).stats().num_label_tokens; };
  const int64_t before = labels();
  config_.data.loss_on = config::LossOnChoice::kAll;
  const int64_t all = labels();
  EXPECT_NE(all, before);
  config_.model.max_seq_len = 512;
  EXPECT_NE(labels(), all);
  config_.model.max_seq_len = 64;
  EXPECT_EQ(labels(), all);
}

TEST_F(Datasets, TellWhereTheTemplateIsUnused) {
  const std::string raw = R"({"prompt": "a", "completion": "b"})",
                    chat = R"({"instruction": "a", "output": "b"})";
  const auto is_unused = [&](const std::vector<std::string>& files) {
    config_.data.train.clear();
    for (const std::string& content : files)
      config_.data.train.push_back(
          {.path = write(content, fmt::format("{}.jsonl", config_.data.train.size())).string()});
    return leaves_template_unused(config_, model_);
  };
  ASSERT_NE(model_.chat_template, nullptr);
  EXPECT_TRUE(is_unused({raw}));
  EXPECT_TRUE(is_unused({R"({"text": "a"})", raw}));
  EXPECT_FALSE(is_unused({chat}));
  EXPECT_FALSE(is_unused({raw, chat}));
  const Json turn = {{{"role", "user"}, {"content", "a"}}};
  EXPECT_FALSE(is_unused({Json({{"prompt", turn}, {"completion", turn}}).dump()}));
  model_.chat_template = nullptr;
  EXPECT_FALSE(is_unused({raw}));
}

}  // namespace
}  // namespace sftrun::data
