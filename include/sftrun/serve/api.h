#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/serve/completion_request.h"
#include "sftrun/serve/http_server.h"
#include "sftrun/serve/scheduler.h"
#include "sftrun/serve/scoring_request.h"
#include "sftrun/serve/served_model.h"

namespace sftrun::serve {

/// Whether a host is this machine on its loopback network: "localhost", 127.x.y.z, "::1" or "[::1]".
bool is_own_name(std::string_view host);

struct ApiOptions {
  std::string token;  ///< that clients must send as "Authorization: Bearer TOKEN"; empty: none
  /// Answer only requests for this machine's own names, so that a web page cannot reach the server
  /// through a name of its own (DNS rebinding).
  bool is_local = true;
  RequestDefaults defaults;
  /// Loads an adapter of this machine under a name, on the thread that generates. Empty: clients may not
  /// load and unload adapters.
  std::function<std::shared_ptr<ServedModel>(const std::string& name, const std::string& path)>
      load_adapter = {};
};

/// OpenAI's API: /v1/models, /v1/completions, /v1/chat/completions; vLLM's /classify, /score and /pooling
/// for models with a head of scores; /health; and vLLM's /v1/load_lora_adapter and
/// /v1/unload_lora_adapter.
class Api {
 public:
  /// @param scheduler of the models, of which the first answers requests that name none. It must outlive
  /// this object. Models that it has now cannot be unloaded.
  Api(Scheduler& scheduler, ApiOptions options);

  /// Refuses by its headers a request that `handle` would refuse whatever its body is. Thread-safe.
  std::optional<HttpResponse> refusal(const HttpRequest& head) const;
  /// Thread-safe. Errors are responses; nothing but std::bad_alloc is thrown.
  HttpResponse handle(HttpRequest request);

 private:
  void require_valid_head(const HttpRequest& request) const;
  HttpResponse route(HttpRequest& request);
  Json describe(const ServedModel& model) const;
  HttpResponse list_models() const;
  HttpResponse health() const;
  HttpResponse complete(HttpRequest& request, bool is_chat);
  HttpResponse score(HttpRequest& request, const ScoringTaskInfo& task);
  /// Reads the request, and frees its body.   @return what `begin` makes of its JSON and its model
  template <class Begin>
  auto begun(HttpRequest& request, const Begin& begin);
  std::shared_ptr<const ServedModel> find_model(const Json& body) const;
  HttpResponse change_adapters(HttpRequest& request);
  HttpResponse load_adapter(const Json& body);
  HttpResponse unload_adapter(const Json& body);
  /// The model of this name that a client loaded; null: there is none.   @throws ApiError
  std::shared_ptr<const ServedModel> loaded_adapter(const std::string& name) const;
  void require_access(const HttpRequest& request) const;

  Scheduler& scheduler_;
  const ServedModels first_models_;
  const ApiOptions options_;
  const int64_t created_;    ///< Unix time of the start
  std::mutex large_bodies_;  ///< one is read at a time: reading takes many times its memory
};

/// Which of the names of models `name` means: the same one, or the only path that ends in it.
std::optional<size_t> find_id(const std::vector<std::string>& ids, const std::string& name);

}  // namespace sftrun::serve
