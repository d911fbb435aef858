#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "command_ranks.h"
#include "commands.h"
#include "line_reader.h"
#include "rank.h"
#include "session.h"
#include "sftrun/core/clock.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/standard_streams.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/user_path.h"
#include "sftrun/core/utf8.h"
#include "sftrun/data/image_input.h"
#include "sftrun/data/media.h"
#include "sftrun/data/prompt.h"
#include "sftrun/images/decode.h"
#include "sftrun/model/generate.h"
#include "sftrun/serve/api.h"
#include "text_generator.h"

namespace sftrun::engine {
namespace {

using data::Json;

constexpr const char* kHelp = R"(/reset          begin a new conversation
/system TEXT    begin a new one with this system message; without TEXT: with none
/image FILE     show an image to the model with the next message
/adapter NAME   switch to another adapter; without NAME: list them
/retry          answer the last message again; with --temperature it is another answer
/save FILE      append the conversation to FILE as a line of JSON that `sftrun train` reads
/quit           end (also Ctrl-D). Ctrl-C ends an answer.
A line that ends in \ continues in the next one. A message that begins with a slash is written with two: //etc.
)";

/// An answer must not control the terminal.
void remove_controls(std::string& text) {
  std::erase_if(text, [](char byte) {
    const auto code = static_cast<unsigned char>(byte);
    constexpr unsigned char kSpace = 0x20, kDelete = 0x7f;
    return (code < kSpace && byte != '\n' && byte != '\t') || code == kDelete;
  });
}

std::atomic<bool> was_interrupted{false};  // a signal handler can use only static variables

/// Ctrl-C ends an answer, not the program, while this object lives.
class InterruptWatch {
 public:
  /// @param flags SA_RESTART: writing continues, and nothing of an answer is lost; 0: it ends the reading of a line
  explicit InterruptWatch(int flags) {
    struct sigaction action {};
    action.sa_handler = [](int) { was_interrupted = true; };
    action.sa_flags = flags;
    sigemptyset(&action.sa_mask);
    ::sigaction(SIGINT, &action, &former_);
    const bool was_ignored = former_.sa_handler == SIG_IGN;  // started in the background
    if (was_ignored) ::sigaction(SIGINT, &former_, nullptr);
  }
  ~InterruptWatch() { ::sigaction(SIGINT, &former_, nullptr); }
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

 private:
  struct sigaction former_ {};
};

/// SIGTERM ends the reading of a line while this object lives. Its handler decides what follows.
class StopEndsReading {
 public:
  StopEndsReading() {
    ::sigaction(SIGTERM, nullptr, &former_);
    struct sigaction action = former_;
    action.sa_flags &= ~SA_RESTART;
    ::sigaction(SIGTERM, &action, nullptr);
  }
  ~StopEndsReading() { ::sigaction(SIGTERM, &former_, nullptr); }
  StopEndsReading(const StopEndsReading&) = delete;
  StopEndsReading& operator=(const StopEndsReading&) = delete;

 private:
  struct sigaction former_ {};
};

/// The base model and its adapters; each is loaded when it is used first.
class Models {
 public:
  explicit Models(const app::ChatRequest& request) : request_(request) {}

  /// Of models that ranks have together: all of them, because all ranks load one at the same time.
  /// @return 0, or the exit code of a stop
  int load_all(CommandRanks& ranks) {
    for (const std::string& name : names()) {
      LoadedModel loaded;
      if (const int code = ranks.load_model(request_of(name), loaded, shared_bases())) return code;
      require_language_head(loaded);
      loaded_.emplace(name, std::move(loaded));
    }
    return 0;
  }

  void warn_of_idle_flags() const {
    for (const auto& [name, loaded] : loaded_)
      warn_of_idle_template_flag(request_.models.base, {&loaded.text});
  }

  const LoadedModel& get(const std::string& name) {
    const auto found = loaded_.find(name);
    if (found != loaded_.end()) return found->second;
    const LoadedModel& loaded =
        loaded_
            .emplace(name, load_model(request_of(name), request_.ranks.compute, 0, shared_bases(),
                                      /*is_first=*/loaded_.empty()))
            .first->second;
    require_language_head(loaded);
    warn_of_idle_template_flag(request_.models.base, {&loaded.text});
    return loaded;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const app::NamedAdapter& entry : request_.models.models) names.push_back(entry.name);
    return names;
  }

