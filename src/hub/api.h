#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "digest.h"
#include "http.h"
#include "retry.h"
#include "sftrun/hub/repo_name.h"

/// The hub's own interface: which files a repository has, and what they are.
namespace sftrun::hub {

struct RemoteFile {
  std::string path;  ///< in the repository; a relative path that is safe below a folder
  uint64_t size = 0;
  Checksum checksum = {};
};

/// A repository at one commit.
struct Listing {
  std::string commit;
  std::vector<RemoteFile> files;
};

/// What a blob of the cache is called and must be.
struct FileMetadata {
  std::string etag;  ///< without quotes; fit for a file's name
  Checksum checksum;
};

/// Answers are not trusted: names, sizes and commits that no hub would send are errors.
class HubApi {
 public:
  /// For one thread. @param policy of each request
  HubApi(const Settings& settings, const RetryPolicy& policy, const ShouldStop& should_stop);

  /// The commit that a revision is now. @throws DataError (missing, gated), CommError
  std::string commit_of(const RepoName& name);
  Listing list(const RepoName& name);
  /// @throws as commit_of
  FileMetadata metadata(const RepoName& name, const std::string& commit, const RemoteFile& file);

  HttpClient& http() { return http_; }
  std::string file_url(const RepoName& name, const std::string& commit,
                       const std::string& path) const;
  /// For an answer that is an error. @throws TransientFailure, DataError, CommError
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
