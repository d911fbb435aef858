#include <sstream>
#include <string>

#include "data/toy_model.h"
#include "fuzz.h"
#include "sftrun/data/json_lines.h"
#include "sftrun/data/sequence.h"

/// Lines of a data file, through to labelled tokens. A line that can be read can be extended.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sftrun;
  static const data::TextModel model = test::toy_model();
  fuzz::expecting_errors([&] {
    std::istringstream lines{std::string(fuzz::text_of(data, size))};
    for (std::string line; std::getline(lines, line);) {
      fuzz::expecting_errors([&] {
        const data::Json record = data::parse_json_line(line, "data.jsonl:1");
        const auto extended = data::extend_json_line(line, record, {{"score", 1}});
        if (data::parse_json_line(extended, "extended").at("score") != 1) __builtin_trap();
        const auto objective = record.contains("label")      ? config::Objective::kKto
                               : record.contains("rejected") ? config::Objective::kDpo
                                                             : config::Objective::kSft;
        const auto format = data::detect_format(record, "data.jsonl:1", objective).format;
        for (const auto& sequence :
             data::SequenceBuilder(format, model, {.form = config::objective_info(objective).form})
                 .build(record, "data.jsonl:1")) {
          if (sequence.ids.size() != sequence.mask.size()) __builtin_trap();
          if (sequence.num_prompt_tokens > std::ssize(sequence.ids)) __builtin_trap();
        }
      });
    }
  });
  return 0;
}
