#include "sftrun/model/generate.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include "commands.h"
#include "session.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "sftrun/data/input_records.h"
#include "sftrun/data/parallel_for.h"
#include "sftrun/data/prompt.h"
#include "sftrun/text/generated_text.h"

namespace sftrun::engine {
namespace {

using data::Json;

data::Json finish_reason(const model::Generation& result) {
  return result.stopped ? "stop" : "length";
}

/// Shows text as it comes.
class Printer {
 public:
  void print(std::string_view text) {
    if (text.size() <= num_printed_) return;
    std::fwrite(text.data() + num_printed_, 1, text.size() - num_printed_, stdout);
    std::fflush(stdout);
    num_printed_ = text.size();
  }

 private:
  size_t num_printed_ = 0;
};

class GenerateCommand {
 public:
  explicit GenerateCommand(const nlohmann::json& request)
      : request_(request), model_(load_model(request)) {
    options_.max_new_tokens = request.at("max_new_tokens").get<int64_t>();
    options_.temperature = request.at("temperature").get<double>();
    options_.top_p = get<double>(request, "top_p").value_or(1.0);
    options_.top_k = get<int64_t>(request, "top_k");
    options_.min_p = get<double>(request, "min_p").value_or(0.0);
    options_.repetition_penalty = get<double>(request, "repetition_penalty").value_or(1.0);
    options_.seed = static_cast<uint64_t>(get<int64_t>(request, "seed").value_or(0));
    options_.stop_tokens = {model_.text.stop_ids.begin(), model_.text.stop_ids.end()};
    for (const auto& stop : request.value("stop", std::vector<std::string>())) add_stop(stop);
    chat_ = get<bool>(request, "chat").value_or(model_.text.chat_template != nullptr);
    if (chat_ && !model_.text.chat_template) {
      throw ConfigError("the model has no chat template", "--chat",
                        "leave --chat away, or give a model with a chat template");
    }
  }

  int run() {
    if (const auto prompt = get<std::string>(request_, "prompt")) return answer(*prompt);
    return answer_file(request_.at("input").get<std::string>(),
                       request_.at("output").get<std::string>());
  }

  /// @throws DataError naming a tensor of the base that is broken
  void require_finite_base() const {
    weights::require_finite(*model_.checkpoint, request_.at("model").get<std::string>());
  }

 private:
  /// A control token is no part of the text: it stops as a token.
  void add_stop(const std::string& stop) {
    const text::Tokenizer& tokenizer = *model_.text.tokenizer;
    const auto token = tokenizer.token_to_id(stop);
    if (token && tokenizer.is_special(*token))
      options_.stop_tokens.push_back(*token);
    else
      stop_texts_.push_back(stop);
  }

  std::vector<int32_t> prompt_tokens(const std::string& prompt) const {
    Json record = {{"prompt", prompt}};
    if (const auto system = get<std::string>(request_, "system")) {
      if (!chat_) {
        throw ConfigError("--system needs a chat template, and the model has none", "--system",
                          "write what it says into the prompt");
      }
      record = {
          {"messages",
           {{{"role", "system"}, {"content", *system}}, {{"role", "user"}, {"content", prompt}}}}};
    }
    const auto tokens = data::PromptBuilder(model_.text, chat_).build(record, "--prompt");
    if (tokens.empty())
      throw ConfigError("the prompt is empty", "--prompt", "give at least one character");
    return tokens;
  }

  /// One text for each prompt, up to its stop text.
  struct Answers {
    std::vector<model::Generation> results;
    std::vector<std::string> texts;
  };
  Answers generate(const std::vector<std::vector<int32_t>>& prompts,
                   const std::vector<uint64_t>& streams, Printer* printer = nullptr) {
    const text::Tokenizer& tokenizer = *model_.text.tokenizer;
    std::vector<text::GeneratedText> texts(prompts.size(),
                                           text::GeneratedText(tokenizer, stop_texts_));
    const auto read = [&](size_t index, int32_t token) {
      const bool goes_on = texts[index].add(token);
      if (printer) printer->print(texts[index].settled());
      return goes_on;
    };
    const bool reads = printer || !stop_texts_.empty();
    Answers answers;
    answers.results = model::generate(*model_.decoder, prompts, streams, options_,
                                      reads ? model::OnToken(read) : model::OnToken());
    for (size_t i = 0; i < prompts.size(); ++i) {
      answers.texts.push_back(reads ? texts[i].text()
                                    : tokenizer.decode(answers.results[i].tokens, true));
    }
    return answers;
  }

  int answer(const std::string& prompt) {
    const auto output = get<std::string>(request_, "output");
    const bool streams = !request_.value("json", false) && !output;
    const auto tokens = prompt_tokens(prompt);
    Printer printer;
    const Answers answers = generate({tokens}, {0}, streams ? &printer : nullptr);
    if (streams) {
      printer.print(answers.texts[0]);
      std::fputc('\n', stdout);
      return 0;
    }
    const Json object = {{"prompt", prompt},
                         {"completion", answers.texts[0]},
                         {"prompt_tokens", tokens.size()},
                         {"completion_tokens", answers.results[0].tokens.size()},
                         {"finish_reason", finish_reason(answers.results[0])}};
    data::write_records(output.value_or("-"), object.dump() + "\n");
    return 0;
  }

  std::vector<std::vector<int32_t>> prompts_of(
      const std::vector<data::InputRecord>& records) const {
    const data::PromptBuilder builder(model_.text, chat_);
    std::vector<std::vector<int32_t>> prompts(records.size());
    data::parallel_for(static_cast<int64_t>(records.size()), at::get_num_threads(), [&](int64_t i) {
      const data::InputRecord& record = records[static_cast<size_t>(i)];
      std::vector<int32_t>& prompt = prompts[static_cast<size_t>(i)];
      prompt = builder.build(record.record, record.where);
      if (prompt.empty()) throw DataError("the prompt is empty", record.where);
    });
    return prompts;
  }

  int answer_file(const std::string& input, const std::string& output) {
    const auto records = data::read_input_records(input, at::get_num_threads());
    const std::vector<std::vector<int32_t>> prompts = prompts_of(records);
    const auto batch_size = static_cast<size_t>(get<int64_t>(request_, "batch_size").value_or(8));
    std::string text;
    for (size_t first = 0; first < records.size(); first += batch_size) {
      const size_t end = std::min(records.size(), first + batch_size);
      std::vector<uint64_t> streams(end - first);
      std::iota(streams.begin(), streams.end(), first);
      const auto begin = prompts.begin() + static_cast<ptrdiff_t>(first);
      const Answers answers =
          generate({begin, begin + static_cast<ptrdiff_t>(end - first)}, streams);
      for (size_t i = first; i < end; ++i) {
        const model::Generation& result = answers.results[i - first];
        const Json additions = {{"generated", answers.texts[i - first]},
                                {"generated_tokens", result.tokens.size()},
                                {"finish_reason", finish_reason(result)}};
        text += data::extend_json_line(records[i].line, records[i].record, additions) + "\n";
      }
      log::info("{}/{} records", end, records.size());
    }
    data::write_records(output, text);
    return 0;
  }

  const nlohmann::json& request_;
  LoadedModel model_;
  model::SamplingOptions options_;
  std::vector<std::string> stop_texts_;
  bool chat_ = false;
};

}  // namespace

int run_generate(const nlohmann::json& request) {
  GenerateCommand command(request);
  try {
    return command.run();
  } catch (const model::NotFiniteError&) {
    command.require_finite_base();
    throw;
  }
}

}  // namespace sftrun::engine
