#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

/// What a pattern has so far that later parts refer to.
namespace sftrun::pattern {

inline constexpr uint64_t kUnbounded = UINT64_C(1) << 32;

/// The least and the largest number of characters that a part matches, or of times that it repeats.
struct Width {
  uint64_t min = 0, max = 0;
};
Width sum(const Width& a, const Width& b);
Width product(const Width& width, const Width& times);

/// The groups of a pattern, by number (from 1) and name.
class PatternGroups {
 public:
  /// The number of a new group.
  size_t open();
  void close(size_t number, const Width& width);
  /// Names the group that opens next. @throws SyntaxProblem if another one has the name
  void name_next(const std::string& name);

  /// The width of a group that a reference names. @throws SyntaxProblem if it cannot be referred to
  Width width_of(size_t number) const;
  Width width_of(const std::string& name) const;

  /// A look-behind cannot refer to its own groups.
  /// @return what leave_lookbehind takes
  std::optional<size_t> enter_lookbehind();
  void leave_lookbehind(std::optional<size_t> before) { num_before_lookbehind_ = before; }

 private:
  std::vector<std::optional<Width>> widths_;  ///< nullopt: the group is open
  std::map<std::string, size_t> names_;
  std::optional<size_t> num_before_lookbehind_;
};

}  // namespace sftrun::pattern
