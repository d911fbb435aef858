#include "model_source.h"

#include <gtest/gtest.h>

#include "data_source_finder.h"
#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace sftrun::app {
namespace {

namespace fs = std::filesystem;

class ModelFiles : public ::testing::Test {
 protected:
  ModelFiles() { log::configure({.console = log::Level::kOff}); }

  fs::path write(const std::string& name) {
    const fs::path path = directory_ / name;
    fs::create_directories(path.parent_path());
    write_file_atomically(path, "{}");
    return path;
  }
  ModelAsked asked(const std::string& name) const {
    return {.name = (directory_ / name).string(), .where = "--model", .quiet = true};
  }
  fs::path found(const std::string& name) const { return find_model(asked(name)).path; }

  test::TemporaryDirectory directory_;
};

TEST_F(ModelFiles, ADirectoryOrAFileIsTakenAsItIs) {
  write("model/config.json");
  write("model.gguf");
  EXPECT_EQ(found("model"), directory_ / "model");
  EXPECT_EQ(found("model.gguf"), directory_ / "model.gguf");
  EXPECT_EQ(find_model(asked("model")).revision, "");
}

TEST_F(ModelFiles, OfARunsDirectoryItsModel) {
  write("run/model/config.json");
  EXPECT_EQ(found("run"), directory_ / "run" / "model");
  write("trained/adapter/adapter_config.json");
  test::expect_error([&] { found("trained"); }, {"run directory with an adapter and no model",
                                                 "--adapter", "trained/adapter"});
}

TEST_F(ModelFiles, OfADirectoryItsOneGgufFile) {
  write("one/model-Q4.gguf");
  write("one/mmproj-model.gguf");  // of images
  EXPECT_EQ(found("one"), directory_ / "one" / "model-Q4.gguf");
  write("two/a.gguf");
  write("two/B.GGUF");
  test::expect_error([&] { found("two"); }, {"holds 2 .gguf files: B.GGUF, a.gguf", "name one"});
  write("split/m-00001-of-00002.gguf");
  write("split/m-00002-of-00002.gguf");
  test::expect_error([&] { found("split"); }, {"split into several GGUF files", "--merge"});
}

TEST_F(ModelFiles, ABrokenLinkIsNoAbsentFile) {
  write("models/model-Q4.gguf");
  fs::create_symlink("../blobs/ab12", directory_ / "models" / "model-Q8.gguf");
  test::expect_error([&] { found("models"); }, {"a broken symbolic link", "model-Q8.gguf"});
  write("run/model/config.json");
  fs::create_symlink("../blobs/ab12", directory_ / "run" / "config.json");
  test::expect_error([&] { found("run"); }, {"a broken symbolic link", "run/config.json"});
  write("adapter/config.json");
  fs::create_symlink("../blobs/ab12", directory_ / "adapter" / "adapter_config.json");
  test::expect_error([&] { find_adapter(asked("adapter")); },
                     {"a broken symbolic link", "adapter_config.json"});
}

TEST_F(ModelFiles, AMissingPathIsAnsweredWithANameLikeIt) {
  write("models/llama/config.json");
  test::expect_error([&] { found("models/lama"); }, {"no such model", "did you mean", "llama"});
  const auto near = [&](const char* name, PathKind kind = PathKind::kModel) {
    const std::string path = near_path(directory_ / name, kind);
    return path.empty() ? path : fs::relative(path, directory_.path()).string();
  };
  EXPECT_EQ(near("models/lama"), "models/llama");
  EXPECT_EQ(near("models/something else"), "");
  EXPECT_EQ(near("absent/llama"), "");
  const auto fix = [&](const char* name) {
    return fix_for_path((directory_ / name).string(), "or not", PathKind::kModel);
  };
  EXPECT_EQ(fix("models/lama"),
            "did you mean " + (directory_ / "models" / "llama").string() + "? or not");
  EXPECT_EQ(fix("absent"), "check the path; or not");
}

TEST_F(ModelFiles, OnlyWhatCanBeOpenedIsSuggested) {
  const auto near = [&](const char* name, PathKind kind) {
    const std::string path = near_path(directory_ / name, kind);
    return path.empty() ? path : fs::relative(path, directory_.path()).string();
  };
  write("models.txt");
  write("modals/notes.txt");
  EXPECT_EQ(near("modles", PathKind::kModel), "");
  EXPECT_EQ(near("modles", PathKind::kData), "modals");
  write("modell.gguf");
  EXPECT_EQ(near("model.gguf", PathKind::kModel), "modell.gguf");
  write("run-1/adapter/adapter_config.json");
  write("run-22/model/config.json");
  EXPECT_EQ(near("run-2", PathKind::kAdapter), "run-1");
  EXPECT_EQ(near("run-2", PathKind::kModel), "run-22");
}

TEST_F(ModelFiles, AnAdapterIsFoundByItsRun) {
  write("run/adapter/adapter_config.json");
  write("model/config.json");
  write("whole/model/config.json");
  EXPECT_EQ(find_adapter(asked("run/adapter")), directory_ / "run" / "adapter");
  EXPECT_EQ(find_adapter(asked("run")), directory_ / "run" / "adapter");
  test::expect_error([&] { find_adapter(asked("model")); },
                     {"is a model, not an adapter", "--model"});
  test::expect_error([&] { find_adapter(asked("whole")); },
                     {"run directory with a model and no adapter", "--model"});
  ModelAsked by_setting = asked("whole");
  by_setting.names_model = "model.name=";
  test::expect_error([&] { find_adapter(by_setting); }, {"name the model: model.name=/"});
  write("empty/notes.txt");
  test::expect_error([&] { find_adapter(asked("empty")); },
                     {"is not an adapter", "with adapter_config.json", "adapter/ of a run"});
  write("runs/b/adapter/adapter_config.json");
  write("runs/a/adapter/adapter_config.json");
  test::expect_error([&] { find_adapter(asked("runs")); },
                     {"is not an adapter", "runs/a/adapter, ", "runs/b/adapter"});
  const std::string absent = (directory_ / "absent").string();
  EXPECT_EQ(find_adapter({.name = absent, .where = "--adapter"}), absent);
}

TEST(FoundModel, HasItsNameOnTheHub) {
  const ModelSource on_hub =
      found_model({.name = "owner/name", .revision = "v1", .where = "model.name"}, "cache/path");
  EXPECT_EQ(on_hub.path, "cache/path");
  EXPECT_EQ(on_hub.name, "owner/name");
  EXPECT_EQ(on_hub.revision, "v1");
  const ModelSource file = found_model({.name = "./a/b/c", .where = "model.name"}, "a/b/c");
  EXPECT_EQ(file.name, "./a/b/c");
  EXPECT_EQ(file.revision, "");
}

TEST(UnknownPath, IsToldBesideTheHubsAnswer) {
  const DataError answer("no such model on the hub", "huggingface.co", "log in");
  test::expect_error<Error>(
      [&] { rethrow_as_unknown_path(answer, "owner/name", "model.name", PathKind::kModel); },
      {"no file or directory owner/name; no such model on the hub", "model.name; huggingface.co",
       "if it is a name on the hub: log in"});
  const std::string text = test::error_of<Error>(
      [&] { rethrow_as_unknown_path(answer, "hf://owner/name", "model.name", PathKind::kModel); });
  EXPECT_EQ(text.find("no file or directory"), std::string::npos) << text;
}

TEST(DataOnTheHub, AreNamesWithoutAFilesExtension) {
  EXPECT_TRUE(may_be_on_hub("hf://datasets/owner/name"));
  EXPECT_TRUE(may_be_on_hub("owner/name"));
  EXPECT_FALSE(may_be_on_hub("data/train.jsonl"));
  EXPECT_FALSE(may_be_on_hub("data/*.parquet"));
  const test::TemporaryDirectory here;
  EXPECT_FALSE(may_be_on_hub(here.path().string()));
}

}  // namespace
}  // namespace sftrun::app
