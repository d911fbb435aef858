#include "pattern_groups.h"

#include <fmt/format.h>

#include <algorithm>

#include "pattern_cursor.h"

namespace sftrun::pattern {

Width sum(const Width& a, const Width& b) {
  return {std::min(kUnbounded, a.min + b.min), std::min(kUnbounded, a.max + b.max)};
}
Width product(const Width& width, const Width& times) {
  return {std::min(kUnbounded, width.min * times.min), std::min(kUnbounded, width.max * times.max)};
}

size_t PatternGroups::open() {
  widths_.emplace_back();
  return widths_.size();
}

void PatternGroups::close(size_t number, const Width& width) {
  widths_[number - 1] = width;
}

void PatternGroups::name_next(const std::string& name) {
  if (!names_.emplace(name, widths_.size() + 1).second) fail("redefinition of a group's name");
}

Width PatternGroups::width_of(size_t number) const {
  if (number == 0 || number > widths_.size())
    fail(fmt::format("invalid group reference {}", number));
  const std::optional<Width>& width = widths_[number - 1];
  if (!width) fail("cannot refer to an open group");
  if (num_before_lookbehind_ && number > *num_before_lookbehind_)
    fail("cannot refer to group defined in the same lookbehind subpattern");
  return *width;
}

Width PatternGroups::width_of(const std::string& name) const {
  const auto group = names_.find(name);
  if (group == names_.end()) fail("unknown group name");
  return width_of(group->second);
}

std::optional<size_t> PatternGroups::enter_lookbehind() {
  const std::optional<size_t> before = num_before_lookbehind_;
  if (!before) num_before_lookbehind_ = widths_.size();
  return before;
}

}  // namespace sftrun::pattern
