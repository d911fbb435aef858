#pragma once

#include <algorithm>
#include <string>

#include "config/config_test_base.h"
#include "conversion.h"
#include "sftrun/foreign/import.h"
#include "sftrun/foreign/load.h"

namespace sftrun::foreign {

using config::ConfigProblems, config::DTypeChoice, config::LoadedConfig, config::Offload,
    config::Override;
using config::RunConfig, config::Strategy;

/// Imports texts, and finds parts of what becomes of them.
class ImportTest : public config::ConfigTest {
 protected:
  /// `text` below a model and data that are named.
  LoadedConfig load(const std::string& text, const std::vector<std::string>& overrides = {}) {
    return load_config(write("run.yaml", "model: {name: m}\ndata: {train: t.jsonl}\n" + text),
                       overrides);
  }
  Import import(const std::string& text, Tool tool) {
    return import_config(write("file", text), tool);
  }
  std::filesystem::path shipped(const std::string& name) const {
    return std::filesystem::path(SFTRUN_TEST_DATA).parent_path().parent_path() / "configs" / name;
  }
  std::filesystem::path example(const std::string& name) const {
    return std::filesystem::path(SFTRUN_TEST_DATA) / "foreign" / name;
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

}  // namespace sftrun::foreign