 private:
  app::ModelRequest request_of(const std::string& name) const {
    app::ModelRequest named = request_.models.one(
        *std::ranges::find(request_.models.models, name, &app::NamedAdapter::name));
    named.takes_images = true;
    return named;
  }
  SharedBases* shared_bases() { return request_.models.models.size() > 1 ? &bases_ : nullptr; }

  const app::ChatRequest& request_;
  SharedBases bases_;
  std::map<std::string, LoadedModel> loaded_;
};

/// Puts the files of images into the prompt, with which the other ranks of the model get them: a damaged one is found before they begin,
/// and none that changes afterwards stops them.
/// @throws DataError naming the file
void hold_images(std::vector<data::SequenceMedia>& images) {
  for (data::SequenceMedia& image : images) {
    if (image.media.bytes != nullptr) continue;
    const auto file = std::make_shared<const std::string>(data::read_media(image.media));
    const images::Image pixels =
        images::decode(std::as_bytes(std::span(*file)), {}, image.media.path);
    if (pixels.width != image.width || pixels.height != image.height)
      throw DataError("the image changed while it was read", image.media.path,
                      "send the message again");
    image.media = {.bytes = file};
  }
}

class ChatConversation {
 public:
  /// @param rank of the ranks that have the models together; null: this process alone has them, and
  /// a stop signal ends it at once
  ChatConversation(const app::ChatRequest& request, Models& models, const Rank* rank)
      : request_(request),
        models_(models),
        rank_(rank),
        name_(models.names().front()),
        system_(request.system.value_or("")) {
    use(name_);
    reset();
  }

  int run() {
    const InterruptWatch watch(SA_RESTART);
    LineReader lines("> ");
    is_terminal_ = lines.is_terminal();
    if (is_terminal_) fmt::print("{} (/help lists the commands)\n", name_);
    for (std::string line; !is_over_ && read(lines, line);) {
      require_standard_output();  // nobody would see the answers
      if (!is_valid_utf8(line))
        fmt::print("the line is not UTF-8\n");
      else if (line.starts_with('/') && !line.starts_with("//"))
        command(line);
      else if (!trim(line).empty())
        ask(line.starts_with("//") ? line.substr(1) : line);
    }
    return 0;
  }

 private:
  /// A line, or several that end in a backslash.   @return false: the end
  bool read(LineReader& lines, std::string& whole) const {
    whole.clear();
    for (std::string line;;) {
      const LineReader::End end = [&] {
        const InterruptWatch of_reading(0);
        const StopEndsReading of_stops;
        return lines.read(line);
      }();
      if (end == LineReader::End::kEnd) return !whole.empty();
      if (is_stopped()) return false;
      if (end == LineReader::End::kInterrupted) {
        fmt::print("\n(Ctrl-D or /quit ends)\n");
        return whole.clear(), true;
      }
      whole += line;
      if (!whole.ends_with('\\')) return true;
      whole.back() = '\n';
    }
  }

  void command(const std::string& line) {
    const std::string word = line.substr(0, line.find(' '));
    const std::string rest(trim(std::string_view(line).substr(word.size())));
    static const std::map<std::string, void (ChatConversation::*)(const std::string&)> commands = {
        {"/help", &ChatConversation::help},         {"/reset", &ChatConversation::begin},
        {"/system", &ChatConversation::set_system}, {"/adapter", &ChatConversation::set_adapter},
        {"/image", &ChatConversation::add_image},   {"/retry", &ChatConversation::retry},
        {"/save", &ChatConversation::save},         {"/quit", &ChatConversation::quit},
        {"/exit", &ChatConversation::quit}};
    const auto found = commands.find(word);
    if (found == commands.end()) {
      fmt::print("unknown command {}; /help lists the commands\n", excerpt(word));
      return;
    }
    try {
      (this->*found->second)(rest);
    } catch (const Error& error) {
      if (is_with_others_) throw;
      fmt::print("{}\n", error.what());
    }
  }

