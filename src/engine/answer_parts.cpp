#include "answer_parts.h"

#include <fmt/format.h>

#include <chrono>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "sftrun/core/entries.h"
#include "sftrun/core/error.h"
#include "sftrun/core/presence.h"

namespace sftrun::engine {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kSettings = "settings.json";

fs::path part_of_rank(const fs::path& folder, int rank) {
  return folder / fmt::format("rank-{}.jsonl", rank);
}

std::vector<fs::path> parts_in(const fs::path& folder) {
  std::vector<fs::path> parts;
  for (const fs::path& entry : entries_of(folder)) {
    const std::string name = entry.filename().string();
    if (name.starts_with("rank-") && name.ends_with(".jsonl")) parts.push_back(entry);
  }
  return parts;
}

/// Calls `use` with each complete line.
template <class Use>
void for_each_line(std::string_view text, Use&& use) {
  for (size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
    use(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
}

/// Appending to a line that a killed process began would spoil both.
void remove_incomplete_line(const fs::path& part) {
  if (!leads_to_file(part)) return;
  const std::string text = read_text_file(part);
  const std::string_view whole = std::string_view(text).substr(0, text.rfind('\n') + 1);
  if (whole.size() < text.size()) shrink_file(part, text, whole);
}

/// Whether the file is there, or comes: a network file system may show it to other nodes late.
bool appears(const fs::path& file) {
  constexpr int kMaxWaits = 600;
  constexpr std::chrono::milliseconds kWait{100};
  for (int i = 0; i < kMaxWaits && !leads_to_file(file); ++i) std::this_thread::sleep_for(kWait);
  return leads_to_file(file);
}

/// The first setting that differs, as "temperature was 0, now 0.7"; empty: none does.
std::string changed_setting(const Json& before, const Json& now) {
  for (const auto& [key, value] : now.items()) {
    const Json old = before.is_object() && before.contains(key) ? before[key] : Json();
    if (old != value) return fmt::format("{} was {}, now {}", key, old.dump(), value.dump());
  }
  return {};
}

void require_settings(const fs::path& folder, const Json& settings) {
  const fs::path file = folder / kSettings;
  if (!leads_to_file(file)) return write_file_atomically(file, settings.dump(2) + "\n");
  const Json before = Json::parse(read_text_file(file), nullptr, /*allow_exceptions=*/false);
  const std::string changed = changed_setting(before, settings);
  if (changed.empty()) return;
  throw ConfigError(
      "the output holds answers of an interrupted command with other settings: " + changed,
      folder.string(),
      "repeat that command to continue it, add --overwrite to start from the beginning, or name "
      "another --output");
}

}  // namespace

AnswerParts::AnswerParts(fs::path folder, const Json& settings, size_t num_records,
                         bool starts_over, parallel::Communicator& comm)
    : folder_(std::move(folder)), num_records_(num_records) {
  if (comm.rank() == 0) {
    make_directories(folder_);
    if (starts_over) remove();
    require_settings(folder_, settings);
  }
  comm.barrier("settings of the answers");
  if (!appears(folder_ / kSettings)) {
    throw ConfigError(
        fmt::format("rank {} does not see the folder that rank 0 writes to", comm.rank()),
        folder_.string(), "write to a folder that all machines share");
  }
  remove_incomplete_line(part_of_rank(folder_, comm.rank()));
  before_ = read();
  comm.barrier("answers are read");  // no rank adds answers before
  own_ = LineFile(part_of_rank(folder_, comm.rank()));
}

void AnswerParts::add(size_t record, Json answer) {
  Json line = {{"record", record}};
  line.update(answer);
  own_.append(line.dump());
}

void AnswerParts::close(parallel::Communicator& comm) {
  own_ = LineFile();
  comm.barrier("answers are written");
}

std::map<size_t, Json> AnswerParts::read() const {
  std::map<size_t, Json> answers;
  for (const fs::path& part : parts_in(folder_)) {
    for_each_line(read_text_file(part), [&](std::string_view line) {
      // A line that cannot be read counts as missing: its record is answered again.
      Json answer = Json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (!answer.is_object() || !answer.contains("record")) return;
      if (!answer["record"].is_number_unsigned()) return;
      const auto record = answer["record"].get<size_t>();
      if (record >= num_records_) return;
      answer.erase("record");
      answers[record] = std::move(answer);
    });
  }
  return answers;
}

void AnswerParts::remove() {
  own_ = LineFile();
  for (const fs::path& part : parts_in(folder_)) remove_entry(part);
  remove_entry(folder_ / kSettings);
}

}  // namespace sftrun::engine
