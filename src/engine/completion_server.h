#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sftrun/config/rollouts.h"
#include "sftrun/hub/post.h"

/// A server with OpenAI's API that takes adapters by their paths: vLLM 0.10.2 or later, and `sftrun serve`.
/// Requests and responses are those of vllm/entrypoints/openai/completion/protocol.py and
/// vllm/entrypoints/serve/lora/protocol.py.
namespace sftrun::engine {

/// A continuation of one prompt.
struct AskedCompletion {
  std::string model;                ///< an adapter, or the base
  std::span<const int32_t> prompt;  ///< not empty
  int64_t max_tokens = 1;
  uint64_t seed = 0;  ///< below 2^53
};

struct ServedCompletion {
  std::vector<int32_t> token_ids;  ///< the stop token that ended it included; not empty
  std::vector<float> logprobs;     ///< [token_ids] natural logarithms, with which they were drawn
  bool stopped = false;            ///< at a stop token; false: cut short
};

/// Reads the response to a request of /completions for token ids and log-probabilities.
/// @param vocab_size ids are below it   @param completion receives the answer
/// @return what is wrong with it, in words behind "the server answers"; empty: nothing
std::string read_completion(const std::string& body, const AskedCompletion& asked,
                            int64_t vocab_size, ServedCompletion& completion);

/// A model that a server lists.
struct ListedModel {
  std::string id;
  std::string root;                   ///< path or name that it was loaded from; empty: not said
  std::optional<int64_t> max_length;  ///< of a prompt and its answer, in tokens; nullopt: not said
};
/// Reads the response of /models.   @return as `read_completion`
std::string read_models(const std::string& body, std::vector<ListedModel>& models);
/// The model of this name: by its id, its root, or the last part of one of them.   @return null: none
const ListedModel* find_listed(std::span<const ListedModel> models, const std::string& name);

/// Errors name the URL and say what to do. Requests are thread-safe.
class CompletionServer {
 public:
  struct Inputs {
    const config::RolloutsConfig& rollouts;  ///< whose engine is a URL; must outlive the server
    int64_t vocab_size;
    std::vector<int32_t> stop_tokens;
    std::function<bool()> should_stop;  ///< called by several threads
  };
  /// @throws ConfigError for a token's variable that is not set
  explicit CompletionServer(Inputs inputs);

  /// @throws CommError for a server that does not answer, DataError for one that answers something else,
  /// Error (130) if `should_stop` returned true; so do the others
  std::vector<ListedModel> models() const;
  void load_adapter(const std::string& name, const std::string& path) const;
  void unload_adapter(const std::string& name) const;
  /// Also where `should_stop` returns true: in a few seconds, at one attempt. A server that has no such
  /// adapter is content.
  void unload_adapter_at_end(const std::string& name) const;
  ServedCompletion complete(const AskedCompletion& asked) const;

  const std::string& url() const { return url_; }

 private:
  std::string sent(const char* path, const std::string* body, const std::string& advice) const {
    return sent(path, body, advice, options_);
  }
  std::string sent(const char* path, const std::string* body, const std::string& advice,
                   const hub::PostOptions& options) const;
  void unload_adapter(const std::string& name, const std::string& advice,
                      const hub::PostOptions& options) const;
  [[noreturn]] void refuse(const char* path, const std::string& fault) const;

  std::string url_;  // without a slash at its end
  int64_t vocab_size_;
  std::vector<int32_t> stop_tokens_;
  const config::RolloutsConfig& rollouts_;
  hub::PostOptions options_;
};

}  // namespace sftrun::engine
