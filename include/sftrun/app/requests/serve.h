#pragma once

#include "sftrun/app/requests/parts.h"

namespace sftrun::app {

/// Answers requests of OpenAI's API over HTTP.
struct ServeRequest {
  NamedModelsRequest models;
  RanksRequest ranks;
  std::string host = "127.0.0.1";
  int64_t port = 8000;  ///< 0: any that is free
  std::optional<std::string> token;
  int64_t batch_size = 8;         ///< answers of a model at the same time
  int64_t max_waiting = 256;      ///< answers
  int64_t max_new_tokens = 2048;  ///< of a chat request that names no limit
  std::optional<int64_t> max_model_len, cache_bytes;
  bool allow_adapter_updates = false;  ///< clients may load and unload adapters of this machine
  std::optional<int64_t> max_request_bytes;  ///< of a body; none: as the models read images or not

  SFTRUN_FIELDS(models, ranks, host, port, token, batch_size, max_waiting, max_new_tokens,
                max_model_len, cache_bytes, allow_adapter_updates, max_request_bytes)
};

}  // namespace sftrun::app
