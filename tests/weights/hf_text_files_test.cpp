#include "sftrun/weights/hf_text_files.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "sftrun/core/file.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace sftrun::weights {
namespace {

namespace fs = std::filesystem;

TEST(HfTextFiles, ABrokenLinkIsNoAbsentFile) {
  const test::TemporaryDirectory from, to;
  const auto expect_named = [&](const std::string& name, const auto& read) {
    fs::create_symlink("../blobs/ab12", from / name);
    test::expect_error(read, {"a broken symbolic link to ../blobs/ab12", (from / name).string()});
    fs::remove(from / name);
    read();
  };
  expect_named("generation_config.json", [&] { generation_eos_ids(from.path()); });
  expect_named("generation_config.json", [&] { copy_generation_config(from.path(), to.path()); });
  expect_named("sftrun_chat.json", [&] { read_template_variables(from.path()); });
  for (const char* name :
       {"tokenizer.json", "special_tokens_map.json", "chat_template.jinja", "chat_template.json",
        "preprocessor_config.json", "processor_config.json"})
    expect_named(name, [&] { copy_text_files(from.path(), to.path()); });
  expect_named("config.json", [&] { add_eos(from.path(), 3); });
}

TEST(TemplateVariables, DamageIsNamedByItsKey) {
  const test::TemporaryDirectory directory;
  const auto expect_damage = [&](const std::string& text, const std::string& reason) {
    write_file_atomically(directory / "sftrun_chat.json", text);
    EXPECT_EQ(test::error_of([&] { read_template_variables(directory.path()); }),
              "error: the file is damaged: " + reason + "\n  at   " +
                  (directory / "sftrun_chat.json").string() +
                  "\n  fix: copy or download the adapter or model again");
  };
  const std::string key = "`chat_template_kwargs`";
  expect_damage("[]", "it is not a JSON object");
  expect_damage("{}", key + " is missing");
  expect_damage(R"({"chat_template_kwargs": 3})", key + " is not an object: 3");
  expect_damage(R"({"chat_template_kwargs": NaN})", key + " is not an object: NaN");
  for (const char* number : {"1e400", "-1e400", "NaN", "Infinity"}) {
    expect_damage(fmt::format(R"({{"chat_template_kwargs": {{"a": [1, {}]}}}})", number),
                  "`chat_template_kwargs.a[1]` is not a finite number");
  }
  write_file_atomically(directory / "sftrun_chat.json", "{\n\"chat_template_kwargs\": {");
  test::expect_error([&] { read_template_variables(directory.path()); },
                     {"not valid JSON", "sftrun_chat.json:2:", "the file is damaged"});
  write_file_atomically(directory / "sftrun_chat.json",
                        R"({"chat_template_kwargs": {"b": 1e300, "a": false}})");
  EXPECT_EQ(read_template_variables(directory.path()).dump(), R"({"b":1e+300,"a":false})");
}

}  // namespace
}  // namespace sftrun::weights
