#include <ATen/Parallel.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "answer_parts.h"
#include "answer_record.h"
#include "command_ranks.h"
#include "commands.h"
#include "rank.h"
#include "session.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/standard_streams.h"
#include "sftrun/core/xxh3.h"
#include "sftrun/data/image_input.h"
#include "sftrun/data/input_records.h"
#include "sftrun/data/parallel_for.h"
#include "sftrun/data/prompt.h"
#include "sftrun/data/record_error.h"
#include "sftrun/weights/fingerprint.h"
#include "shared_answers.h"
#include "text_generator.h"

namespace sftrun::engine {
namespace fs = std::filesystem;
namespace {

using data::Json;

/// Shows text as it comes.
class Printer {
 public:
  void print(std::string_view text) {
    if (text.size() <= num_printed_) return;
    write_standard_output(text.substr(num_printed_));
    num_printed_ = text.size();
  }

 private:
  size_t num_printed_ = 0;
};

/// What generate does with a prompt or with records, once the model is loaded.
class Prompts {
 public:
  Prompts(const app::GenerateRequest& request, const data::TextModel& text)
      : request_(request), text_(text) {
    chat_ = request.chat.value_or(text.chat_template != nullptr);
    if (chat_ && !text.chat_template) {
      throw ConfigError("the model has no chat template", "--chat",
                        "leave --chat out, or give a model with a chat template");
    }
  }

  bool are_chats() const { return chat_; }

  void warn_of_idle_variables(const std::vector<data::InputRecord>& records) const {
    if (!request_.model.chat_template_kwargs) return;
    const data::PromptBuilder builder(text_, chat_);
    const bool renders = std::any_of(records.begin(), records.end(), [&](const auto& record) {
      return builder.renders(record.record, record.where);
    });
    warn_of_idle_template_flag(request_.model, {&text_}, renders);
  }

  data::PromptTokens of_text(const std::string& prompt) const {
    Json record = {{"prompt", prompt}};
    if (const auto& system = request_.system) {
      if (!chat_) {
        throw ConfigError("--system needs a chat template, and the model has none", "--system",
                          "write the system message into the prompt");
      }
      record = {
          {"messages",
           {{{"role", "system"}, {"content", *system}}, {{"role", "user"}, {"content", prompt}}}}};
    }
    warn_of_idle_template_flag(request_.model, {&text_}, chat_);
    if (!request_.images.empty()) record["images"] = request_.images;
    data::PromptTokens tokens = data::PromptBuilder(text_, chat_).build(record, "--prompt");
    if (tokens.ids.empty())
      throw ConfigError("the prompt is empty", "--prompt", "give at least one character");
    return tokens;
  }

  std::vector<data::PromptTokens> of_records(const std::vector<data::InputRecord>& records) const {
    const data::PromptBuilder builder(text_, chat_);
    std::vector<data::PromptTokens> prompts(records.size());
    data::parallel_for(static_cast<int64_t>(records.size()), at::get_num_threads(), [&](int64_t i) {
      const data::InputRecord& record = records[static_cast<size_t>(i)];
      data::PromptTokens& prompt = prompts[static_cast<size_t>(i)];
      try {
        prompt = builder.build(record.record, record.where, record.folder);
      } catch (const data::RecordError& error) {
        throw error.without_settings();
      }
      if (prompt.ids.empty())
        throw DataError("the prompt is empty", record.where,
                        "write at least one character, or remove the record");
    });
    return prompts;
  }

