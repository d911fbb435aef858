#pragma once

#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>

namespace sftrun::track {

/// trackers.json of a run directory: what each tracker noted of its run. Thread-safe.
class Records {
 public:
  explicit Records(std::filesystem::path file) : file_(std::move(file)) {}

  /// Reads the file once; nothing where it is missing or damaged.
  nlohmann::ordered_json of(const std::string& tracker);
  /// A file that cannot be written is a warning.
  void set(const std::string& tracker, const nlohmann::ordered_json& record);
  nlohmann::ordered_json all();

 private:
  void load();

  std::filesystem::path file_;
  std::mutex mutex_;
  nlohmann::ordered_json records_ = nullptr;
  bool is_warned_ = false;
};

}  // namespace sftrun::track
