#include <cstdio>
#include <string>
#include <vector>

#include "commands.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/data/json_lines.h"
#include "sftrun/data/parallel_for.h"
#include "sftrun/data/sequence.h"
#include "sftrun/observe/system.h"
#include "text_model_loader.h"

namespace sftrun::app {
namespace {

using data::Json;
using data::RecordFormat;

bool is_standard_stream(const std::filesystem::path& path) {
  return path == "-";
}

std::string read_input(const std::filesystem::path& path) {
  return is_standard_stream(path) ? read_standard_input() : read_text_file(path);
}

void write_output(const std::filesystem::path& path, const std::string& text) {
  if (!is_standard_stream(path)) return write_file_atomically(path, text);
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (std::fflush(stdout) != 0) throw DeviceError("cannot write", "standard output");
}

std::string text_of(const Json& record, const std::string& where) {
  if (record.contains("text") && record["text"].is_string())
    return record["text"].get<std::string>();
  const bool has_strings = record.contains("prompt") && record["prompt"].is_string() &&
                           record.contains("completion") && record["completion"].is_string();
  if (has_strings)
    return record["prompt"].get<std::string>() + record["completion"].get<std::string>();
  throw DataError(
      "the record has no text: a string \"text\", or strings \"prompt\" and \"completion\"", where,
      "give --chat if the records are conversations");
}

Json tokenized_text(const Json& record, const data::TextModel& model, const std::string& where) {
  return {
      {"input_ids", model.tokenizer->encode(text_of(record, where), /*add_special_tokens=*/true)}};
}

Json tokenized_chat(const Json& record, const data::TextModel& model, const std::string& where) {
  const RecordFormat format = data::detect_format(record, where).format;
  const bool is_text = format == RecordFormat::kText ||
                       (format == RecordFormat::kPromptCompletion && record["prompt"].is_string());
  if (is_text) {
    throw DataError("the record is no conversation, which --chat needs: \"messages\"", where,
                    "leave --chat away");
  }
  const data::Sequence sequence =
      data::SequenceBuilder(format, model, {}).build(record, where).at(0);
  return {{"input_ids", sequence.ids}, {"assistant_mask", sequence.mask}};
}

}  // namespace

int run_tokenize(const TokenizeOptions& options) {
  const data::TextModel model = load_text_model(options.model, "");
  const std::string content = read_input(options.input);
  const std::string name = is_standard_stream(options.input) ? "<stdin>" : options.input.string();
  const std::vector<data::JsonLine> lines = data::split_json_lines(content, name);
  std::vector<std::string> results(lines.size());
  const auto tokenize = options.chat ? tokenized_chat : tokenized_text;
  data::parallel_for(static_cast<int64_t>(lines.size()),
                     static_cast<int>(observe::available_cpus()), [&](int64_t i) {
                       const data::JsonLine& line = lines[static_cast<size_t>(i)];
                       const std::string where = fmt::format("{}:{}", name, line.number);
                       const Json record = data::parse_json_line(line.text, where);
                       results[static_cast<size_t>(i)] = data::extend_json_line(
                           line.text, record, tokenize(record, model, where));
                     });
  std::string output;
  for (const std::string& result : results) output += result + "\n";
  write_output(options.output, output);
  return static_cast<int>(ExitCode::kDone);
}

}  // namespace sftrun::app
