#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "sftrun/serve/completion_request.h"

namespace sftrun::serve {

/// Reads the keys of a request's object. A key with the value null counts as absent, as in OpenAI's
/// API. Each function throws ApiError with status 400 that names the key.
class Parameters {
 public:
  /// @param object a JSON object, which must outlive this one
  explicit Parameters(const Json& object) : object_(object) {}

  /// null: absent
  const Json* find(const std::string& key);
  bool flag(const std::string& key);  ///< absent: false
  std::optional<int64_t> integer(const std::string& key, int64_t min, int64_t max);
  std::optional<double> number(const std::string& key, double min, double max);
  std::optional<uint64_t> seed(const std::string& key);  ///< any integer of 64 bits
  /// A string or a list of at most `most` strings, none empty or longer than `max_bytes`.
  std::vector<std::string> texts(const std::string& key, size_t most, size_t max_bytes);

  /// Keys that do not change the answer.
  void ignore(std::initializer_list<const char*> keys);
  /// A key that may only have values which change nothing.
  void require_neutral(const std::string& key, std::initializer_list<Json> neutral,
                       const std::string& reason);
  /// Refuses what no function has asked for.
  void require_no_others() const;

 private:
  const Json& object_;
  std::set<std::string> known_;
};

}  // namespace sftrun::serve
