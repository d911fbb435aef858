#include "sftrun/hub/upload.h"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <set>
#include <thread>

#include "object_upload.h"
#include "progress.h"
#include "sftrun/core/base64.h"
#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/units.h"
#include "sftrun/hub/repo_name.h"
#include "upload_api.h"
#include "url.h"

namespace sftrun::hub {
namespace {

constexpr size_t kFilesOfRequest = 256;  // huggingface_hub's, for questions and for LFS objects
constexpr size_t kSampleBytes = 512, kParallelObjects = 4;

void require_upload_is_allowed(const Settings& settings) {
  if (!settings.offline.empty())
    throw ConfigError(fmt::format("{} forbids to use the network", settings.offline),
                      settings.offline + " in the environment", "unset it to upload");
  if (settings.token.empty())
    throw ConfigError("an upload needs a token of the hub", "the environment",
                      fmt::format("create one with write access at {} and run `hf auth login`, or "
                                  "set HF_TOKEN",
                                  shown_url(settings.endpoint + "/settings/tokens")));
}

/// Runs `body`. Its waits say that a download was interrupted.
template <class Body>
auto as_upload(Body&& body) {
  try {
    return body();
  } catch (const Error& error) {
    if (error.code() != ExitCode::kInterrupted) throw;
    throw Error(ExitCode::kInterrupted, "the upload was interrupted", {},
                "rerun the same command: what the hub has is not sent again");
  }
}

/// A file with what is known of it.
struct Candidate {
  const LocalFile* file;
  UploadedFile result;
  FileMode mode;
  std::string digest;  ///< SHA-256 of an LFS file, git's object name of others
};

class Upload {
 public:
  Upload(const UploadRequest& request, const Settings& settings)
      : request_(request),
        settings_(settings),
        api_(settings, request.repo, request.should_stop),
        branch_(request.branch.empty() ? "main" : request.branch) {
    for (const LocalFile& file : request.files) {
      SFTRUN_CHECK(is_relative_path(file.path));
      candidates_.push_back(
          {.file = &file, .result = {.path = file.path, .size = file.size()}, .mode = {}});
    }
  }

  UploadResult run() {
    UploadResult result{
        .repo = request_.repo, .branch = branch_, .url = shown_url(api_.page_url())};
    result.is_new = make_repo();
    make_branch();
    ask_modes();
    find_digests();
    send_objects();
    result.has_changed = has_changes();
    result.commit = result.has_changed ? commit() : present_commit();
    for (const Candidate& candidate : candidates_) {
      result.files.push_back(candidate.result);
      if (candidate.result.fate == FileFate::kSent && !candidate.mode.is_lfs)
        tally_.sent_bytes += candidate.result.size;
    }
    result.sent_bytes = tally_.sent_bytes;
    return result;
  }

 private:
  /// @return whether it was created
  bool make_repo() {
    std::optional<RepoState> state = api_.repo();
    const bool is_new = !state;
    if (is_new) {
      api_.create(request_.is_private);
      state = api_.repo();
    }
    if (!request_.is_private || (state && state->is_private)) return is_new;
    throw DataError(fmt::format("{} is public, and --private was given", request_.repo),
                    shown_url(api_.page_url()),
                    "nothing was sent: make the repository private on its settings page, or upload "
                    "to another one");
  }

  void make_branch() {
    if (request_.branch.empty() || branch_ == "main" || api_.commit_of(branch_)) return;
    api_.create_branch(branch_);
  }

  void ask_modes() {
    for (size_t begin = 0; begin < candidates_.size(); begin += kFilesOfRequest) {
      const size_t end = std::min(begin + kFilesOfRequest, candidates_.size());
      std::vector<FileQuestion> questions;
      for (size_t i = begin; i < end; ++i)
        questions.push_back({.path = candidates_[i].file->path,
                             .size = candidates_[i].result.size,
                             .sample = beginning_of(*candidates_[i].file, kSampleBytes)});
      const std::vector<FileMode> modes = api_.modes(branch_, questions);
      for (size_t i = begin; i < end; ++i) {
        candidates_[i].mode = modes[i - begin];
        candidates_[i].result.is_lfs = modes[i - begin].is_lfs;
      }
    }
  }

