#include "sftrun/serve/api_error.h"

#include "sftrun/core/short_quotes.h"
#include "sftrun/core/strings.h"

namespace sftrun::serve {
namespace {

const char* type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 429:
      return "rate_limit_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
  }
}

nlohmann::ordered_json null_if_empty(const std::string& text) {
  return text.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(text);
}

}  // namespace

ApiError::ApiError(int status, const std::string& message, const std::string& param,
                   std::string code)
    : std::runtime_error(with_short_quotes(message)),
      status_(status),
      param_(excerpt(param)),
      code_(std::move(code)) {}

nlohmann::ordered_json ApiError::to_json() const {
  return {{"error",
           {{"message", what()},
            {"type", type_of(status_)},
            {"param", null_if_empty(param_)},
            {"code", null_if_empty(code_)}}}};
}

}  // namespace sftrun::serve
