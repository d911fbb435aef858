#pragma once

#include <string>

#include "http.h"
#include "sftrun/hub/repo_name.h"
#include "sftrun/hub/settings.h"

namespace sftrun::hub {

/// What was asked for, and of whom.
struct Asked {
  const RepoName& name;
  std::string page_url;  ///< where a person finds the repository
  const Settings& settings;
};

/// Says what an answer other than 2xx means and what to do about it.
/// @throws TransientFailure  a busy or broken server
/// @throws DataError  no such repository, revision or file; a gated or private one
/// @throws CommError  anything else
[[noreturn]] void refuse(const Asked& asked, const Response& response);

}  // namespace sftrun::hub
