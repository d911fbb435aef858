#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace sftrun::spec {

/// Typed, range-checked reading of one JSON object's keys. A missing key and a null are the same.
/// Every error is a DataError naming the key, what it should be and what it is.
class JsonFields {
 public:
  /// @param prefix goes before every key, in look-ups and messages ("llama.")
  /// @param path what the object is called in messages ("rope_scaling."), not part of look-ups
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
  const std::string& where() const { return where_; }
  std::string full_name(const std::string& key) const { return path_ + prefix_ + key; }

 private:
  const nlohmann::json& object_;
  std::string where_, prefix_, path_;
};

}  // namespace sftrun::spec
