#include <fstream>

#include "foreign/import_test_base.h"
#include "sftrun/config/problem.h"
#include "sftrun/core/strings.h"

/// Whole files as users have them: tests/data/imports. tests/smoke/imported_files.py writes
/// expected.json, and plans a run of each.
namespace sftrun::foreign {
namespace {

class CorpusTest : public ImportTest {
 protected:
  std::filesystem::path folder() const {
    return std::filesystem::path(SFTRUN_TEST_DATA) / "imports";
  }
  nlohmann::ordered_json expected() const {
    std::ifstream file(folder() / "expected.json");
    return nlohmann::ordered_json::parse(file);
  }
  /// Paths of data as they are where the files lie.
  std::string without_folder(std::string text) const {
    const std::string prefix = folder().string() + "/";
    for (size_t at = text.find(prefix); at != std::string::npos; at = text.find(prefix, at))
      text.erase(at, prefix.size());
    return text;
  }
  nlohmann::ordered_json settings_of(const Import& import) const {
    nlohmann::ordered_json settings = nlohmann::ordered_json::object();
    for (const ImportedSetting& one : import.settings)
      settings[one.key] = nlohmann::ordered_json::parse(without_folder(one.value.dump()));
    return settings;
  }
  static std::vector<std::string> lost_keys(const Import& import) {
    std::vector<std::string> keys;
    for (const ImportNote& note : import.not_carried) keys.push_back(note.key);
    std::sort(keys.begin(), keys.end());
    return keys;
  }
};

TEST_F(CorpusTest, EachFileBecomesWhatItSays) {
  const nlohmann::ordered_json outcomes = expected();
  size_t count = 0;
  for (const auto& [name, outcome] : outcomes.items()) {
    SCOPED_TRACE(name);
    ++count;
    try {
      const Import result = import_config(folder() / name, std::nullopt);
      ASSERT_TRUE(outcome.contains("tool")) << "imported, and not refused";
      EXPECT_EQ(tool_word(result.tool), outcome["tool"].get<std::string>());
      EXPECT_EQ(settings_of(result), outcome["settings"]);
      EXPECT_EQ(lost_keys(result), outcome["lost"].get<std::vector<std::string>>());
    } catch (const ConfigError& error) {
      ASSERT_TRUE(outcome.contains("refused")) << error.what();
      const std::string first = split(error.message(), '\n').front();
      EXPECT_EQ(first, outcome["refused"].get<std::string>());
    }
  }
  EXPECT_GE(count, 40U);
}

/// The same files given to a run are answered with their tool, in one line.
TEST_F(CorpusTest, NoneIsTakenForARun) {
  const nlohmann::ordered_json outcomes = expected();
  for (const auto& [name, outcome] : outcomes.items()) {
    SCOPED_TRACE(name);
    try {
      load_config(folder() / name, {});
      ADD_FAILURE() << "taken for a run";
    } catch (const ConfigError& error) {
      EXPECT_NE(error.message().find("this is a file of "), std::string::npos) << error.what();
      EXPECT_FALSE(error.fix().empty());
    }
  }
}

}  // namespace
}  // namespace sftrun::foreign
