#pragma once

#include <string>
#include <vector>

namespace sftrun::launch {

/// Arguments or variables as exec and posix_spawn take them, null at the end.   @param texts must outlive them
inline std::vector<char*> c_strings(std::vector<std::string>& texts) {
  std::vector<char*> all;
  all.reserve(texts.size() + 1);
  for (std::string& text : texts) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

}  // namespace sftrun::launch
