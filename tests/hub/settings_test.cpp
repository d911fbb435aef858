#include "sftrun/hub/settings.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "sftrun/core/file.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace sftrun::hub {
namespace {

using test::expect_error;

Settings settings(std::map<std::string, std::string> variables) {
  variables.emplace("HOME", "/home/someone");
  return settings_from([variables](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(Settings, Defaults) {
  const Settings plain = settings({});
  EXPECT_EQ(plain.endpoint, "https://huggingface.co");
  EXPECT_EQ(plain.cache_dir, "/home/someone/.cache/huggingface/hub");
  EXPECT_TRUE(plain.token.empty());
  EXPECT_EQ(plain.token_source, "");
  EXPECT_EQ(plain.offline, "");
}

TEST(Settings, UsesTheCacheOfHuggingfaceHub) {
  EXPECT_EQ(settings({{"XDG_CACHE_HOME", "/c"}}).cache_dir, "/c/huggingface/hub");
  EXPECT_EQ(settings({{"XDG_CACHE_HOME", "/c"}, {"HF_HOME", "~/hf"}}).cache_dir,
            "/home/someone/hf/hub");
  EXPECT_EQ(settings({{"HF_HOME", "$DATA/${SUB}x/$NONE"}, {"DATA", "/d"}, {"SUB", "s"}}).cache_dir,
            "/d/sx/$NONE/hub");
  EXPECT_EQ(settings({{"HF_HOME", "/h"}, {"HUGGINGFACE_HUB_CACHE", "/old"}}).cache_dir, "/old");
  EXPECT_EQ(settings({{"HUGGINGFACE_HUB_CACHE", "/old"}, {"HF_HUB_CACHE", "/new"}}).cache_dir,
            "/new");
  EXPECT_EQ(settings({{"HF_HUB_CACHE", ""}, {"HF_HOME", "/h"}}).cache_dir, "/h/hub");
  EXPECT_TRUE(settings({{"HF_HUB_CACHE", "relative"}}).cache_dir.is_absolute());
}

TEST(Settings, TheTokenAndWhereItIsFrom) {
  const test::TemporaryDirectory folder;
  write_file_atomically(folder / "token", "  hf_file\n");
  write_file_atomically(folder / "other", "hf_other");
  const std::string home = folder.path().string();
  const auto token = [&](std::map<std::string, std::string> variables) {
    variables.emplace("HF_HOME", home);
    const Settings found = settings(std::move(variables));
    return found.token.reveal() + " from " + found.token_source;
  };
  EXPECT_EQ(token({}), "hf_file from " + home + "/token");
  EXPECT_EQ(token({{"HF_TOKEN", " hf_a\n"}}), "hf_a from HF_TOKEN");
  EXPECT_EQ(token({{"HF_TOKEN", ""}}), "hf_file from " + home + "/token");
  EXPECT_EQ(token({{"HUGGING_FACE_HUB_TOKEN", "hf_b"}}), "hf_b from HUGGING_FACE_HUB_TOKEN");
  EXPECT_EQ(token({{"HF_TOKEN", "hf_a"}, {"HUGGING_FACE_HUB_TOKEN", "hf_b"}}),
            "hf_a from HF_TOKEN");
  EXPECT_EQ(token({{"HF_TOKEN_PATH", home + "/other"}}), "hf_other from " + home + "/other");
  EXPECT_EQ(token({{"HF_TOKEN_PATH", home + "/none"}}), " from ");
  EXPECT_EQ(token({{"HF_TOKEN", "hf_a"}, {"HF_HUB_DISABLE_IMPLICIT_TOKEN", "1"}}), " from ");
}

TEST(Settings, RefusesATokenWithLineBreaksWithoutShowingIt) {
  for (const char* token : {"hf_a\r\nX-Evil: 1 x", "hf_a b", "hf_\x01", "hf_\xc3\xa4"}) {
    try {
      settings({{"HF_TOKEN", token}});
      ADD_FAILURE() << "not refused";
    } catch (const ConfigError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("HF_TOKEN"), std::string::npos);
      EXPECT_EQ(text.find("hf_a"), std::string::npos) << text;
      EXPECT_EQ(text.find("Evil"), std::string::npos) << text;
    }
  }
}

TEST(Settings, Offline) {
  for (const char* yes : {"1", "on", "YES", "True"}) {
    EXPECT_EQ(settings({{"HF_HUB_OFFLINE", yes}}).offline, "HF_HUB_OFFLINE");
    EXPECT_EQ(settings({{"TRANSFORMERS_OFFLINE", yes}}).offline, "TRANSFORMERS_OFFLINE");
  }
  for (const char* no : {"", "0", "off", "no", "false"})
    EXPECT_EQ(settings({{"HF_HUB_OFFLINE", no}}).offline, "") << no;
}

TEST(Settings, Endpoints) {
  EXPECT_EQ(settings({{"HF_ENDPOINT", "https://mirror.example/hf//"}}).endpoint,
            "https://mirror.example/hf");
  EXPECT_EQ(settings({{"HF_ENDPOINT", ""}}).endpoint, "https://huggingface.co");
  expect_error<ConfigError>([] { settings({{"HF_ENDPOINT", "mirror.example"}}); }, {"HF_ENDPOINT"});
  expect_error<ConfigError>([] { settings({{"HF_ENDPOINT", "file:///x"}}); }, {"HF_ENDPOINT"});
}

TEST(Settings, Seconds) {
  EXPECT_EQ(settings({{"HF_HUB_DOWNLOAD_TIMEOUT", "2.5"}}).stall_timeout_s, 2.5);
  EXPECT_EQ(settings({{"HF_HUB_ETAG_TIMEOUT", "3"}}).connect_timeout_s, 3);
  for (const char* wrong : {"soon", "-1", "1s", "1e99", "nan"}) {
    expect_error<ConfigError>(
        [&] {
          settings({{"HF_HUB_DOWNLOAD_TIMEOUT", wrong}});
        },
        {"HF_HUB_DOWNLOAD_TIMEOUT", wrong});
  }
}

}  // namespace
}  // namespace sftrun::hub
