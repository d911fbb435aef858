#include "records.h"

#include <fmt/format.h>

#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "sftrun/core/presence.h"

namespace sftrun::track {

using RecordJson = nlohmann::ordered_json;

RecordJson Records::of(const std::string& tracker) {
  const std::scoped_lock lock(mutex_);
  load();
  return records_.value(tracker, RecordJson());
}

RecordJson Records::all() {
  const std::scoped_lock lock(mutex_);
  load();
  return records_;
}

void Records::set(const std::string& tracker, const RecordJson& record) {
  const std::scoped_lock lock(mutex_);
  load();
  records_[tracker] = record;
  try {
    write_file_atomically(file_, records_.dump(2) + "\n");
  } catch (const std::exception& error) {
    if (!is_warned_) log::warn("{}; a resumed run will begin another tracked run", error.what());
    is_warned_ = true;
  }
}

void Records::load() {
  if (!records_.is_null()) return;
  records_ = RecordJson::object();
  try {
    if (!leads_to_file(file_)) return;
    auto read = RecordJson::parse(read_text_file(file_), nullptr, /*allow_exceptions=*/false);
    if (!read.is_object()) return;
    for (auto& [tracker, record] : read.items())
      if (record.is_object()) records_[tracker] = std::move(record);
  } catch (const std::exception&) {  // as if there were none
  }
}

}  // namespace sftrun::track
