/// Reads data with our readers for tests/parity/records_parity.py.
///     dump_records FILE
///     dump_records FOLDER SPLIT [NAME]     a data set's subset, as data.train has it; SPLIT may be
///     ''
/// Writes each record's number and itself as a line of JSON; an error as {"error": message}.
#include <cstdio>

#include "sftrun/core/error.h"
#include "sftrun/core/exact_json.h"
#include "sftrun/data/record_reader.h"
#include "source_files.h"

namespace {
using sftrun::data::Json;

void dump(const std::filesystem::path& file) {
  const auto reader = sftrun::data::open_records(file);
  while (const auto block = reader->next()) {
    for (size_t i = 0; i < block->size(); ++i)
      std::puts(sftrun::to_json_text({block->number(i), block->parse(i, "here")}).c_str());
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 4) return 2;
  try {
    if (argc == 2) {
      dump(argv[1]);
      return 0;
    }
    const sftrun::config::DataSource source{
        .path = argv[1], .name = argc == 4 ? argv[3] : "", .split = argv[2]};
    for (const auto& file : sftrun::data::source_files(source, sftrun::SplitRole::kTrain))
      dump(file);
  } catch (const sftrun::Error& error) {
    const Json json = {{"error", error.message()}};
    std::puts(json.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
  }
  return 0;
}