 private:
  const app::GenerateRequest& request_;
  const data::TextModel& text_;
  bool chat_ = false;
};

TextGenerator generator_of(const app::GenerateRequest& request, const data::TextModel& text) {
  model::SamplingOptions options = sampling_options(request.sampling);
  options.keeps_logprobs = request.logprobs;
  return {text, std::move(options), request.sampling.stop};
}

/// Whether tokens are drawn from another distribution than the model's.
bool is_changed(const app::SamplingRequest& sampling) {
  return sampling.temperature > 0 &&
         (sampling.temperature != 1 || sampling.top_p.value_or(1) < 1 || sampling.top_k ||
          sampling.min_p.value_or(0) > 0 || sampling.repetition_penalty.value_or(1) != 1);
}

/// What is added to a record: docs/inference.md.
/// @param index number of the answer, among all answers to all prompts
Json additions_of(const app::GenerateRequest& request, size_t index,
                  const std::vector<int32_t>& prompt_ids, const Answer& answer) {
  Json added = record_of(answer);
  if (const auto n = static_cast<size_t>(request.num_answers); n > 1) {
    added["group"] = index / n;
    added["answer_index"] = index % n;
  }
  if (request.logprobs) added.update(sample_of(answer, prompt_ids, is_changed(request.sampling)));
  return added;
}

constexpr int64_t kUsualBatchSize = 8;

/// --prompt.
/// @param rank of the ranks that have the model together; null: this process alone has it, and a
/// signal ends it at once
int answer_prompt(const app::GenerateRequest& request, LoadedModel& model, const Rank* rank) {
  const std::string& prompt = request.prompt.value();
  const std::optional<std::string>& output = request.output;
  const bool is_main = rank == nullptr || rank->is_main();
  const bool is_text = !request.json && !output;
  const auto num_answers = static_cast<size_t>(request.num_answers);
  const bool prints =
      is_text && is_main && num_answers == 1 && (rank == nullptr || !rank->env().supervised);
  if (!request.images.empty())
    require_reads_images(model.text, model.checkpoint->arch(), request.model.model, "--image");
  const auto tokens = Prompts(request, model.text).of_text(prompt);
  Printer printer;
  std::vector<Answer> answers(num_answers);
  uint32_t num_taken = 0;
  AnswerHooks hooks{
      .next_prompt = [&]() -> std::optional<model::Prompt> {
        if (!is_main || num_taken == num_answers) return std::nullopt;
        const uint32_t draw = num_taken++;
        return model::Prompt{draw, tokens.ids, 0, tokens.media, draw};
      },
      .on_answer = [&](size_t index, Answer&& finished) { answers[index] = std::move(finished); }};
  if (prints) hooks.on_text = [&](std::string_view text) { printer.print(text); };
  if (rank != nullptr) hooks.before_step = [&](size_t) { return rank->stop_exit_code() == 0; };
  const auto batch_size = static_cast<size_t>(
      std::min(request.num_answers, request.batch_size.value_or(kUsualBatchSize)));
  generator_of(request, model.text).run(*model.decoder, batch_size, hooks, model.copy.get());
  if (const int code = rank != nullptr ? rank->stop_exit_code() : 0) return code;
  if (!is_main) return 0;
  if (prints) {
    printer.print(answers[0].text);
    write_standard_output("\n");
    return 0;
  }
  std::string text;
  for (size_t i = 0; i < num_answers; ++i) {
    Json object = {{"prompt", prompt}, {"prompt_tokens", tokens.ids.size()}};
    object.update(additions_of(request, i, tokens.ids, answers[i]));
    const char* const between = is_text && i > 0 ? "\n" : "";
    text += fmt::format("{}{}\n", between, is_text ? answers[i].text : object.dump());
  }
  if (output || rank == nullptr)
    data::write_records(output.value_or("-"), text);
  else
    write_result(request.ranks, *rank, text);
  return 0;
}

std::string line_of(const data::InputRecord& record, const Json& additions,
                    const std::string& output) {
  return data::output_line(record, additions, output) + "\n";
}

/// What answers depend on. The batch size and the number of processes are not among it: they change
/// answers by rounding only.
Json settings_of(const app::GenerateRequest& request, const LoadedModel& model, bool are_chats,
                 const std::vector<data::InputRecord>& records) {
  Json settings = {{"version", 1}};
  settings["model"] = request.model.model;
  settings["adapter"] = app::json_of(request.model.adapter);
  settings["input"] = request.records.input.value();
  settings["model_layout"] = weights::layout_fingerprint(*model.checkpoint);
  if (const auto& adapter = request.model.adapter) {
    const fs::path file = fs::path(*adapter) / "adapter_model.safetensors";
    if (leads_to_file(file)) settings["adapter_weights"] = weights::remembered_hashes().of(file);
  }
  std::string lines;
  for (const data::InputRecord& record : records) lines += xxh3_128(record.line);
  settings["input_records"] = xxh3_128(lines);
  settings["chat"] = are_chats;
  if (!model.text.render_defaults.kwargs.empty())
    settings["chat_template_kwargs"] = model.text.render_defaults.kwargs;
  if (model.text.images != nullptr) settings["images"] = model.text.images->fingerprint;
  settings.update(app::json_of(request.sampling));
  if (request.num_answers > 1) settings["num_answers"] = request.num_answers;
  if (request.logprobs) settings["logprobs"] = true;
  settings["dtype"] = request.ranks.compute.dtype;
  settings["as_stored"] = request.model.as_stored;
  return settings;
}

/// --input: the ranks answer the records together.
class FileAnswers {
 public:
  FileAnswers(const app::GenerateRequest& request, std::vector<data::InputRecord> records,
              LoadedModel& model, Rank& rank)
      : request_(request),
        model_(model),
        rank_(rank),
        output_(request.output.value()),
        prompts_(request, model.text),
        records_(std::move(records)),
        tokens_(prompts_.of_records(records_)),
        num_each_(static_cast<size_t>(request.num_answers)),
        num_answers_(records_.size() * num_each_) {
    if (rank.is_main()) prompts_.warn_of_idle_variables(records_);
  }

