#include "model_headers.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <fstream>
#include <mutex>
#include <thread>

#include "selection.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"

namespace sftrun::hub {
namespace fs = std::filesystem;
namespace {

constexpr size_t kParallelHeaders = 8;
constexpr uint64_t kFirstBytes = uint64_t{256} << 10;  // the header of most safetensors files
constexpr uint64_t kMaxBytes = uint64_t{512} << 20;
constexpr uint64_t kTimesMore = 8;  // the vocabulary of a GGUF file takes several MB

/// A connection is given up when enough was received.
struct Enough {};

class HeaderDownload {
 public:
  HeaderDownload(const RepoName& name, const std::string& commit, const fs::path& folder,
                 const HasHeader& has_header, const Settings& settings, const Options& options)
      : name_(name),
        commit_(commit),
        folder_(folder),
        has_header_(has_header),
        settings_(settings),
        options_(options) {}

  uint64_t run(const std::vector<RemoteFile>& files) {
    std::vector<std::jthread> workers;
    for (size_t i = 0; i < std::min(kParallelHeaders, files.size()); ++i)
      workers.emplace_back([&] { work(files); });
    workers.clear();
    if (failure_) std::rethrow_exception(failure_);
    return received_;
  }

 private:
  bool should_stop() const { return failed_ || (options_.should_stop && options_.should_stop()); }

  void work(const std::vector<RemoteFile>& files) {
    try {
      HubApi api(settings_, {}, [this] { return should_stop(); });
      for (size_t i = next_++; i < files.size() && !should_stop(); i = next_++)
        fetch(files[i], api);
      throw_if_stopped(options_.should_stop);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
      failed_ = true;
    }
  }

  void fetch(const RemoteFile& file, HubApi& api) {
    const fs::path path = folder_ / file.path;
    make_directories(path.parent_path());
    if (!is_weights(file.path)) return write(path, file, beginning_of(file, file.size, api));
    for (uint64_t wanted = kFirstBytes;; wanted *= kTimesMore) {
      const uint64_t size = std::min({wanted, file.size, kMaxBytes});
      write(path, file, beginning_of(file, size, api));
      if (size == file.size || size == kMaxBytes || has_header_(path, size)) return;
    }
  }

  std::string beginning_of(const RemoteFile& file, uint64_t size, HubApi& api) {
    const std::string url = api.file_url(name_, commit_, file.path);
    Request request{.url = url};
    if (size < file.size) request.headers.push_back(fmt::format("Range: bytes=0-{}", size - 1));
    RetryPolicy policy;
    policy.first_delay_s = settings_.retry_delay_s;
    const auto is_stopped = [this] { return should_stop(); };
    return with_retries(Retries(policy, file.path, is_stopped), [&] {
      std::string bytes;
      const BodySink sink{.write = [&](std::span<const char> part) {
        received_ += part.size();
        bytes.append(part.data(), std::min<uint64_t>(part.size(), size - bytes.size()));
        if (bytes.size() == size) throw Enough();  // a server may ignore the range
      }};
      try {
        const Response response = api.http().send(request, sink);
        if (!response.ok()) api.fail(name_, response);
      } catch (const Enough&) {
      }
      if (bytes.size() < size)
        throw TransientFailure(
            fmt::format("the file ended after {} of {} bytes", bytes.size(), size));
      return bytes;
    });
  }

  static void write(const fs::path& path, const RemoteFile& file, const std::string& bytes) {
    write_file_atomically(path, bytes);
    std::error_code code;
    fs::resize_file(path, file.size, code);
    if (code) {
      throw DeviceError(fmt::format("cannot make {}: {}", file.path, code.message()), path.string(),
                        "set TMPDIR to a directory on a disk that allows files with holes");
    }
  }

  const RepoName& name_;
  const std::string& commit_;
  const fs::path& folder_;
  const HasHeader& has_header_;
  const Settings& settings_;
  const Options& options_;
  std::atomic<size_t> next_{0};
  std::atomic<uint64_t> received_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::exception_ptr failure_;  // guarded by mutex_
};

}  // namespace

uint64_t download_headers(const RepoName& name, const std::string& commit,
                          const std::vector<RemoteFile>& files, const fs::path& folder,
                          const HasHeader& has_header, const Settings& settings,
                          const Options& options) {
  return HeaderDownload(name, commit, folder, has_header, settings, options).run(files);
}

}  // namespace sftrun::hub
