#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace sftrun::spec {

/// Typed, range-checked access to a JSON object. null counts as missing. Every error is a DataError
/// naming the key, the expected value and the actual one.
class JsonFields {
 public:
  /// @param prefix added to every key, in look-ups and messages ("llama.")
  /// @param path prefix of keys in messages only ("rope_scaling.")
  JsonFields(const nlohmann::json& object, std::string where, std::string prefix = {},
             std::string path = {});

  const nlohmann::json* find(const std::string& key) const;  ///< nullptr if missing or null
  bool has(const std::string& key) const { return find(key) != nullptr; }

  int64_t require_int(const std::string& key, int64_t least, int64_t most) const;
  int64_t get_int(const std::string& key, int64_t otherwise, int64_t least, int64_t most) const;
  /// Finite and greater than zero.
  double require_positive(const std::string& key) const;
  double get_positive(const std::string& key, double otherwise) const;
  bool get_bool(const std::string& key, bool otherwise) const;
  std::string get_string(const std::string& key, const std::string& otherwise) const;
  /// An integer or a list of integers, each at least 0.
  std::vector<int64_t> get_ids(const std::string& key) const;

  [[noreturn]] void fail_missing(const std::string& key) const;
  [[noreturn]] void fail(const std::string& key, const std::string& expected) const;
  const nlohmann::json& object() const { return object_; }
  const std::string& where() const { return where_; }
  std::string full_name(const std::string& key) const { return path_ + prefix_ + key; }

 private:
  const nlohmann::json& object_;
  std::string where_, prefix_, path_;
};

}  // namespace sftrun::spec