  void help(const std::string& /*rest*/) { fmt::print("{}", kHelp); }
  void quit(const std::string& /*rest*/) { is_over_ = true; }
  void begin(const std::string& /*rest*/) {
    reset();
    fmt::print("(new conversation)\n");
  }
  void set_system(const std::string& text) {
    system_ = text;
    begin({});
  }

  void set_adapter(const std::string& name) {
    const std::vector<std::string> names = models_.names();
    if (name.empty()) {
      for (const std::string& one : names) fmt::print("{} {}\n", one == name_ ? "*" : " ", one);
    } else if (const auto found = serve::find_id(names, name)) {
      use(names[*found]);
      fmt::print("({} answers now)\n", names[*found]);
    } else {
      fmt::print("there is no {}; there are {}\n", excerpt(name), join(names, ", "));
    }
  }

  void add_image(const std::string& file) {
    if (file.empty()) throw ConfigError("/image needs the name of a file");
    const auto& input = model_->text.images;
    if (input != nullptr && input->refusal) throw *input->refusal;
    if (!reads_images(model_->text)) throw ConfigError(fmt::format("{} reads text alone", name_));
    // /save writes a file elsewhere, to which a relative path would be another one.
    const std::filesystem::path path = std::filesystem::absolute(expanded_home(file));
    if (!leads_to_file(path)) throw DataError("no such file", path.string());
    Json part = {{"type", "image"}};
    part["path"] = path.string();
    images_.push_back(std::move(part));
    fmt::print("({} with the next message)\n", counted(images_.size(), "image"));
  }

  void retry(const std::string& /*rest*/) {
    if (messages_.empty() || messages_.back()["role"] != "assistant") {
      fmt::print("there is no answer yet\n");
      return;
    }
    messages_.erase(messages_.size() - 1);
    answer();
  }

  void save(const std::string& file) {
    if (file.empty()) throw ConfigError("/save needs the name of a file");
    if (messages_.empty() || messages_.back()["role"] != "assistant")
      throw DataError("there is no answer to save yet");
    LineFile(file).append(Json{{"messages", messages_}}.dump());
    fmt::print("(appended to {})\n", file);
  }

  void reset() {
    messages_ = Json::array(), images_ = Json::array();
    if (!system_.empty()) messages_.push_back({{"role", "system"}, {"content", system_}});
  }

  void use(const std::string& name) {
    const LoadedModel& model = models_.get(name);
    if (!model.text.chat_template) {
      throw ConfigError(fmt::format("{} has no chat template", name), "--model",
                        "use `sftrun generate`, which continues texts");
    }
    name_ = name;
    model_ = &model;
  }

  void ask(const std::string& text) {
    Json content = text;
    if (!images_.empty()) {
      content = std::exchange(images_, Json::array());
      content.push_back({{"type", "text"}, {"text", text}});
    }
    messages_.push_back({{"role", "user"}, {"content", std::move(content)}});
    if (!answer()) messages_.erase(messages_.size() - 1);
  }

  /// @return false: there is no answer
  bool answer() {
    try {
      generate();
      return true;
    } catch (const Error& error) {
      if (is_with_others_) throw;  // they do not know of it, and would wait for ever
      fmt::print("{}\n", error.what());
      return false;
    }
  }

