#pragma once

#include <string>

#include "http.h"

namespace sftrun::hub {

/// What was asked of the hub, for messages.
struct UploadStep {
  std::string what;  ///< "cannot create the repository owner/name"
  std::string page_url;
  const Settings& settings;
};

/// Turns a response with an error status to a request that writes into an exception with a fix.
/// @throws TransientFailure  the server is busy or broken
/// @throws ConfigError  a name that the hub does not allow
/// @throws DataError  the token may not write, no such repository, files that are too large
/// @throws CommError  anything else
[[noreturn]] void refuse_upload(const UploadStep& step, const Response& response);

}  // namespace sftrun::hub
