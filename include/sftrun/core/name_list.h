#pragma once

#include <algorithm>
#include <array>
#include <initializer_list>
#include <string_view>

namespace sftrun {

/// A few names in a constant table. They must be literals.
class NameList {
 public:
  constexpr NameList() = default;
  constexpr NameList(std::initializer_list<std::string_view> names)
      : size_(names.size()) {  // NOLINT(google-explicit-constructor): as a list is written
    std::copy(names.begin(), names.end(), names_.begin());
  }
  constexpr const std::string_view* begin() const { return names_.data(); }
  constexpr const std::string_view* end() const { return names_.data() + size_; }
  constexpr size_t size() const { return size_; }
  constexpr bool contains(std::string_view name) const {
    return std::find(begin(), end(), name) != end();
  }

 private:
  std::array<std::string_view, 12> names_;  // more than fit do not compile
  size_t size_ = 0;
};

}  // namespace sftrun
