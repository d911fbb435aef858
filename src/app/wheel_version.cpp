#include "wheel_version.h"

#include "sftrun/core/file.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"

namespace sftrun::app {

std::string wheel_variable(const std::filesystem::path& torch, std::string_view name) {
  const std::filesystem::path file = torch / "version.py";
  if (!leads_to_file(file)) return {};
  for (const std::string& line : split(read_text_file(file), '\n')) {
    const size_t begin = line.find("= '"), end = line.find('\'', begin + 3);
    const bool is_named = line.starts_with(name) && line.size() > name.size() &&
                          (line[name.size()] == ' ' || line[name.size()] == ':');
    if (is_named && begin != std::string::npos && end != std::string::npos)
      return line.substr(begin + 3, end - begin - 3);
  }
  return {};
}

}  // namespace sftrun::app