  int run() { return request_.ranks.folder ? write() : write_unkept(); }

 private:
  /// Without a folder for finished answers. To standard output lines are written as soon as those
  /// before them are.
  int write_unkept() {
    if (model_.mesh(rank_).dp_size() > 1) {
      throw ConfigError("several processes need files for input and output", "--input and --output",
                        "name files");
    }
    std::map<size_t, std::string> waiting;
    size_t num_written = 0;
    std::string lines;
    const int code = answer(all_but({}), 0, [&](size_t index, Answer&& answer) {
      waiting[index] = line_of(record_of(index), additions(index, answer), output_);
      for (; !waiting.empty() && waiting.begin()->first == num_written; ++num_written) {
        lines += waiting.begin()->second;
        waiting.erase(waiting.begin());
      }
      if (output_ == "-")
        data::write_records("-", std::exchange(lines, {}),
                            [this] { return rank_.stop_exit_code(); });
    });
    if (code == 0 && output_ != "-" && rank_.is_main()) data::write_records(output_, lines);
    return code;
  }

  int write() {
    AnswerParts parts(request_.ranks.folder.value(),
                      settings_of(request_, model_, prompts_.are_chats(), records_), num_answers_,
                      request_.overwrite, rank_.comm());
    const size_t num_done = parts.before().size();
    if (num_done > 0 && rank_.is_main())
      log::info("{} of {} already answered", num_done, counted(num_answers_, word()));
    const int code = answer(all_but(parts.before()), num_done, [&](size_t index, Answer&& answer) {
      parts.add(index, additions(index, answer));
    });
    parts.close(rank_.comm());
    if (code != 0) {
      if (rank_.is_main())
        log::info("stopped with {} of {} answered; rerun the same command to resume",
                  parts.read().size(), counted(num_answers_, word()));
      return code;
    }
    if (rank_.is_main()) {
      merge(parts.read());
      parts.remove();
    }
    return 0;
  }

  // Answers are numbered record by record: record * num_each_ + number of the answer.

  const char* word() const { return num_each_ > 1 ? "answer" : "record"; }
  const data::InputRecord& record_of(size_t index) const { return records_[index / num_each_]; }
  Json additions(size_t index, const Answer& answer) const {
    return additions_of(request_, index, tokens_[index / num_each_].ids, answer);
  }

  std::vector<size_t> all_but(const std::map<size_t, Json>& answered) const {
    std::vector<size_t> left;
    for (size_t index = 0; index < num_answers_; ++index)
      if (!answered.contains(index)) left.push_back(index);
    return left;
  }

