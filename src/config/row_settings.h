#pragma once

#include <algorithm>
#include <string_view>
#include <vector>

namespace sftrun::config {

/// The settings that rows read, each once, in the order of the rows.
template <class Rows>
std::vector<std::string_view> settings_of(const Rows& rows) {
  std::vector<std::string_view> settings;
  for (const auto& row : rows)
    for (const std::string_view setting : row.settings)
      if (std::find(settings.begin(), settings.end(), setting) == settings.end())
        settings.push_back(setting);
  return settings;
}

}  // namespace sftrun::config
