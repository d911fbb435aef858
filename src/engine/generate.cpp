#include "sftrun/model/generate.h"

#include <cstdio>
#include <string>
#include <vector>

#include "commands.h"
#include "session.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "sftrun/core/units.h"
#include "sftrun/data/json_lines.h"

namespace sftrun::engine {
namespace {

using data::Json;

struct Job {
  std::string_view line;
  Json record;
  std::vector<int32_t> prompt;
};

class GenerateCommand {
 public:
  explicit GenerateCommand(const nlohmann::json& request)
      : request_(request), model_(load_model(request)) {
    options_.max_new_tokens = request.at("max_new_tokens").get<int64_t>();
    options_.temperature = request.at("temperature").get<double>();
    options_.top_p = get<double>(request, "top_p").value_or(1.0);
    options_.top_k = get<int64_t>(request, "top_k");
    options_.seed = static_cast<uint64_t>(get<int64_t>(request, "seed").value_or(0));
    options_.stop_tokens = {model_.text.stop_ids.begin(), model_.text.stop_ids.end()};
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
  std::vector<int32_t> chat_tokens(const Json& messages, const Json& tools) const {
    text::RenderOptions options = model_.text.render_defaults;
    options.add_generation_prompt = true;
    options.tools = tools;
    const std::string text = model_.text.chat_template->render(messages, options).text;
    auto tokens = model_.text.tokenizer->encode(text, /*add_special_tokens=*/false);
    data::require_embedded(tokens, model_.text, "the prompt");
    return tokens;
  }

  std::vector<int32_t> prompt_tokens(const std::string& prompt) const {
    std::vector<int32_t> tokens;
    if (chat_) {
      Json messages = Json::array();
      if (const auto system = get<std::string>(request_, "system")) {
        messages.push_back({{"role", "system"}, {"content", *system}});
      }
      messages.push_back({{"role", "user"}, {"content", prompt}});
      tokens = chat_tokens(messages, nullptr);
    } else {
      if (get<std::string>(request_, "system")) {
        throw ConfigError("--system needs a chat template, and the model has none", "--system",
                          "write what it says into the prompt");
      }
      tokens = model_.text.tokenizer->encode(prompt, /*add_special_tokens=*/true);
      data::require_embedded(tokens, model_.text, "the prompt");
    }
    if (tokens.empty())
      throw ConfigError("the prompt is empty", "--prompt", "give at least one character");
    return tokens;
  }

  int answer(const std::string& prompt) {
    const bool json = request_.value("json", false),
               stream = !json && get<std::string>(request_, "output") == std::nullopt;
    const auto tokens = prompt_tokens(prompt);
    std::string shown;
    std::vector<int32_t> so_far;
    const auto print_new = [&](size_t, int32_t token) {
      so_far.push_back(token);
      const std::string text = model_.text.tokenizer->decode(so_far, /*skip_special_tokens=*/true);
      if (text.ends_with("\xef\xbf\xbd")) return;  // in the middle of a character
      std::fwrite(text.data() + shown.size(), 1, text.size() - shown.size(), stdout);
      std::fflush(stdout);
      shown = text;
    };
    const auto results =
        model::generate(*model_.decoder, {tokens}, {0}, options_,
                        stream ? std::function<void(size_t, int32_t)>(print_new) : nullptr);
    const std::string text = model_.text.tokenizer->decode(results[0].tokens, true);
    if (stream) {
      std::fwrite(text.data() + shown.size(), 1, text.size() - shown.size(), stdout);
      std::fputc('\n', stdout);
      return 0;
    }
    const Json object = {{"prompt", prompt},
                         {"completion", text},
                         {"prompt_tokens", tokens.size()},
                         {"completion_tokens", results[0].tokens.size()},
                         {"finish_reason", results[0].stopped ? "stop" : "length"}};
    const std::string line = object.dump() + "\n";
    if (const auto output = get<std::string>(request_, "output"))
      write_file_atomically(*output, line);
    else
      std::fwrite(line.data(), 1, line.size(), stdout);
    return 0;
  }

  Job make_job(const data::JsonLine& line, const std::string& where) const {
    Job job;
    job.line = line.text;
    job.record = data::parse_json_line(line.text, where);
    const Json& record = job.record;
    const Json tools = record.contains("tools") ? record["tools"] : Json();
    if (record.contains("messages") && record["messages"].is_array()) {
      if (!model_.text.chat_template)
        throw DataError("the model has no chat template, which messages need", where);
      Json messages = record["messages"];
      // An answer that is already there is what is to be written anew.
      if (!messages.empty() && messages.back().value("role", "") == "assistant")
        messages.erase(messages.size() - 1);
      job.prompt = chat_tokens(messages, tools);
    } else if (record.contains("prompt") && record["prompt"].is_array()) {
      job.prompt = chat_tokens(record["prompt"], tools);
    } else if (record.contains("prompt") && record["prompt"].is_string()) {
      job.prompt = prompt_tokens(record["prompt"].get<std::string>());
    } else if (record.contains("text") && record["text"].is_string()) {
      job.prompt = model_.text.tokenizer->encode(record["text"].get<std::string>(), true);
      data::require_embedded(job.prompt, model_.text, where);
    } else {
      throw DataError("the record has no \"messages\", \"prompt\" or \"text\"", where);
    }
    if (job.prompt.empty()) throw DataError("the prompt is empty", where);
    return job;
  }

  int answer_file(const std::string& input, const std::string& output) {
    const std::string content = input == "-" ? read_standard_input() : read_text_file(input);
    std::vector<Job> jobs;
    for (const data::JsonLine& line : data::split_json_lines(content, input)) {
      jobs.push_back(make_job(line, fmt::format("{}:{}", input, line.number)));
    }
    const auto batch_size = static_cast<size_t>(get<int64_t>(request_, "batch_size").value_or(8));
    std::string text;
    for (size_t first = 0; first < jobs.size(); first += batch_size) {
      const size_t end = std::min(jobs.size(), first + batch_size);
      std::vector<std::vector<int32_t>> prompts;
      std::vector<uint64_t> streams;
      for (size_t i = first; i < end; ++i) {
        prompts.push_back(jobs[i].prompt);
        streams.push_back(i);
      }
      const auto results = model::generate(*model_.decoder, prompts, streams, options_);
      for (size_t i = first; i < end; ++i) {
        const model::Generation& result = results[i - first];
        const Json additions = {{"generated", model_.text.tokenizer->decode(result.tokens, true)},
                                {"generated_tokens", result.tokens.size()},
                                {"finish_reason", result.stopped ? "stop" : "length"}};
        text += data::extend_json_line(jobs[i].line, jobs[i].record, additions) + "\n";
      }
      log::info("{}/{} records", end, jobs.size());
    }
    if (output == "-")
      std::fwrite(text.data(), 1, text.size(), stdout);
    else
      write_file_atomically(output, text);
    return 0;
  }

  const nlohmann::json& request_;
  LoadedModel model_;
  model::SamplingOptions options_;
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
