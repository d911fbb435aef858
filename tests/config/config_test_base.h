#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "support/load_config.h"
#include "support/temporary_directory.h"

namespace sftrun::config {

/// Tests see no machine file and no variables but those they set.
class ConfigTest : public ::testing::Test {
 protected:
  ConfigTest() {
    set("XDG_CONFIG_HOME", directory_.path().string());
    unset("SFTRUN_MACHINE_CONFIG");
  }
  ~ConfigTest() override {
    for (const std::string& name : names_) ::unsetenv(name.c_str());
  }

  void set(const std::string& name, const std::string& value) {
    ::setenv(name.c_str(), value.c_str(), 1);
    names_.push_back(name);
  }
  static void unset(const std::string& name) { ::unsetenv(name.c_str()); }

  std::filesystem::path write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = directory_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }

  /// `text` below a model and data that are named.
  LoadedConfig load(const std::string& text, const std::vector<std::string>& overrides = {}) {
    return load_config(write("run.yaml", "model: {name: m}\ndata: {train: t.jsonl}\n" + text),
                       overrides);
  }

  test::TemporaryDirectory directory_;

 private:
  std::vector<std::string> names_;
};

}  // namespace sftrun::config
