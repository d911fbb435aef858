#include "judged_part.h"

#include <string_view>
#include <system_error>

#include "sftrun/core/hash.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"

namespace sftrun::app {
namespace {

namespace fs = std::filesystem;

std::string first_line(const std::string& key) {
  return "{\"sftrun reward\": \"" + key + "\"}\n";
}

}  // namespace

JudgedPart::JudgedPart(const std::string& output, const std::string& key)
    : path_(output + ".part") {
  const std::string head = first_line(key);
  const std::string content = is_plain_file(path_) ? read_text_file(path_) : std::string();
  if (content.starts_with(head)) {
    const size_t end = content.rfind('\n') + 1;  // what was cut short is judged again
    const std::string kept = content.substr(0, end);
    if (end < content.size()) shrink_file(path_, content, kept);
    lines_ = split(std::string_view(kept).substr(head.size()), '\n');
    lines_.pop_back();  // behind the last line end
  } else {
    write_file_atomically(path_, head);
  }
  file_ = LineFile(path_);
}

void JudgedPart::append(const std::string& lines) {
  file_.append(std::string_view(lines).substr(0, lines.size() - 1));  // it adds the last line end
}

void JudgedPart::remove() {
  file_ = LineFile();
  std::error_code ignored;
  fs::remove(path_, ignored);
}

std::string key_of_judge(const std::string& settings, const std::string& command) {
  Fingerprint key;
  key.add(settings);
  for (const std::string& word : split(command, ' ')) {
    std::error_code code;
    if (word.empty() || !is_plain_file(word)) continue;
    const auto changed = fs::last_write_time(word, code).time_since_epoch().count();
    key.add(word).add(static_cast<uint64_t>(changed)).add(uint64_t{fs::file_size(word, code)});
  }
  return key.hex();
}

}  // namespace sftrun::app