  /// Reads each file once, and finds those that the repository has.
  void find_digests() {
    for (Candidate& candidate : candidates_) {
      FileFate& fate = candidate.result.fate;
      if (candidate.mode.is_ignored) {
        fate = FileFate::kIgnored;
        log::warn("{} is not uploaded: the repository's .gitignore names it", candidate.file->path);
      } else if (candidate.file->only_if_new && !candidate.mode.oid.empty()) {
        fate = FileFate::kKept;
      } else {
        candidate.digest =
            digest_of(*candidate.file,
                      candidate.mode.is_lfs ? Checksum::Kind::kSha256 : Checksum::Kind::kGitBlob,
                      request_.should_stop);
        const bool is_same = candidate.digest == candidate.mode.oid;
        fate = is_same ? FileFate::kUnchanged : FileFate::kSent;
      }
    }
  }

  bool has_changes() const {
    return std::ranges::any_of(candidates_, [](const Candidate& candidate) {
      return candidate.result.fate == FileFate::kSent || candidate.result.fate == FileFate::kStored;
    });
  }

  // ---- Large files

  struct Sending {
    Candidate* candidate;
    LfsObject object;
    LfsPlace place;
  };

  std::vector<Sending> objects_to_send() {
    std::vector<Sending> sendings;
    std::set<std::string> known;  // files of the same content are sent once
    for (Candidate& candidate : candidates_) {
      if (!candidate.mode.is_lfs || candidate.result.fate != FileFate::kSent) continue;
      candidate.result.fate = FileFate::kStored;
      if (!known.insert(candidate.digest).second) continue;
      sendings.push_back({.candidate = &candidate,
                          .object = {.path = candidate.file->path,
                                     .sha256 = candidate.digest,
                                     .size = candidate.result.size},
                          .place = {}});
    }
    for (size_t begin = 0; begin < sendings.size(); begin += kFilesOfRequest) {
      const size_t end = std::min(begin + kFilesOfRequest, sendings.size());
      std::vector<LfsObject> objects;
      for (size_t i = begin; i < end; ++i) objects.push_back(sendings[i].object);
      std::vector<LfsPlace> places = api_.places(branch_, objects);
      for (size_t i = begin; i < end; ++i) sendings[i].place = std::move(places[i - begin]);
    }
    std::erase_if(sendings, [](const Sending& sending) { return sending.place.is_there; });
    for (const Sending& sending : sendings) sending.candidate->result.fate = FileFate::kSent;
    return sendings;
  }

  /// Several at a time; this thread shows the progress.
  void send_objects() {
    const std::vector<Sending> sendings = objects_to_send();
    if (sendings.empty()) return;
    uint64_t total = 0;
    for (const Sending& sending : sendings) total += sending.object.size;
    if (!request_.quiet)
      log::info("uploading to {}: {}, {}", request_.repo, counted(sendings.size(), "large file"),
                format_bytes(total));
    Progress progress(request_.repo, total, request_.quiet);
    const size_t num_workers = std::min(kParallelObjects, sendings.size());
    running_ = num_workers;
    std::vector<std::jthread> workers;
    for (size_t i = 0; i < num_workers; ++i) workers.emplace_back([&] { send_some(sendings); });
    std::unique_lock lock(mutex_);
    constexpr auto kTick = std::chrono::milliseconds(100);
    while (!done_.wait_for(lock, kTick, [this] { return running_ == 0; }))
      progress.update(tally_.done_bytes, tally_.sent_bytes);
    lock.unlock();
    workers.clear();
    if (failure_) std::rethrow_exception(failure_);
  }

  void send_some(const std::vector<Sending>& sendings) {
    const auto stops = [this] {
      return has_failed_ || (request_.should_stop && request_.should_stop());
    };
    try {
      UploadApi api(settings_, request_.repo, stops);
      for (size_t i = next_++; i < sendings.size() && !stops(); i = next_++)
        upload_object(*sendings[i].candidate->file, sendings[i].object, branch_, sendings[i].place,
                      api, tally_);
      throw_if_stopped(request_.should_stop);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();  // the others stop because of it
      has_failed_ = true;
    }
    const std::lock_guard lock(mutex_);
    --running_;
    done_.notify_all();
  }

