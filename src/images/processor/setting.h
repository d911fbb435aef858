#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "sftrun/images/processor.h"

namespace sftrun::images {

/// A value of a processor's file. Errors are DataErrors with the file, the key and the value.
class Setting {
 public:
  /// @param name with the objects around it: "image_processor.size"
  Setting(const nlohmann::json& value, std::string name, const std::string& where)
      : value_(value), name_(std::move(name)), where_(where) {}

  bool boolean() const;
  int64_t integer(int64_t least, int64_t most) const;
  double number() const;
  double positive() const;
  /// A number for all channels, or three.
  std::array<double, 3> colour() const;
  /// An object; or [height, width]; or a number, which is a square or the shortest edge.
  SizeRule size(bool square) const;
  /// A number, or an object with equal height and width.
  int64_t square_side(int64_t most) const;
  /// An object of one key.
  int64_t only(const char* key, int64_t most) const;
  std::vector<std::array<int64_t, 2>> pairs(int64_t most) const;

  [[noreturn]] void fail(const std::string& expected) const;

 private:
  Setting part(const char* key) const { return {value_.at(key), name_ + "." + key, where_}; }

  const nlohmann::json& value_;
  std::string name_;
  const std::string& where_;
};

/// Sets one key of a processor.
using ReadSetting = void (*)(const Setting& setting, ImageProcessor& processor);
/// @return null: no processor reads that key
ReadSetting reader_of(std::string_view key);

/// Why a key has no effect on a kind's values; empty: it has one, or is not known.
std::string_view reason_to_ignore(ProcessorKind kind, std::string_view key);

}  // namespace sftrun::images