  int answer(const std::vector<size_t>& answers, size_t num_done,
             const std::function<void(size_t, Answer&&)>& on_answer) {
    const TextGenerator generator = generator_of(request_, model_.text);
    return answer_records(
        {.name = "records",
         .rank = rank_,
         .generator = generator,
         .decoder = *model_.decoder,
         .copy = model_.copy.get(),
         .batch_size = static_cast<size_t>(request_.batch_size.value_or(kUsualBatchSize)),
         .records = answers,
         .answers_per_record = num_each_,
         .num_done = num_done,
         .prompt = [this](size_t index) { return tokens_[index / num_each_]; },
         .on_answer = on_answer,
         .place = [this](size_t index) { return record_of(index).where; },
         .after_errors = after_errors()});
  }

  std::string after_errors() const {
    if (!request_.ranks.folder) return {};
    return fmt::format("finished answers are kept in {}, and the same command goes on after them",
                       *request_.ranks.folder);
  }

  /// The records in the order of the input.
  void merge(const std::map<size_t, Json>& answers) const {
    AtomicFile file(output_, SpecialFile::kAllowed);
    for (size_t index = 0; index < num_answers_; ++index) {
      const auto answer = answers.find(index);
      if (answer == answers.end()) {
        throw DataError(fmt::format("an answer of record {} is missing", index / num_each_ + 1),
                        request_.ranks.folder.value(),
                        "its files were removed during the run, or the machines do not share "
                        "this folder; rerun the command to add the missing answers");
      }
      file.write(line_of(record_of(index), answer->second, output_));
    }
    file.commit();
  }

  const app::GenerateRequest& request_;
  LoadedModel& model_;
  Rank& rank_;
  std::string output_;
  Prompts prompts_;
  std::vector<data::InputRecord> records_;
  std::vector<data::PromptTokens> tokens_;  // of each record's prompt
  size_t num_each_, num_answers_;           // of a record, of all records
};

/// Logits that are not finite come from the base's files, or from the adapter.
template <class Body>
int naming_broken_tensors(const app::GenerateRequest& request, const LoadedModel& model,
                          Body&& body) {
  try {
    return body();
  } catch (const model::NotFiniteError&) {
    weights::require_finite(*model.checkpoint, request.model.model);
    throw;
  }
}

int answer_file(const app::GenerateRequest& request, std::vector<data::InputRecord> records,
                LoadedModel& model, Rank& rank) {
  std::optional<FileAnswers> answers;
  const auto read = [&] { answers.emplace(request, std::move(records), model, rank); };
  if (const int code = rank.interruptible(read)) return code;
  return naming_broken_tensors(request, model, [&] { return answers->run(); });
}

/// As one of several ranks, or of the records of a file.
int generate(const app::GenerateRequest& request, Rank& rank) {
  CommandRanks ranks(request.ranks, rank);
  if (const int code = ranks.connect()) return code;
  std::vector<data::InputRecord> records;
  app::ModelRequest named = request.model;
  named.takes_images = !request.images.empty();
  if (!request.prompt) {
    const auto read = [&] {
      records = data::read_input_records(input_of(request.records), at::get_num_threads());
    };
    if (const int code = rank.interruptible(read)) return code;
    named.takes_images = data::have_images(records);
  }
  LoadedModel model;
  if (const int code = ranks.load_model(named, model)) return code;
  require_language_head(model);
  if (rank.is_main()) warn_of_unread_images(records, model.text);
  if (!request.prompt) return answer_file(request, std::move(records), model, rank);
  return naming_broken_tensors(request, model,
                               [&] { return answer_prompt(request, model, &rank); });
}

}  // namespace

int run_generate(const app::GenerateRequest& request) {
  if (!request.prompt || request.ranks.parallel) return run_as_ranks(request, generate);
  app::ModelRequest named = request.model;
  named.takes_images = !request.images.empty();
  LoadedModel model = load_model(named, request.ranks.compute);
  require_language_head(model);
  return naming_broken_tensors(request, model,
                               [&] { return answer_prompt(request, model, nullptr); });
}

}  // namespace sftrun::engine
