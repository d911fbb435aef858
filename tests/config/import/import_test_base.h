#pragma once

#include <algorithm>
#include <string>

#include "config/config_test_base.h"
#include "import/reading.h"
#include "sftrun/config/import.h"

namespace sftrun::config::importing {

/// Imports texts, and finds parts of what becomes of them.
class ImportTest : public ConfigTest {
 protected:
  Import import(const std::string& text, ForeignTool tool) {
    return import_config(write("file", text), tool);
  }
  std::filesystem::path shipped(const std::string& name) const {
    return std::filesystem::path(SFTRUN_TEST_DATA).parent_path().parent_path() / "configs" / name;
  }
  std::filesystem::path example(const std::string& name) const {
    return std::filesystem::path(SFTRUN_TEST_DATA) / "config/import" / name;
  }

  /// The value of a field as JSON; "none" if it is not set.
  static std::string value_of(const Import& import, const std::string& field) {
    for (const ImportedSetting& setting : import.settings)
      if (setting.key == field) return setting.value.dump();
    return "none";
  }
  static bool has_key(const std::vector<ImportNote>& notes, const std::string& key) {
    return std::any_of(notes.begin(), notes.end(),
                       [&](const ImportNote& note) { return note.key == key; });
  }
};

}  // namespace sftrun::config::importing
