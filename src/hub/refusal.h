#pragma once

#include <string>

#include "http.h"
#include "sftrun/hub/repo_name.h"
#include "sftrun/hub/settings.h"

namespace sftrun::hub {

/// What was requested, for messages.
struct Asked {
  const RepoName& name;
  std::string page_url;  ///< the repository's web page
  const Settings& settings;
};

/// The server's error text after a colon; empty if it has none.
std::string words_of_server(const Response& response, const Settings& settings);

/// Whether these words say that the token is not known; the hub answers "user Access Token …" or others.
bool is_about_a_token(const std::string& words);

/// Turns a response with an error status into an exception with a fix.
/// @throws TransientFailure  the server is busy or broken
/// @throws DataError  no such repository, revision or file; a gated or private one
/// @throws CommError  anything else
[[noreturn]] void refuse(const Asked& asked, const Response& response);

}  // namespace sftrun::hub
