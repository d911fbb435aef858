#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "digest.h"
#include "http.h"
#include "retry.h"
#include "sftrun/hub/repo_name.h"

/// The hub's HTTP API: the files of a repository and their metadata.
namespace sftrun::hub {

struct RemoteFile {
  std::string path;  ///< relative to the repository; safe below a folder
  uint64_t size = 0;
  Checksum checksum = {};
};

/// A repository at one commit.
struct Listing {
  std::string commit;
  std::vector<RemoteFile> files;
};

/// The name and checksum of a blob in the cache.
struct FileMetadata {
  std::string etag;  ///< without quotes; valid as a file name
  Checksum checksum;
};

/// Responses are not trusted: names, sizes and commits that are invalid are errors.
class HubApi {
 public:
  /// For one thread. @param policy retries of each request
  HubApi(const Settings& settings, const RetryPolicy& policy, const ShouldStop& should_stop);

  /// The commit that a revision points to now. @throws DataError (missing, gated), CommError
  std::string commit_of(const RepoName& name);
  Listing list(const RepoName& name);
  /// @throws as commit_of
  FileMetadata metadata(const RepoName& name, const std::string& commit, const RemoteFile& file);

  HttpClient& http() { return http_; }
  std::string file_url(const RepoName& name, const std::string& commit,
                       const std::string& path) const;
  /// Throws for a response with an error status. @throws TransientFailure, DataError, CommError
  [[noreturn]] void fail(const RepoName& name, const Response& response) const;

 private:
  struct Page;
  Page get_page(const RepoName& name, const std::string& url);
  std::string api_url(const RepoName& name) const;
  std::string page_url(const RepoName& name) const;

  const Settings& settings_;
  RetryPolicy policy_;
  ShouldStop should_stop_;
  HttpClient http_;
};

}  // namespace sftrun::hub
