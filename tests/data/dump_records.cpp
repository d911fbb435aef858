/// Reads a data file with our readers for tests/parity/records_parity.py.
///     dump_records FILE
/// Writes each record's number and itself as a line of JSON; an error as {"error": message}.
#include <cstdio>

#include "sftrun/core/error.h"
#include "sftrun/data/record_reader.h"

int main(int argc, char** argv) {
  using sftrun::data::Json;
  if (argc != 2) return 2;
  try {
    const auto reader = sftrun::data::open_records(argv[1]);
    while (const auto block = reader->next()) {
      for (size_t i = 0; i < block->size(); ++i)
        std::puts(Json({block->number(i), block->parse(i, "here")}).dump().c_str());
    }
  } catch (const sftrun::Error& error) {
    const Json json = {{"error", error.message()}};
    std::puts(json.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
  }
  return 0;
}
