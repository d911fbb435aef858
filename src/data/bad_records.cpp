#include "bad_records.h"

#include <algorithm>

#include "media_path.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/strings.h"

namespace sftrun::data {

BadRecord bad_record_of(const DataError& error, const std::string& place, bool may_be_left_out) {
  return {.error = error,
          .may_be_left_out = may_be_left_out,
          .place = place,
          .lacks_file = dynamic_cast<const MissingFileError*>(&error) != nullptr};
}

namespace {

constexpr const char* kSetImageRoot =
    "if the records' paths are relative to another folder, set data.image_root to it";
constexpr int64_t kHopeless = 1000;             // give up if so many records are all bad
constexpr std::chrono::seconds kReadOnFor{30};  // after the first bad record

std::string reason_of(const DataError& error) {
  return excerpt(error.message());
}

/// What the place of an error has behind that of its record: "/data/7.png" of "a.jsonl:7, /data/7.png".
std::string behind(const std::string& place, const std::string& where) {
  const std::string record = place + ", ";
  return !place.empty() && where.starts_with(record) ? where.substr(record.size()) : std::string();
}

/// "a.jsonl", "line", "7" of "a.jsonl:7:14"; "a.parquet", "row", "7" of "a.parquet, row 7".
struct RecordPlace {
  std::string file;  // empty: it is written in another way
  const char* unit = "line";
  std::string number;
};

RecordPlace record_place(const std::string& where) {
  constexpr std::string_view kRow = ", row ";
  if (const size_t row = where.rfind(kRow); row != std::string::npos)
    return {.file = where.substr(0, row), .unit = "row", .number = where.substr(row + kRow.size())};
  const size_t name_end = where.find(':', where.rfind('/') + 1);
  if (name_end == std::string::npos) return {};
  const std::string line = where.substr(name_end + 1);
  const size_t digits = std::min(line.find_first_not_of("0123456789"), line.size());
  if (digits == 0) return {};  // the colon is of the file's name
  return {.file = where.substr(0, name_end), .number = line.substr(0, digits)};
}

}  // namespace

std::string BadRecords::further_places() const {
  const auto place_of = [](const Kept& kept) {
    return kept.place.empty() ? kept.error.where() : kept.place;
  };
  const RecordPlace first = record_place(place_of(first_.front()));
  bool are_of_one_file = !first.file.empty();
  std::vector<std::string> places, numbers;
  for (size_t i = 1; i < first_.size(); ++i) {
    const RecordPlace place = record_place(place_of(first_[i]));
    are_of_one_file = are_of_one_file && place.file == first.file;
    places.push_back(place_of(first_[i]));
    numbers.push_back(place.number);
  }
  const std::string unit = fmt::format("{}{} ", first.unit, numbers.size() > 1 ? "s" : "");
  return (are_of_one_file ? unit + join(numbers, ", ") : join(places, ", ")) +
         (count_ > static_cast<int64_t>(first_.size()) ? ", …" : "");
}

void BadRecords::add(const BadRecord& bad, int64_t record) {
  const DataError& error = bad.error;
  ++count_;
  may_be_left_out_ = may_be_left_out_ && bad.may_be_left_out;
  fingerprint_.add(static_cast<uint64_t>(record));
  if (!since_) since_ = std::chrono::steady_clock::now();
  num_without_file_ += bad.lacks_file ? 1 : 0;
  same_reason_ =
      same_reason_ && (first_.empty() || first_.front().error.message() == error.message());
  if (first_.size() < kKept) first_.push_back({error, bad.place});
}

std::string BadRecords::left_out(int64_t num_records) const {
  constexpr size_t kShown = 3;
  std::vector<std::string> places;
  for (size_t i = 0; i < std::min(kShown, first_.size()); ++i) {
    const auto& [error, place] = first_[i];
    const std::string file = behind(place, error.where());
    places.push_back(file.empty() ? fmt::format("{} ({})", error.where(), reason_of(error))
                                  : fmt::format("{} ({}: {})", place, reason_of(error), file));
  }
  return fmt::format("{} left out (data.bad_records: skip): {}{}{}", counted(count_, "bad record"),
                     join(places, ", "), count_ > static_cast<int64_t>(kShown) ? ", …" : "",
                     lack_files(num_records) ? fmt::format("; {}", kSetImageRoot) : "");
}

bool BadRecords::lack_files(int64_t num_records) const {
  return num_without_file_ * 2 > num_records;
}

bool BadRecords::is_hopeless(int64_t num_records) const {
  return num_records >= kHopeless && count_ == num_records;
}

bool BadRecords::took_long() const {
  return since_ && std::chrono::steady_clock::now() - *since_ > kReadOnFor;
}

std::string BadRecords::fix(int64_t num_records) const {
  const bool have_one_fix = std::all_of(first_.begin(), first_.end(), [&](const Kept& kept) {
    return kept.error.fix() == first_.front().error.fix();
  });
  std::string fix = first_.front().error.fix();
  if (!fix.empty() && !have_one_fix) fix = "for the first: " + fix;
  if (lack_files(num_records)) fix = kSetImageRoot;
  const bool none_would_remain = count_ == num_records;
  if (none_would_remain || !may_be_left_out_) return fix;
  const char* skip = count_ == 1 ? "data.bad_records: skip leaves this record out"
                                 : "data.bad_records: skip leaves these records out";
  return fix.empty() ? skip : fix + "; or " + skip;
}

void BadRecords::require_usable(config::BadRecords choice, int64_t num_records,
                                const std::string& scope) const {
  if (count_ == 0) return;
  const bool may_skip = choice == config::BadRecords::kSkip;
  const bool are_all = scope.empty();  // else good ones may follow
  if (!may_skip || (count_ == num_records && are_all)) refuse(num_records, scope);
}

void BadRecords::refuse(int64_t num_records, const std::string& scope) const {
  SFTRUN_CHECK(!first_.empty());
  const DataError& first = first_.front().error;
  std::string message;
  if (count_ == 1) {
    message = scope + first.message();
  } else if (same_reason_) {
    message = fmt::format(
        "{}{}; {} the same problem: {}", scope, reason_of(first),
        count_ == 2 ? "1 more record has" : fmt::format("{} more records have", count_ - 1),
        further_places());
  } else {
    message = fmt::format("{}{} records cannot be used:", scope, count_);
    for (const auto& [error, place] : first_)
      message += fmt::format("\n    {}: {}", error.where(), reason_of(error));
    if (const auto more = count_ - static_cast<int64_t>(first_.size()); more > 0)
      message += fmt::format("\n    and {} more", more);
  }
  throw DataError(message, first.where(), fix(num_records));
}

}  // namespace sftrun::data
