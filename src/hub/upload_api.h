#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "http.h"
#include "retry.h"
#include "sftrun/hub/settings.h"
#include "upload_refusal.h"

/// The hub's HTTP API for changes to a model repository.
namespace sftrun::hub {

/// A repository that exists.
struct RepoState {
  bool is_private = false;
};

/// How the hub keeps a file, asked before it is sent.
struct FileMode {
  bool is_lfs = false, is_ignored = false;
  /// Of the file that the repository has now: git's object name, of an LFS file the SHA-256; empty: none.
  std::string oid;
};

/// What the hub is asked about a file.
struct FileQuestion {
  std::string path;
  uint64_t size = 0;
  std::string sample;  ///< its first bytes
};

struct LfsObject {
  std::string path, sha256;  ///< the path for messages
  uint64_t size = 0;
};

/// Where an object goes.
struct LfsPlace {
  bool is_there = false;             ///< the hub has it
  std::string url;                   ///< for PUT; with parts for the POST that completes them
  std::vector<std::string> headers;  ///< of PUT
  uint64_t part_bytes = 0;           ///< 0: in one piece
  std::vector<std::string> part_urls;
  std::string verify_url;  ///< empty: no verification
};

/// Of one part that storage has taken.
struct PartTag {
  size_t number = 0;  ///< from 1
  std::string etag;
};

/// Responses are not trusted: those that lack what is needed are errors. For one thread.
class UploadApi {
 public:
  UploadApi(const Settings& settings, std::string repo, const ShouldStop& should_stop);

  std::string user();
  /// nullopt: there is none, or the token may not see it
  std::optional<RepoState> repo();
  void create(bool is_private);
  /// The commit of a branch; nullopt: there is no such branch.
  std::optional<std::string> commit_of(const std::string& branch);
  void create_branch(const std::string& branch);
  /// In the order of the questions.
  std::vector<FileMode> modes(const std::string& branch, std::span<const FileQuestion> files);
  std::vector<LfsPlace> places(const std::string& branch, std::span<const LfsObject> objects);
  void complete(const LfsObject& object, const LfsPlace& place, const std::vector<PartTag>& parts);
  void verify(const LfsObject& object, const LfsPlace& place);
  /// One attempt: a lost answer does not say whether the commit was made.
  /// @param lines of JSON   @return the commit   @throws TransientFailure
  std::string commit(const std::string& branch, std::string lines);

  HttpClient& http() { return http_; }
  const Settings& settings() const { return settings_; }
  RetryPolicy policy() const;
  const ShouldStop& should_stop() const { return should_stop_; }
  std::string page_url() const;
  /// For `refuse_upload`.   @param what "cannot upload model.safetensors"
  UploadStep step(const std::string& what) const;

 private:
  struct Answer {
    long status = 0;
    nlohmann::ordered_json content;
  };
  /// @param accepts error statuses that are answers
  Answer ask(Request request, const std::string& what, std::span<const long> accepts = {});
  Answer ask_once(const Request& request, const std::string& what, std::span<const long> accepts);
  Answer post(const std::string& url, const nlohmann::ordered_json& body, const std::string& what,
              std::span<const long> accepts = {});
  std::string api_url(const std::string& rest) const;
  LfsPlace place_of(const nlohmann::ordered_json& entry, const LfsObject& object) const;
  std::string reachable(std::string url) const;
  [[noreturn]] void malformed_answer(const std::string& what, const std::string& why) const;

  const Settings& settings_;
  std::string repo_;
  ShouldStop should_stop_;
  HttpClient http_;
};

}  // namespace sftrun::hub