  /// Prints the answer to the conversation as it comes, and adds it.
  void generate() {
    data::PromptTokens prompt = data::PromptBuilder(model_->text, true)
                                    .build({{"messages", messages_}}, "the conversation");
    if (model_->copy) hold_images(prompt.media);
    model::SamplingOptions options = sampling_options(request_.sampling);
    limit_to_context(options, std::ssize(prompt.ids));
    std::string shown;
    const auto show = [&](std::string_view text) {
      if (text.size() <= shown.size()) return;
      std::string fresh(text.substr(shown.size()));
      if (is_terminal_) remove_controls(fresh);
      std::fwrite(fresh.data(), 1, fresh.size(), stdout);
      std::fflush(stdout);
      shown = text;
    };
    was_interrupted = false;
    bool is_taken = false;
    size_t num_tokens = 0;
    const double start = monotonic_seconds();
    call_others();
    TextGenerator(model_->text, options, request_.sampling.stop)
        .run(*model_->decoder, 1,
             {.next_prompt = [&]() -> std::optional<model::Prompt> {
                if (std::exchange(is_taken, true)) return std::nullopt;
                return model::Prompt{0, prompt.ids, num_answers_++, prompt.media};
              },
              .on_answer =
                  [&](size_t, Answer&& finished) {
                    num_tokens = finished.num_tokens;
                    show(finished.text);
                  },
              .on_text = show,
              .before_step = [this](size_t) { return !was_interrupted && !is_stopped(); }},
             model_->copy.get());
    is_with_others_ = false;
    std::fputc('\n', stdout);
    std::fflush(stdout);
    messages_.push_back({{"role", "assistant"}, {"content", shown}});
    if (was_interrupted.exchange(false)) fmt::print("(interrupted)\n");
    const double seconds = monotonic_seconds() - start;
    if (is_terminal_ && num_tokens > 0)
      log::debug("{} tokens, {:.1f} tokens/s", num_tokens,
                 static_cast<double>(num_tokens) / seconds);
  }

  bool is_stopped() const { return rank_ != nullptr && rank_->stop_exit_code() != 0; }

  /// The other ranks of the model compute with it now.
  void call_others() {
    if (!model_->copy) return;
    is_with_others_ = true;
    model_->copy->call();
    model_->copy->from_lead(name_);
  }

  size_t num_turns() const {
    return static_cast<size_t>(std::count_if(messages_.begin(), messages_.end(),
                                             [](const Json& m) { return m["role"] == "user"; }));
  }

  void limit_to_context(model::SamplingOptions& options, int64_t num_tokens) const {
    const int64_t context = model_->checkpoint->arch().max_position_embeddings;
    if (context <= 0) return;
    if (num_tokens >= context) {
      throw DataError(fmt::format("the conversation has {} tokens, and the model's context is {}",
                                  num_tokens, context),
                      {}, num_turns() > 1 ? "/reset begins a new one" : "write a shorter message");
    }
    options.max_new_tokens = std::min(options.max_new_tokens, context - num_tokens);
  }

  const app::ChatRequest& request_;
  Models& models_;
  const Rank* rank_;
  std::string name_, system_;
  const LoadedModel* model_ = nullptr;
  Json messages_;
  Json images_ = Json::array();  // parts of the next message
  uint64_t num_answers_ = 0;     // each has its own random numbers
  bool is_terminal_ = false;
  bool is_over_ = false;
  bool is_with_others_ = false;  // the other ranks of the model are in its passes
};

/// Makes the passes of the rank that has the terminal, until its conversation ends.
void follow(Models& models) {
  const LoadedModel& first = models.get(models.names().front());
  for (;;) {
    first.copy->await_call();
    const std::string name = first.copy->from_lead({});
    if (name.empty()) return;
    const LoadedModel& model = models.get(name);
    model::generate(*model.decoder, {}, 1, {}, model.copy.get());
  }
}

/// With models that several ranks have together. The first one has the terminal.
int chat_together(const app::ChatRequest& request, Rank& rank) {
  CommandRanks ranks(request.ranks, rank);
  ranks.require_one_copy();
  if (const int code = ranks.connect()) return code;
  Models models(request);
  if (const int code = models.load_all(ranks)) return code;
  if (!rank.is_main()) {
    follow(models);
    return rank.stop_exit_code();
  }
  models.warn_of_idle_flags();
  ChatConversation(request, models, &rank).run();
  if (const auto& copy = models.get(models.names().front()).copy) {
    copy->call();
    copy->from_lead({});
  }
  return rank.stop_exit_code();
}

}  // namespace

int run_chat(const app::ChatRequest& request) {
  if (request.ranks.parallel) return run_as_ranks(request, chat_together);
  Models models(request);
  return ChatConversation(request, models, nullptr).run();
}

}  // namespace sftrun::engine
