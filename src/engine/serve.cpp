#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "command_ranks.h"
#include "commands.h"
#include "device_memory.h"
#include "session.h"
#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/core/memory_reserve.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"
#include "sftrun/launch/stop_signals.h"
#include "sftrun/observe/system.h"
#include "sftrun/serve/api.h"
#include "sftrun/serve/api_error.h"
#include "sftrun/serve/http_server.h"
#include "sftrun/serve/http_status.h"
#include "sftrun/serve/scheduler.h"
#include "sftrun/weights/embedding_files.h"

namespace sftrun::engine {
namespace {

/// The model and its adapters, loaded.
struct Served {
  std::vector<std::shared_ptr<LoadedModel>> loaded;
  serve::ServedModels models;
  at::Device device() const { return loaded.front()->decoder->options().device; }
};

/// @throws ConfigError for a longer context than the model's
std::shared_ptr<serve::ServedModel> served_model(const app::ServeRequest& request,
                                                 const std::string& name,
                                                 const std::shared_ptr<LoadedModel>& loaded) {
  const std::optional<int64_t>& asked_length = request.max_model_len;
  constexpr int64_t kUnknownLength = 4096;
  const int64_t own = loaded->checkpoint->arch().max_position_embeddings;
  if (asked_length && own > 0 && *asked_length > own) {
    throw ConfigError(fmt::format("--max-model-len {} is above the model's context of {} tokens",
                                  *asked_length, own),
                      "--max-model-len on the command line", "give a smaller one, or leave it out");
  }
  auto model = std::make_shared<serve::ServedModel>(
      name, loaded->text, *loaded->decoder, asked_length.value_or(own > 0 ? own : kUnknownLength),
      loaded->copy.get());
  model->owner = loaded;
  return model;
}

/// @param load loads one model, or the part of it that this rank has; false: a stop came
/// @return nullopt after a stop
std::optional<Served> load_all(
    const app::ServeRequest& request,
    const std::function<bool(const app::ModelRequest& one, LoadedModel& loaded)>& load) {
  Served served;
  for (const app::NamedAdapter& entry : request.models.models) {
    const auto& loaded = served.loaded.emplace_back(std::make_shared<LoadedModel>());
    app::ModelRequest named = request.models.one(entry);
    named.takes_images = true;
    if (!load(named, *loaded)) return std::nullopt;
    refuse_embedder(*loaded);
    served.models.push_back(served_model(request, entry.name, loaded));
  }
  std::vector<const data::TextModel*> texts;
  for (const auto& loaded : served.loaded) texts.push_back(&loaded->text);
  warn_of_idle_template_flag(request.models.base, texts);
  return served;
}

/// Half of the memory that the loaded models leave: activations, logits and other programs need some.
uint64_t usual_cache_bytes(at::Device device) {
  const uint64_t free =
      device.is_cpu() ? observe::memory_info().available_bytes
                      : device_memory_bytes(device, 1) -
                            std::min(device_memory_bytes(device, 1), peak_memory_bytes(device));
  return free / 2;
}

/// An IPv6 address needs brackets in an address with a port.
std::string url_of(const std::string& host, uint16_t port) {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return fmt::format("http://{}:{}/v1", is_ipv6 ? "[" + host + "]" : host, port);
}

std::string names_of(const Served& served) {
  std::string names;
  for (const auto& model : served.models) names += (names.empty() ? "" : ", ") + model->id;
  return names;
}

serve::Limits limits_of(const app::ServeRequest& request, at::Device device) {
  return {.batch_size = static_cast<size_t>(request.batch_size),
          .max_waiting = static_cast<size_t>(request.max_waiting),
          .cache_bytes = request.cache_bytes ? static_cast<uint64_t>(*request.cache_bytes)
                                             : usual_cache_bytes(device)};
}

/// Images are in the body, in base64: four photos of 12 MiB.
size_t max_body_bytes(const app::ServeRequest& request, const Served& served) {
  constexpr size_t kMiB = size_t{1} << 20, kOfTexts = 16 * kMiB, kWithImages = 64 * kMiB;
  if (request.max_request_bytes) return static_cast<size_t>(*request.max_request_bytes);
  return std::any_of(served.loaded.begin(), served.loaded.end(),
                     [](const auto& loaded) { return reads_images(loaded->text); })
             ? kWithImages
             : kOfTexts;
}

/// Loads adapters of this machine that clients name.   @throws serve::ApiError
class AdapterLoader {
 public:
  /// Both must outlive this object.   @param bases of the models that are served
  AdapterLoader(const app::ServeRequest& request, SharedBases& bases)
      : request_(request), bases_(bases) {}

  std::shared_ptr<serve::ServedModel> operator()(const std::string& name,
                                                 const std::string& path) const {
    require_adapter(path);
    try {
      app::ModelRequest asked = request_.models.one({.name = name, .adapter = path});
      asked.takes_images = true;
      auto loaded = std::make_shared<LoadedModel>(
          load_model(asked, request_.ranks.compute, /*local_rank=*/0, &bases_, /*is_first=*/false));
      return served_model(request_, name, loaded);
    } catch (const Error& error) {
      refuse(fmt::format("{} ({})", error.message(), error.where()));
    } catch (const c10::OutOfMemoryError&) {
      throw std::bad_alloc();
    }
  }

