#include "sftrun/core/python_packages.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "support/temporary_directory.h"

namespace sftrun {
namespace {

namespace fs = std::filesystem;

class PythonPackages : public testing::Test {
 protected:
  fs::path make(const std::string& folder) {
    const fs::path path = dir_ / folder;
    fs::create_directories(path);
    return path;
  }
  /// The packages below the temporary folder: the machine may have some of its own.
  std::vector<fs::path> found(const std::string& name) {
    std::vector<fs::path> here;
    for (const fs::path& path : python_packages(name, [this](const char* variable) {
           const auto at = variables_.find(variable);
           return at == variables_.end() ? nullptr : at->second.c_str();
         }))
      if (path.string().starts_with(fs::path(dir_ / "").string())) here.push_back(path);
    return here;
  }

  const test::TemporaryDirectory dir_;
  std::map<std::string, std::string> variables_;
};

TEST_F(PythonPackages, TheActiveEnvironmentIsFirst) {
  const fs::path own = make("home/.local/lib/python3.12/site-packages/torch"),
                 conda = make("conda/lib/python3.10/site-packages/torch"),
                 venv = make("venv/lib/python3.11/site-packages/torch");
  variables_ = {{"HOME", (dir_ / "home").string()},
                {"CONDA_PREFIX", (dir_ / "conda").string()},
                {"VIRTUAL_ENV", (dir_ / "venv").string()}};
  EXPECT_EQ(found("torch"), (std::vector<fs::path>{venv, conda, own}));
  variables_.erase("VIRTUAL_ENV");
  variables_["CONDA_PREFIX"] = "";
  EXPECT_EQ(found("torch"), std::vector<fs::path>{own});
}

TEST_F(PythonPackages, NewerPythonsAreFirst) {
  const fs::path nine = make("venv/lib/python3.9/site-packages/torch"),
                 eleven = make("venv/lib/python3.11/site-packages/torch"),
                 debian = make("venv/lib/python3/dist-packages/torch");
  variables_ = {{"VIRTUAL_ENV", (dir_ / "venv").string()}};
  EXPECT_EQ(found("torch"), (std::vector<fs::path>{eleven, nine, debian}));
}

TEST_F(PythonPackages, OnlyFoldersOfThatNameCount) {
  make("venv/lib/python3.11/site-packages/torchvision");
  make("venv/lib/python2.7/site-packages/torch");
  make("venv/lib/python3.x/site-packages/torch");
  make("venv/lib/python3.11t/site-packages/torch");
  std::ofstream(make("venv/lib/python3.12/site-packages") / "torch") << "a file";
  variables_ = {{"VIRTUAL_ENV", (dir_ / "venv").string()}};
  EXPECT_EQ(found("torch"), std::vector<fs::path>{});
}

}  // namespace
}  // namespace sftrun
