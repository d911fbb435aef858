#include "media_stamps.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "data/toy_vision_model.h"
#include "sftrun/core/error.h"
#include "sftrun/core/exact_json.h"
#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "sftrun/core/strings.h"
#include "sftrun/data/dataset.h"
#include "sftrun/data/features.h"
#include "support/temporary_directory.h"

namespace sftrun::data {
namespace {

namespace fs = std::filesystem;

std::string fixture(const char* name) {
  return read_text_file(fs::path(SFTRUN_TEST_DATA) / "images" / name);
}
constexpr const char *kSmallImage = "resize-37x29.png", *kLargeImage = "resize-129x97.png";

void set_time_of(const fs::path& file, int64_t seconds) {
  fs::last_write_time(file, fs::file_time_type(std::chrono::seconds(seconds)));
}

class MediaFiles : public ::testing::Test {
 protected:
  MediaFiles() { log::configure({.console = log::Level::kOff}); }
  std::string write(const std::string& name, const std::string& content) {
    write_file_atomically(dir_ / name, content);
    return (dir_ / name).string();
  }
  void note(MediaStamps& stamps, const std::string& name, bool is_image = true) const {
    const std::string path = (dir_ / name).string();
    if (!stamps.note(path, is_image) || !fs::exists(path)) return;
    stamps.note_contents(name, InputFile(path));
  }
  test::TemporaryDirectory dir_;
};

TEST_F(MediaFiles, ThatChangeAreFound) {
  write("a", "1234");
  write("b", "1234");
  MediaStamps stamps;
  EXPECT_EQ(stamps.packed(), "");
  EXPECT_EQ(find_media_change(""), std::nullopt);
  for (const char* name : {"a", "b", "missing", "a"}) note(stamps, name);
  const std::string packed = stamps.packed();
  EXPECT_EQ(find_media_change(packed), std::nullopt);
  const std::string a = (dir_ / "a").string();
  write("a", "12345");
  EXPECT_EQ(find_media_change(packed),
            "1 of 3 images has changed since they were tokenized (first: " + a + ")");
  fs::remove(a);
  write("missing", "");
  EXPECT_EQ(find_media_change(packed),
            "2 of 3 images have changed since they were tokenized (first: " + a + ")");
  fs::create_directory(a);
  EXPECT_NE(find_media_change(packed), std::nullopt);
  EXPECT_THROW(find_media_change(packed.substr(0, packed.size() - 1)), DataError);
  EXPECT_THROW(find_media_change("short"), DataError);
}

TEST_F(MediaFiles, OfTheSameSizeAreToldByTheirTime) {
  const std::string a = write("a", "1234");
  set_time_of(a, 1000);
  MediaStamps stamps;
  note(stamps, "a", /*is_image=*/false);
  write("a", "5678");
  EXPECT_EQ(find_media_change(stamps.packed()),
            "1 of 1 files of features has changed since they were tokenized (first: " + a + ")");
  set_time_of(a, 1000);
  EXPECT_EQ(find_media_change(stamps.packed()), std::nullopt);
}

TEST_F(MediaFiles, BeyondANumberASampleIsLookedAt) {
  MediaStamps stamps;
  for (int i = 0; i < 40; ++i) {
    write(fmt::format("{:02}", i), "1");
    note(stamps, fmt::format("{:02}", i));
  }
  const std::string packed = stamps.packed();
  write("39", "12");
  EXPECT_EQ(find_media_change(packed, 10), std::nullopt);
  EXPECT_NE(find_media_change(packed, 40), std::nullopt);
  for (int i = 0; i < 40; ++i) write(fmt::format("{:02}", i), "12");
  EXPECT_TRUE(find_media_change(packed, 10).value_or("").starts_with("10 of 10 images have"));
  EXPECT_TRUE(find_media_change(packed).value_or("").starts_with("40 of 40 images have"));
}

TEST_F(MediaFiles, HaveAFingerprintOfTheirContents) {
  const auto fingerprint = [&] {
    MediaStamps stamps;
    for (const char* name : {"a", "b", "missing"}) note(stamps, name);
    return stamps.fingerprint();
  };
  EXPECT_EQ(fingerprint(), "");
  const std::string middle(100'000, 'x');
  write("a", middle);
  write("b", "1");
  const std::string before = fingerprint();
  set_time_of(dir_ / "a", 1000);
  EXPECT_EQ(fingerprint(), before);
  std::string changed = middle;
  for (const size_t at : {size_t{0}, middle.size() / 2, middle.size() - 1}) {
    changed = middle;
    changed[at] = 'y';
    write("a", changed);
    EXPECT_NE(fingerprint(), before) << at;
  }
  write("a", "1");
  write("b", middle);
  EXPECT_NE(fingerprint(), before) << "exchanged";
}

/// A data set whose records name images.
class DataWithImages : public MediaFiles {
 protected:
  DataWithImages() {
    config_.model.max_seq_len = 512;
    config_.data.cache_dir = (dir_ / "cache").string();
    write("a.png", fixture(kSmallImage));
    write("b.png", fixture(kSmallImage));
    std::string records;
    for (const char* name : {"a.png", "b.png"})
      records += Json({{"images", Json::array({name})},
                       {"messages",
                        {{{"role", "user"}, {"content", "<image>q"}},
                         {{"role", "assistant"}, {"content", "a"}}}}})
                     .dump() +
                 "\n";
    write("train.jsonl", records);
  }
  Dataset load() {
    fs::remove(dir_ / "log");
    log::configure({.console = log::Level::kOff, .file = dir_ / "log"});
    Dataset data =
        load_dataset(config_, {{.path = (dir_ / "train.jsonl").string()}}, false, model_, 2);
    log::flush();
    said_ = read_text_file(dir_ / "log");
    log::configure({.console = log::Level::kOff});
    return data;
  }
  bool said(const std::string& text) const { return said_.find(text) != std::string::npos; }

  config::RunConfig config_;
  TextModel model_ = test::toy_vision_model();
  std::string said_;
};

TEST_F(DataWithImages, AreTokenizedAgainWhereAnImageHasAnotherSize) {
  const Dataset before = load();
  EXPECT_EQ(before.examples().stored_media(1)[0].width, 37U);
  EXPECT_FALSE(before.parts()[0].media_fingerprint.empty());
  EXPECT_EQ(load().fingerprint(), before.fingerprint());
  EXPECT_TRUE(said("is tokenized already"));
  write("b.png", fixture(kLargeImage));
  const Dataset after = load();
  EXPECT_TRUE(said("1 of 2 images has changed since they were tokenized (first: "));
  EXPECT_TRUE(said("b.png); tokenizing again"));
  EXPECT_EQ(after.examples().stored_media(1)[0].width, 129U);
  EXPECT_NE(after.fingerprint(), before.fingerprint());
  EXPECT_EQ(after.parts()[0].fingerprint, before.parts()[0].fingerprint);
  EXPECT_NE(after.parts()[0].media_fingerprint, before.parts()[0].media_fingerprint);
  load();
  EXPECT_TRUE(said("is tokenized already"));
}

TEST_F(DataWithImages, ThatWereCopiedHaveTheSameFingerprint) {
  const std::string before = load().fingerprint();
  set_time_of(dir_ / "a.png", 1000);
  EXPECT_EQ(load().fingerprint(), before);
  EXPECT_TRUE(said("tokenizing again"));
}

TEST_F(DataWithImages, ThatWereLeftOutReturnWithTheirImage) {
  config_.data.bad_records = config::BadRecords::kSkip;
  fs::remove(dir_ / "b.png");
  EXPECT_EQ(load().stats().num_bad, 1);
  EXPECT_EQ(load().stats().num_bad, 1);
  EXPECT_TRUE(said("is tokenized already"));
  write("b.png", fixture(kSmallImage));
  EXPECT_EQ(load().stats().num_bad, 0);
  EXPECT_TRUE(said("1 of 2 images has changed"));
}

TEST_F(DataWithImages, HavePathsForRunsInOtherFolders) {
  const fs::path before = fs::current_path();
  fs::current_path(dir_.path());
  const Dataset data = load_dataset(config_, {{.path = "train.jsonl"}}, false, model_, 1);
  fs::current_path(before);
  EXPECT_EQ(data.examples().media_of(0).at(0).media.path,
            (fs::canonical(dir_.path()) / "a.png").string());
}

TEST_F(DataWithImages, AreBelowTheirRoot) {
  fs::create_directories(dir_ / "images");
  for (const char* name : {"a.png", "b.png"}) fs::rename(dir_ / name, dir_ / "images" / name);
  const auto refused = [&] {
    try {
      load();
    } catch (const DataError& error) {
      return error;
    }
    ADD_FAILURE() << "no error";
    return DataError("");
  };
  const DataError missing = refused();
  EXPECT_NE(missing.fix().find("set data.image_root"), std::string::npos) << missing.fix();
  EXPECT_NE(missing.message().find("1 more record has the same problem: line 2"), std::string::npos)
      << missing.message();
  config_.data.image_root = (dir_ / "images").string();
  const Dataset data = load();
  EXPECT_EQ(data.examples().media_of(0).at(0).media.path,
            (fs::canonical(dir_.path()) / "images" / "a.png").string());
  load();
  EXPECT_TRUE(said("is tokenized already"));
  // Of one data set, over that of all.
  fs::create_directories(dir_ / "other");
  config_.data.image_root = (dir_ / "other").string();
  EXPECT_NE(refused().where().find("other/a.png"), std::string::npos);
  const config::DataSource source{.path = (dir_ / "train.jsonl").string(),
                                  .image_root = (dir_ / "images").string()};
  EXPECT_EQ(load_dataset(config_, {source}, false, model_, 1).stats().num_examples, 2);
}

// Most records are good: the folder is the right one.
TEST_F(DataWithImages, OfWhichFewAreMissingNeedNoRoot) {
  std::string records = read_text_file(dir_ / "train.jsonl");
  write("train.jsonl", records + records);
  fs::remove(dir_ / "b.png");
  try {
    load();
    ADD_FAILURE() << "no error";
  } catch (const DataError& error) {
    EXPECT_EQ(error.fix().find("image_root"), std::string::npos) << error.fix();
    EXPECT_NE(error.fix().find("relative to the record's file"), std::string::npos) << error.fix();
  }
}

TEST_F(DataWithImages, ThatAreTooLongAreSaid) {
  write("b.png", fixture(kLargeImage));
  config_.model.max_seq_len = 100;
  EXPECT_EQ(load().stats().num_media_left_out, 1);
  EXPECT_TRUE(said("1 example with images is left out as too long; the longest ("));
  std::string records = read_text_file(dir_ / "train.jsonl");
  const size_t second = records.find('\n') + 1;
  records = records.substr(second) + R"({"messages": [{"role": "user", "content": "q"}, )"
                                     R"({"role": "assistant", "content": "a"}]})"
                                     "\n";
  write("train.jsonl", records);
  EXPECT_EQ(load().stats().num_media_left_out, 1);
  EXPECT_TRUE(
      said("all 1 example with images is left out as too long, so that the run trains on "));
  EXPECT_TRUE(said("raise model.max_seq_len, or set data.max_image_pixels"));
}

TEST_F(DataWithImages, InColumnsOfOtherNamesAreMapped) {
  std::string records = read_text_file(dir_ / "train.jsonl");
  for (size_t at; (at = records.find("\"images\"")) != std::string::npos;)
    records.replace(at, 8, "\"picture\"");
  write("train.jsonl", records);
  EXPECT_EQ(load().examples().media_of(0).size(), 0U);
  EXPECT_TRUE(said("records have \"picture\", which seems to hold images and is not read (2)"));
  EXPECT_TRUE(said("data.fields: {images: picture} reads it"));
  config_.data.fields = {{"images", "picture"}};
  EXPECT_EQ(load().examples().media_of(0).size(), 1U);
  EXPECT_FALSE(said("picture"));
}

TEST_F(DataWithImages, WithoutTheirEndAreBadRecords) {
  write("b.png", fixture(kSmallImage).substr(0, fixture(kSmallImage).size() / 2));
  try {
    load();
    ADD_FAILURE() << "no error";
  } catch (const DataError& error) {
    EXPECT_NE(error.where().find("train.jsonl:2, "), std::string::npos) << error.where();
    EXPECT_NE(error.where().find("b.png"), std::string::npos) << error.where();
    EXPECT_NE(error.message().find("truncated"), std::string::npos) << error.message();
    EXPECT_NE(error.fix().find("data.bad_records: skip"), std::string::npos) << error.fix();
  }
  config_.data.bad_records = config::BadRecords::kSkip;
  EXPECT_EQ(load().stats().num_bad, 1);
}

TEST_F(DataWithImages, ThatAreFeaturesAreNotedToo) {
  const auto npy = [](char value) {
    std::string file("\x93NUMPY\x01\x00\x4A\x00", 10);
    std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
    header.resize(0x4A - 1, ' ');
    return file + header + '\n' + std::string(2 * 3 * 4, value);
  };
  model_ = test::toy_model();
  model_.features =
      feature_input_of({{.name = "world", .input_width = 3, .hidden = 4}}, *model_.tokenizer);
  ASSERT_NE(model_.features, nullptr);
  write("a.npy", npy('\0'));
  write("train.jsonl", R"({"features": "a.npy", "messages": [{"role": "user", "content": "q"}, )"
                       R"({"role": "assistant", "content": "a"}]})"
                       "\n");
  const std::string before = load().fingerprint();
  set_time_of(dir_ / "a.npy", 1000);
  EXPECT_EQ(load().fingerprint(), before);
  write("a.npy", npy('\1'));
  EXPECT_NE(load().fingerprint(), before);
  EXPECT_TRUE(said("1 of 1 files of features has changed"));
}

}  // namespace
}  // namespace sftrun::data
