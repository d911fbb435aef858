#pragma once

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>

namespace sftrun::serve {

/// A refused or failed request, as OpenAI's API reports it:
///     {"error": {"message": …, "type": …, "param": …, "code": …}}
class ApiError : public std::runtime_error {
 public:
  /// @param message quotes of the request are shortened   @param param the parameter at fault; empty: none
  /// @param code for programs; empty: none
  ApiError(int status, const std::string& message, const std::string& param = {},
           std::string code = {});

  int status() const { return status_; }  ///< of HTTP
  const std::string& param() const { return param_; }
  nlohmann::ordered_json to_json() const;

 private:
  int status_;
  std::string param_, code_;
};

}  // namespace sftrun::serve
