#pragma once

#include <nlohmann/json.hpp>

namespace sftrun {

/// Empties a value of any size without taking memory. nlohmann's destructor makes a list of all parts, and ends the process where there
/// is no memory for it.
void empty_json(nlohmann::ordered_json& value) noexcept;

/// Empties a value that may be large before it is destroyed.
class JsonEmptier {
 public:
  /// @param value must outlive this object
  explicit JsonEmptier(nlohmann::ordered_json& value) : value_(value) {}
  ~JsonEmptier() { empty_json(value_); }
  JsonEmptier(const JsonEmptier&) = delete;
  JsonEmptier& operator=(const JsonEmptier&) = delete;

 private:
  nlohmann::ordered_json& value_;
};

}  // namespace sftrun
