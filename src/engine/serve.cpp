#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "commands.h"
#include "device_memory.h"
#include "session.h"
#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/core/memory_reserve.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/units.h"
#include "sftrun/launch/stop_signals.h"
#include "sftrun/observe/system.h"
#include "sftrun/serve/api.h"
#include "sftrun/serve/http_server.h"
#include "sftrun/serve/scheduler.h"

namespace sftrun::engine {
namespace {

/// The model and its adapters, loaded.
struct Served {
  std::vector<LoadedModel> loaded;
  std::vector<std::unique_ptr<serve::ServedModel>> models;
  at::Device device() const { return loaded.front().decoder->options().device; }
};

Served load_all(const nlohmann::ordered_json& request) {
  Served served;
  SharedBases bases;
  const auto& models = request.at("models");
  const auto asked_length = get<int64_t>(request, "max_model_len");
  for (const nlohmann::ordered_json& entry : models) {
    nlohmann::ordered_json one = request;
    one["adapter"] = entry.at("adapter");
    served.loaded.push_back(load_model(one, 0, models.size() > 1 ? &bases : nullptr));
    const LoadedModel& loaded = served.loaded.back();
    constexpr int64_t kUnknownLength = 4096;
    const int64_t own = loaded.checkpoint->arch().max_position_embeddings;
    if (asked_length && own > 0 && *asked_length > own) {
      throw ConfigError(fmt::format("--max-model-len {} is above the model's context of {} tokens",
                                    *asked_length, own),
                        "--max-model-len on the command line",
                        "give a smaller one, or leave it out");
    }
    served.models.push_back(std::make_unique<serve::ServedModel>(
        entry.at("name").get<std::string>(), loaded.text, *loaded.decoder,
        asked_length.value_or(own > 0 ? own : kUnknownLength)));
  }
  std::vector<const data::TextModel*> texts;
  for (const LoadedModel& loaded : served.loaded) texts.push_back(&loaded.text);
  warn_of_idle_template_flag(request, texts);
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

}  // namespace

int run_serve(const nlohmann::ordered_json& request) {
  // Blocks of requests go back to the system when they are freed. By itself the limit would grow
  // with the first long request.
  constexpr int kLargeBlock = 1 << 20;
  ::mallopt(M_MMAP_THRESHOLD, kLargeBlock);
  const Served served =
      load_all(request);  // until the end of which a signal ends the process at once
  const launch::StopSignals signals;
  const serve::Limits limits{
      .batch_size = request.at("batch_size").get<size_t>(),
      .max_waiting = request.at("max_waiting").get<size_t>(),
      .cache_bytes =
          get<uint64_t>(request, "cache_bytes").value_or(usual_cache_bytes(served.device()))};
  serve::Scheduler scheduler(served.models, limits);
  const auto host = request.at("host").get<std::string>();
  const auto token = get<std::string>(request, "token").value_or("");
  serve::Api api(served.models, scheduler,
                 {.token = token,
                  .is_local = serve::is_own_name(host),
                  .defaults = {.chat_tokens = request.at("max_new_tokens").get<int64_t>()}});
  // More than answers may wait, so that those beyond are refused with a reason, and /health answers.
  constexpr size_t kSpare = 256;
  const serve::HttpServer server(
      {.host = host,
       .port = request.at("port").get<uint16_t>(),
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
    return signals.requested();
  });
  log::info("stopping");
  return 0;
}

}  // namespace sftrun::engine