 private:
  static void require_adapter(const std::filesystem::path& path) {
    constexpr const char* kConfig = "adapter_config.json";
    const std::string shown = excerpt(path.string());
    if (!leads_to_file(path / kConfig)) {
      const bool is_run = leads_to_file(path / "adapter" / kConfig);
      refuse(fmt::format("{} has no {}: give {}", shown, kConfig,
                         is_run ? excerpt((path / "adapter").string())
                                : "the folder of a PEFT adapter on the server's machine"));
    }
    try {
      weights::refuse_embedding_model(path, {.model = "the adapter " + shown});
    } catch (const ConfigError& error) {
      refuse(error.message());
    }
  }
  [[noreturn]] static void refuse(const std::string& what) {
    throw serve::ApiError(serve::kBadRequest, what, "lora_path");
  }

  const app::ServeRequest& request_;
  SharedBases& bases_;
};

/// Answers requests until a stop is asked for.
/// @param load_adapter for clients; empty: they may load none
void serve_models(const app::ServeRequest& request, const Served& served,
                  const std::function<bool()>& should_stop,
                  decltype(serve::ApiOptions::load_adapter) load_adapter = {}) {
  const serve::Limits limits = limits_of(request, served.device());
  serve::Scheduler scheduler(served.models, limits);
  const std::string& host = request.host;
  const std::string token = request.token.value_or("");
  serve::Api api(scheduler, {.token = token,
                             .is_local = serve::is_own_name(host),
                             .defaults = {.chat_tokens = request.max_new_tokens},
                             .load_adapter = std::move(load_adapter)});
  // More than answers may wait, so that those beyond are refused with a reason, and /health answers.
  constexpr size_t kSpare = 256;
  const size_t max_body = max_body_bytes(request, served);
  const serve::HttpServer server(
      {.host = host,
       .port = static_cast<uint16_t>(request.port),
       .max_body_bytes = max_body,
       .max_bodies_bytes = std::max(serve::HttpServer::Options().max_bodies_bytes, 4 * max_body),
       .max_connections = limits.batch_size + limits.max_waiting + kSpare},
      [&](serve::HttpRequest& asked) { return api.handle(std::move(asked)); },
      [&](const serve::HttpRequest& head) { return api.refusal(head); });
  if (!serve::is_own_name(host) && token.empty())
    log::warn("everyone who reaches {} can use the server: set a token with --token", host);
  log::info("{} at a time for each model, {} may wait; key-value cache up to {}",
            counted(limits.batch_size, "answer"), limits.max_waiting,
            format_bytes(limits.cache_bytes));
  log::info("serving {} at {} (Ctrl-C stops)", names_of(served), url_of(host, server.port()));
  MemoryReserve reserve(size_t{8} << 20);
  scheduler.run([&] {
    reserve.refill();
    return should_stop();
  });
  log::info("stopping");
}

/// With models that several ranks have together. The first one answers requests.
int serve_together(const app::ServeRequest& request, Rank& rank) {
  if (request.allow_adapter_updates)
    throw ConfigError(
        "clients can load adapters only where one process has the whole model",
        "--allow-adapter-updates on the command line",
        "serve the model on one device, or name its adapters with --adapter at the start");
  CommandRanks ranks(request.ranks, rank);
  ranks.require_one_copy();
  if (const int code = ranks.connect()) return code;
  int code = 0;
  SharedBases bases;
  SharedBases* shared = request.models.models.size() > 1 ? &bases : nullptr;
  const auto served = load_all(request, [&](const app::ModelRequest& one, LoadedModel& loaded) {
    code = ranks.load_model(one, loaded, shared);
    return code == 0;
  });
  if (!served) return code;
  if (rank.is_main())
    serve_models(request, *served, [&] { return rank.stop_exit_code() != 0; });
  else
    serve::Scheduler::follow(served->models, limits_of(request, served->device()));
  return 0;
}

}  // namespace

int run_serve(const app::ServeRequest& request) {
  // Blocks of requests go back to the system when they are freed. By itself the limit would grow
  // with the first long request.
  constexpr int kLargeBlock = 1 << 20;
  ::mallopt(M_MMAP_THRESHOLD, kLargeBlock);
  if (request.ranks.parallel) return run_as_ranks(request, serve_together);
  SharedBases bases;
  const bool shares = request.models.models.size() > 1 || request.allow_adapter_updates;
  bool is_first = true;
  const auto served =  // until the end of which a signal ends the process at once
      load_all(request, [&](const app::ModelRequest& one, LoadedModel& loaded) {
        loaded = load_model(one, request.ranks.compute, 0, shares ? &bases : nullptr,
                            std::exchange(is_first, false));
        return true;
      });
  const launch::StopSignals signals;
  decltype(serve::ApiOptions::load_adapter) load_adapter;
  if (request.allow_adapter_updates) load_adapter = AdapterLoader(request, bases);
  serve_models(
      request, *served, [&] { return signals.requested(); }, std::move(load_adapter));
  return 0;
}

}  // namespace sftrun::engine
