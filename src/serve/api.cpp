#include "sftrun/serve/api.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <random>
#include <utility>

#include "answers.h"
#include "parameters.h"
#include "request_head.h"
#include "scored_texts.h"
#include "sftrun/core/json_memory.h"
#include "sftrun/core/log.h"
#include "sftrun/core/strings.h"
#include "sftrun/serve/http_status.h"

namespace sftrun::serve {

namespace {

const CompletionRequest& texts_of(const CompletionRequest& request) {
  return request;
}
const CompletionRequest& texts_of(const ScoringRequest& request) {
  return request.texts;
}

/// A request in progress. Its answers are no longer generated when it is destroyed.
template <class Request, class Response>
struct Progress {
  Progress(Request asked_, std::shared_ptr<const ServedModel> model_, Scheduler& scheduler,
           std::string id, int64_t created)
      : model(std::move(model_)),
        asked(std::move(asked_)),
        channel(scheduler.submit(*model, texts_of(asked))),
        answers(asked, *model, std::move(id), created) {}
  ~Progress() { channel->cancel(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  const std::shared_ptr<const ServedModel> model;
  const Request asked;
  const std::shared_ptr<AnswerChannel> channel;
  Response answers;
};
using Completing = Progress<CompletionRequest, Answers>;
using Scoring = Progress<ScoringRequest, ScoredTexts>;

constexpr auto kBetweenLooks = std::chrono::milliseconds(250);  // at the connection
constexpr std::string_view kHealth = "/health", kModels = "/v1/models", kOneModel = "/v1/models/",
                           kCompletions = "/v1/completions", kChat = "/v1/chat/completions",
                           kLoadAdapter = "/v1/load_lora_adapter",
                           kUnloadAdapter = "/v1/unload_lora_adapter";
constexpr const char* kEncoding = "content-encoding";

HttpResponse text_response(std::string json, int status = 200) {
  HttpResponse response;
  response.status = status;
  response.headers["Content-Type"] = "application/json";
  response.body = std::move(json);
  response.body += '\n';
  return response;
}

HttpResponse json_response(const Json& json, int status = 200) {
  return text_response(dumped(json), status);
}

HttpResponse error_response(const ApiError& error) {
  HttpResponse response = json_response(error.to_json(), error.status());
  if (error.status() == kTooMany) response.headers["Retry-After"] = "1";
  if (error.status() == kUnauthorized) response.headers["WWW-Authenticate"] = "Bearer";
  if (error.status() == kWrongType && error.param() == kEncoding)
    response.headers["Accept-Encoding"] = "identity";
  return response;
}

int64_t unix_time() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string new_id(const char* prefix) {
  std::random_device random;
  return fmt::format("{}-{:08x}{:08x}{:08x}", prefix, random(), random(), random());
}

/// Takes the same time wherever two texts of the same length differ.
bool equal_in_constant_time(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

/// The host of "host:port" or "[address]:port".
std::string_view host_of(std::string_view header) {
  if (header.starts_with('[')) return header.substr(0, header.find(']') + 1);
  return header.substr(0, header.find(':'));
}

/// "q3" of "/models/q3/" and "owner/q3".
std::string_view last_part(std::string_view id) {
  while (id.ends_with('/')) id.remove_suffix(1);
  return id.substr(id.rfind('/') + 1);
}

template <class Request, class Response>
HttpResponse wait_for_all(Progress<Request, Response>& progress, const HttpRequest& request) {
  while (!progress.answers.is_complete()) {
    const auto event = progress.channel->receive(kBetweenLooks);
    if (!event) {
      if (!request.is_connected()) throw ApiError(kClientGone, "the client has gone");
      continue;
    }
    if (event->error) throw *event->error;
    progress.answers.add(*event);
  }
  return text_response(progress.answers.whole());
}

std::string sent_event(const Json& json) {
  return "data: " + dumped(json) + "\n\n";
}

/// Server-sent events (html.spec.whatwg.org/multipage/server-sent-events.html).
/// @return whether more will follow
bool write_next(Completing& progress, std::string& out) {
  const auto event = progress.channel->receive(kBetweenLooks);
  if (!event) return true;
  if (event->error) {
    out += sent_event(event->error->to_json());
    return false;
  }
  for (const Json& chunk : progress.answers.add(*event)) out += sent_event(chunk);
  if (!progress.answers.is_complete()) return true;
  if (progress.asked.includes_usage) out += sent_event(progress.answers.usage_chunk());
  out += "data: [DONE]\n\n";
  return false;
}

/// "/classify, /score, ".
std::string scoring_paths() {
  std::string paths;
  for (const ScoringTaskInfo& info : kScoringTasks) paths += fmt::format("{}, ", info.path);
  return paths;
}

/// @throws ApiError for a model with a head of scores, which writes no text
void require_writes(const ServedModel& model) {
  if (!model.decoder.arch().score) return;
  throw ApiError(kBadRequest,
                 fmt::format("{} has a head of scores and writes no text: use /classify, /score or "
                             "/pooling",
                             model.id),
                 "model");
}

/// @throws ApiError for a model without a head of scores
void require_scores(const ServedModel& model, const ScoringTaskInfo& task) {
  if (model.decoder.arch().score) return;
  throw ApiError(kBadRequest,
                 fmt::format("{} has no head of scores, which {} needs: serve a reward model or a "
                             "classifier, or use {}",
                             model.id, task.path, kCompletions),
                 "model");
}

void require_method(const HttpRequest& request, const std::string& method) {
  const bool asks_for_head = method == "GET" && request.method == "HEAD";  // sent without a body
  if (request.method != method && !asks_for_head)
    throw ApiError(kWrongMethod,
                   fmt::format("{} takes {}, not {}", request.path, method, request.method));
}

/// JSON is in UTF-8 (RFC 8259, section 8.1). Web pages may send other types to any address without
/// asking it first.
void require_readable_type(const HttpRequest& request) {
  const MediaType sent = parse_media_type(request.header("content-type"));
  if (sent.type != "application/json")
    throw ApiError(kWrongType, "the header must be \"Content-Type: application/json\"");
  const bool is_utf8 = sent.charset.empty() || sent.charset == "utf-8" || sent.charset == "utf8" ||
                       sent.charset == "us-ascii";
  if (!is_utf8)
    throw ApiError(kWrongType,
                   fmt::format("the body must be in UTF-8, not in {}: convert it, and send "
                               "\"Content-Type: application/json\"",
                               excerpt(sent.charset)),
                   "content-type");
  const std::string encoding = ascii_lower(request.header(kEncoding));
  if (!encoding.empty() && encoding != "identity")
    throw ApiError(kWrongType,
                   fmt::format("the body must not be compressed ({}): send plain JSON, without the "
                               "header Content-Encoding",
                               excerpt(encoding)),
                   kEncoding);
}

}  // namespace

namespace {

bool changes_adapters(std::string_view path) {
  return path == kLoadAdapter || path == kUnloadAdapter;
}

constexpr size_t kMaxName = 256, kMaxPath = 4096;  // bytes

[[noreturn]] void refuse_value(const std::string& key, const std::string& why) {
  throw ApiError(kBadRequest, fmt::format("\"{}\" {}", key, why), key);
}

/// @throws ApiError for another thing than a text of one line
std::string line_of(Parameters& parameters, const std::string& key, size_t max_bytes) {
  const Json* value = parameters.find(key);
  if (value == nullptr) refuse_value(key, "is missing");
  if (!value->is_string() || value->get_ref<const std::string&>().empty())
    refuse_value(key, "must be a string that is not empty");
  std::string text = value->get<std::string>();
  if (text.size() > max_bytes)
    refuse_value(key, fmt::format("has {} bytes; at most {} are allowed", text.size(), max_bytes));
  if (std::ranges::any_of(text, [](unsigned char byte) { return byte < ' '; }))
    refuse_value(key, "has a control character");
  return text;
}

/// As vLLM says it.
HttpResponse plain_text(std::string text) {
  return {.headers = {{"Content-Type", "text/plain; charset=utf-8"}},
          .body = std::move(text) + "\n"};
}

}  // namespace

bool is_own_name(std::string_view host) {
  if (host == "localhost" || host == "::1" || host == "[::1]") return true;
  in_addr address{};
  constexpr uint32_t kLoopback = 127;  // the first of the four numbers
  return ::inet_pton(AF_INET, std::string(host).c_str(), &address) == 1 &&
         ntohl(address.s_addr) >> 24 == kLoopback;
}

Api::Api(Scheduler& scheduler, ApiOptions options)
    : scheduler_(scheduler),
      first_models_(scheduler.models()),
      options_(std::move(options)),
      created_(unix_time()) {}

HttpResponse Api::handle(HttpRequest request) {
  HttpResponse response;
  try {
    response = route(request);
  } catch (const ApiError& error) {
    response = error_response(error);
  } catch (const std::bad_alloc&) {
    request.drop_body();
    log::error("{} {} failed: out of memory", request.method, excerpt(request.path));
    response = error_response({kUnavailable, "the server has run out of memory; ask for less"});
  } catch (const std::exception& error) {
    log::error("{} {} failed: {}", request.method, excerpt(request.path), error.what());
    response = error_response({kFailed, error.what()});
  }
  log::debug("{} {} {}", request.method, excerpt(request.path), response.status);
  return response;
}

std::optional<HttpResponse> Api::refusal(const HttpRequest& head) const {
  try {
    require_valid_head(head);
    return std::nullopt;
  } catch (const ApiError& error) {
    log::debug("{} {} {}", head.method, excerpt(head.path), error.status());
    return error_response(error);
  }
}

void Api::require_valid_head(const HttpRequest& request) const {
  if (request.path == kHealth) return require_method(request, "GET");
  require_access(request);
  if (request.path == kModels || request.path.starts_with(kOneModel))
    return require_method(request, "GET");
  if (request.path != kChat && request.path != kCompletions && !changes_adapters(request.path) &&
      find_scoring_task(request.path) == nullptr) {
    const std::string of_adapters =
        options_.load_adapter ? fmt::format("{}, {}, ", kLoadAdapter, kUnloadAdapter) : "";
    throw ApiError(kNotFound, fmt::format("there is no {}: the server has {}, {}, {}{}{} and {}",
                                          excerpt(request.path), kCompletions, kChat,
                                          scoring_paths(), of_adapters, kModels, kHealth));
  }
  require_method(request, "POST");
  if (changes_adapters(request.path) && !options_.load_adapter)
    throw ApiError(kForbidden, fmt::format("{} reads files of this machine: start the server with "
                                           "--allow-adapter-updates",
                                           request.path));
  require_readable_type(request);
}

HttpResponse Api::route(HttpRequest& request) {
  require_valid_head(request);
  if (request.path == kHealth) return health();
  if (request.path == kModels) return list_models();
  if (changes_adapters(request.path)) return change_adapters(request);
  if (request.path == kChat || request.path == kCompletions)
    return complete(request, request.path == kChat);
  if (const ScoringTaskInfo* task = find_scoring_task(request.path)) return score(request, *task);
  return json_response(describe(*find_model({{"model", request.path.substr(kOneModel.size())}})));
}

HttpResponse Api::health() const {
  const Load load = scheduler_.load();
  return json_response({{"status", "ok"},
                        {"active", load.num_active},
                        {"waiting", load.num_waiting},
                        {"generated_tokens", load.num_tokens}});
}

void Api::require_access(const HttpRequest& request) const {
  const std::string host = ascii_lower(request.header("host"));
  const bool names_host = request.headers.contains("host");  // only HTTP/1.0 may leave it out
  if (options_.is_local && names_host && !is_own_name(host_of(host))) {
    throw ApiError(kForbidden, fmt::format("the server answers only requests to localhost, not to "
                                           "{}: set the header Host to localhost",
                                           host.empty() ? "an empty Host" : excerpt(host)));
  }
  if (options_.token.empty()) return;
  const std::string sent = request.header("authorization");
  if (!equal_in_constant_time(sent, "Bearer " + options_.token))
    throw ApiError(kUnauthorized,
                   sent.empty() ? "the request needs the header \"Authorization: Bearer TOKEN\""
                                : "the token in the header \"Authorization: Bearer TOKEN\" is not "
                                  "that of the server",
                   {}, "invalid_api_key");
}

Json Api::describe(const ServedModel& model) const {
  Json described = {{"id", model.id},
                    {"object", "model"},
                    {"created", created_},
                    {"owned_by", "sftrun"},
                    {"max_model_len", model.max_length}};
  if (const auto& head = model.decoder.arch().score) described["num_classes"] = head->num_labels;
  return described;
}

HttpResponse Api::list_models() const {
  Json list = Json::array();
  for (const auto& model : scheduler_.models()) list.push_back(describe(*model));
  return json_response({{"object", "list"}, {"data", list}});
}

std::optional<size_t> find_id(const std::vector<std::string>& ids, const std::string& name) {
  std::vector<size_t> of_that_name;  // as the last part of their paths
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] == name) return i;
    if (last_part(ids[i]) == name) of_that_name.push_back(i);
  }
  if (of_that_name.size() != 1) return std::nullopt;
  return of_that_name.front();
}

std::shared_ptr<const ServedModel> Api::find_model(const Json& body) const {
  const ServedModels models = scheduler_.models();
  const auto name = body.find("model");
  if (name == body.end() || name->is_null()) return models.front();
  std::vector<std::string> ids;
  for (const auto& model : models) ids.push_back(model->id);
  const auto found =
      name->is_string() ? find_id(ids, name->get_ref<const std::string&>()) : std::nullopt;
  if (found) return models[*found];
  throw ApiError(kNotFound,
                 fmt::format("there is no model {}; the server has {}", excerpt(dumped(*name)),
                             join(ids, ", ")),
                 "model", "model_not_found");
}

template <class Begin>
auto Api::begun(HttpRequest& request, const Begin& begin) {
  constexpr size_t kMuch = size_t{1} << 20;
  const size_t size = request.body.size();
  std::unique_lock reads_alone(large_bodies_, std::defer_lock);
  if (size > HttpServer::kSmallBody) reads_alone.lock();
  // Also after an error: the allocator would keep what was freed, for each thread.
  const std::shared_ptr<void> trims(nullptr, [&](void*) {
    request.drop_body();
    if (size >= kMuch) ::malloc_trim(0);
  });
  Json body = parse_body(request.body);
  const JsonEmptier emptier(body);
  request.drop_body();
  return begin(body);
}

HttpResponse Api::complete(HttpRequest& request, bool is_chat) {
  const auto progress = begun(request, [&](Json& body) {
    const std::shared_ptr<const ServedModel> model = find_model(body);
    require_writes(*model);
    CompletionRequest asked = is_chat ? parse_chat(std::move(body), *model, options_.defaults)
                                      : parse_completion(body, *model);
    return std::make_shared<Completing>(std::move(asked), model, scheduler_,
                                        new_id(is_chat ? "chatcmpl" : "cmpl"), unix_time());
  });
  if (!progress->asked.stream) return wait_for_all(*progress, request);
  return {.headers = {{"Content-Type", "text/event-stream"}, {"Cache-Control", "no-cache"}},
          .stream = [progress](std::string& out) { return write_next(*progress, out); }};
}

HttpResponse Api::score(HttpRequest& request, const ScoringTaskInfo& task) {
  const auto progress = begun(request, [&](Json& body) {
    const std::shared_ptr<const ServedModel> model = find_model(body);
    require_scores(*model, task);
    return std::make_shared<Scoring>(parse_scoring(std::move(body), task, *model), model,
                                     scheduler_, new_id(task.id_prefix), unix_time());
  });
  return wait_for_all(*progress, request);
}

HttpResponse Api::change_adapters(HttpRequest& request) {
  return begun(request, [&](const Json& body) {
    return request.path == kLoadAdapter ? load_adapter(body) : unload_adapter(body);
  });
}

std::shared_ptr<const ServedModel> Api::loaded_adapter(const std::string& name) const {
  const auto is_it = [&](const std::shared_ptr<ServedModel>& model) { return model->id == name; };
  if (std::ranges::any_of(first_models_, is_it))
    throw ApiError(
        kBadRequest,
        fmt::format("{} is a model that the server was started with, and stays", excerpt(name)),
        "lora_name");
  const ServedModels models = scheduler_.models();
  const auto found = std::ranges::find_if(models, is_it);
  return found == models.end() ? nullptr : *found;
}

/// Parameters and errors are vLLM's (vllm/entrypoints/openai/models/serving.py).
HttpResponse Api::load_adapter(const Json& body) {
  Parameters parameters(body);
  const std::string name = line_of(parameters, "lora_name", kMaxName),
                    path = line_of(parameters, "lora_path", kMaxPath);
  const bool in_place = parameters.flag("load_inplace");
  parameters.require_no_others();
  scheduler_.between_steps([&] {
    if (loaded_adapter(name) != nullptr && !in_place)
      throw ApiError(kBadRequest,
                     fmt::format("the adapter {} has already been loaded: set \"load_inplace\" to "
                                 "true, or unload it first",
                                 excerpt(name)),
                     "lora_name");
    scheduler_.put(options_.load_adapter(name, path));
  });
  log::info("adapter {} loaded from {}", excerpt(name), excerpt(path));
  return plain_text(fmt::format("Success: LoRA adapter '{}' added successfully.", name));
}

HttpResponse Api::unload_adapter(const Json& body) {
  Parameters parameters(body);
  const std::string name = line_of(parameters, "lora_name", kMaxName);
  parameters.ignore({"lora_int_id"});
  parameters.require_no_others();
  scheduler_.between_steps([&] {
    const std::shared_ptr<const ServedModel> model = loaded_adapter(name);
    if (model == nullptr)
      throw ApiError(kNotFound, fmt::format("the adapter {} cannot be found", excerpt(name)),
                     "lora_name");
    scheduler_.remove(*model);
  });
  log::info("adapter {} unloaded", excerpt(name));
  return plain_text(fmt::format("Success: LoRA adapter '{}' removed successfully.", name));
}

}  // namespace sftrun::serve