  // ---- The commit

  static std::string line_of(const nlohmann::ordered_json& line) {
    return line.dump(-1, ' ', /*ensure_ascii=*/false,
                     nlohmann::ordered_json::error_handler_t::replace) +
           "\n";
  }

  std::string commit_lines() const {
    const size_t end = request_.message.find('\n');
    const std::string title(trim(request_.message.substr(0, end)));
    const std::string rest(
        end == std::string::npos ? "" : std::string(trim(request_.message.substr(end))));
    std::string lines =
        line_of({{"key", "header"}, {"value", {{"summary", title}, {"description", rest}}}});
    for (const Candidate& candidate : candidates_) {
      const FileFate fate = candidate.result.fate;
      if (fate != FileFate::kSent && fate != FileFate::kStored) continue;
      const LocalFile& file = *candidate.file;
      if (candidate.mode.is_lfs) {
        lines += line_of({{"key", "lfsFile"},
                          {"value",
                           {{"path", file.path},
                            {"algo", "sha256"},
                            {"oid", candidate.digest},
                            {"size", candidate.result.size}}}});
      } else {
        const std::string content = beginning_of(file, candidate.result.size);
        lines += line_of(
            {{"key", "file"},
             {"value",
              {{"content", encode_base64(content)}, {"path", file.path}, {"encoding", "base64"}}}});
      }
    }
    return lines;
  }

  /// After a lost answer the hub is asked whether it has the files, so that no second commit of the
  /// same files is made.
  std::string commit() {
    const std::string lines = commit_lines();
    Retries retries(api_.policy(), shown_url(api_.page_url()), request_.should_stop);
    for (bool is_first = true;; is_first = false) {
      try {
        if (!is_first && is_committed()) return present_commit();
        return api_.commit(branch_, lines);
      } catch (const TransientFailure& failure) {
        retries.failed(failure);
      }
    }
  }

  bool is_committed() {
    ask_modes();
    return std::ranges::all_of(candidates_, [](const Candidate& candidate) {
      const FileFate fate = candidate.result.fate;
      return (fate != FileFate::kSent && fate != FileFate::kStored) ||
             candidate.mode.oid == candidate.digest;
    });
  }

  std::string present_commit() {
    const auto commit = api_.commit_of(branch_);
    if (!commit)
      throw CommError(fmt::format("the branch {} of {} was removed", branch_, request_.repo),
                      shown_url(api_.page_url()), "rerun the same command");
    return *commit;
  }

  const UploadRequest& request_;
  const Settings& settings_;
  UploadApi api_;
  std::string branch_;
  std::vector<Candidate> candidates_;
  SentTally tally_;
  std::atomic<size_t> next_{0};
  std::atomic<bool> has_failed_{false};
  std::mutex mutex_;
  std::condition_variable done_;
  size_t running_ = 0;          // guarded by mutex_ once workers run
  std::exception_ptr failure_;  // guarded by mutex_
};

}  // namespace

const char* word_of(FileFate fate) {
  switch (fate) {
    case FileFate::kSent:
      return "sent";
    case FileFate::kUnchanged:
      return "unchanged";
    case FileFate::kStored:
      return "stored";
    case FileFate::kKept:
      return "kept";
    case FileFate::kIgnored:
      return "ignored";
  }
  invariant_failed(__FILE__, __LINE__, "a fate");
}

std::string user_of_token(const Settings& settings, const std::function<bool()>& should_stop) {
  require_upload_is_allowed(settings);
  return as_upload([&] { return UploadApi(settings, "", should_stop).user(); });
}

UploadResult upload(const UploadRequest& request, const Settings& settings) {
  require_upload_is_allowed(settings);
  return as_upload([&] { return Upload(request, settings).run(); });
}

}  // namespace sftrun::hub
