#include <string>
#include <vector>

#include "commands.h"
#include "sftrun/core/error.h"
#include "sftrun/data/input_records.h"
#include "sftrun/data/parallel_for.h"
#include "sftrun/data/record_error.h"
#include "sftrun/data/sequence.h"
#include "sftrun/images/caps_file.h"
#include "sftrun/observe/system.h"
#include "sftrun/weights/hf_text_files.h"
#include "text_model_loader.h"

namespace sftrun::app {
namespace {

using data::Json;
using data::RecordFormat;

std::string text_of(const Json& record, const std::string& where) {
  const bool is_pair = data::is_preference(record);
  if (!is_pair && record.contains("text") && record["text"].is_string())
    return record["text"].get<std::string>();
  const bool has_strings = !is_pair && record.contains("prompt") && record["prompt"].is_string() &&
                           record.contains("completion") && record["completion"].is_string();
  if (has_strings)
    return record["prompt"].get<std::string>() + record["completion"].get<std::string>();
  const bool is_text =
      !is_pair && config::format_info(data::detect_input_format(record, where).format).is_text;
  throw DataError(
      "the record has no text: a string \"text\", or strings \"prompt\" and \"completion\"", where,
      is_text ? data::kWriteString : "give --chat if the records are conversations");
}

/// Both sequences, as objectives on pairs read them.
Json tokenized_pair(const data::InputRecord& input, const data::TextModel& model) {
  const std::vector<data::Sequence> pair =
      data::SequenceBuilder(RecordFormat::kPreference, model, {})
          .build(input.record, input.where, input.folder);
  return {{"chosen_input_ids", pair.at(0).ids},
          {"chosen_completion_mask", pair.at(0).mask},
          {"rejected_input_ids", pair.at(1).ids},
          {"rejected_completion_mask", pair.at(1).mask}};
}

/// As TRL's KTOTrainer has them; the label stays what the record has.
Json tokenized_judged(const data::InputRecord& input, const data::TextModel& model) {
  const auto& [line, record, where, folder] = input;
  const RecordFormat format = data::detect_input_format(record, where).format;
  const data::Sequence sequence =
      data::SequenceBuilder(format, model, {.form = config::ExampleForm::kJudged})
          .build(record, where, folder)
          .at(0);
  const auto answer = sequence.ids.begin() + sequence.num_prompt_tokens;
  return {{"prompt_ids", std::vector(sequence.ids.begin(), answer)},
          {"completion_ids", std::vector(answer, sequence.ids.end())},
          {"label", sequence.judgement == data::Judgement::kDesirable}};
}

/// Answers that are judged and rendered, or not.
bool is_judged(const Json& record, bool is_rendered, const std::string& where) {
  if (!data::has_judgement(record)) return false;
  const RecordFormat format = data::detect_input_format(record, where).format;
  return !config::format_info(format).is_text &&
         data::is_rendered(record, format, /*has_chat_template=*/true) == is_rendered;
}

Json tokenized_text(const data::InputRecord& input, const data::TextModel& model) {
  const bool is_pair_of_texts =
      data::is_preference(input.record) &&
      !data::is_rendered(input.record, RecordFormat::kPreference, model.chat_template != nullptr);
  if (is_pair_of_texts) return tokenized_pair(input, model);
  if (is_judged(input.record, /*is_rendered=*/false, input.where))
    return tokenized_judged(input, model);
  return {{"input_ids", model.tokenizer->encode(text_of(input.record, input.where),
                                                /*add_special_tokens=*/true)}};
}

Json tokenized_chat(const data::InputRecord& input, const data::TextModel& model) {
  const auto& [line, record, where, folder] = input;
  if (data::is_preference(record)) return tokenized_pair(input, model);
  if (is_judged(record, /*is_rendered=*/true, where)) return tokenized_judged(input, model);
  const RecordFormat format = data::detect_input_format(record, where).format;
  const bool is_rendered = data::is_rendered(record, format, /*has_chat_template=*/true);
  const bool is_text = config::format_info(format).is_text ||
                       (!is_rendered && record.contains("prompt") && record["prompt"].is_string());
  if (is_text) {
    throw DataError("the record has no \"messages\", which --chat requires", where,
                    "remove --chat");
  }
  const data::Sequence sequence =
      data::SequenceBuilder(format, model, {}).build(record, where, folder).at(0);
  return {{"input_ids", sequence.ids}, {"assistant_mask", sequence.mask}};
}

}  // namespace

int run_tokenize(const TokenizeOptions& options) {
  data::TextModel model = load_text_model(options.model, "", images::read_caps(options.model));
  model.render_defaults.kwargs = weights::read_template_variables(options.model);
  const auto num_threads = static_cast<int>(observe::available_cpus());
  const auto records = data::read_input_records(options.input, num_threads);
  std::vector<std::string> results(records.size());
  const auto tokenize = options.chat ? tokenized_chat : tokenized_text;
  data::parallel_for(static_cast<int64_t>(records.size()), num_threads, [&](int64_t i) {
    const data::InputRecord& input = records[static_cast<size_t>(i)];
    try {
      results[static_cast<size_t>(i)] =
          data::output_line(input, tokenize(input, model), options.output.string());
    } catch (const data::RecordError& error) {
      throw error.without_settings();
    }
  });
  std::string output;
  for (const std::string& result : results) output += result + "\n";
  data::write_records(options.output.string(), output);
  return static_cast<int>(ExitCode::kDone);
}

}  // namespace sftrun::app
