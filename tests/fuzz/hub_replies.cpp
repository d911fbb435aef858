#include <array>

#include "api.h"
#include "blob_download.h"
#include "fuzz.h"
#include "loopback_server.h"
#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/utf8.h"
#include "support/temporary_directory.h"

namespace {

using namespace sftrun;
using namespace sftrun::hub;

const RepoName kName{.id = "owner/name", .revision = std::string(40, 'c')};
constexpr RetryPolicy kPolicy{.max_attempts = 3, .first_delay_s = 0, .max_asked_delay_s = 0};

fuzz::LoopbackServer& server() {
  static fuzz::LoopbackServer& started = *new fuzz::LoopbackServer;
  return started;
}

Settings settings() {
  Settings settings;
  settings.endpoint = server().url();
  settings.token = Secret("hf_secret");
  settings.token_source = "HF_TOKEN";
  settings.connect_timeout_s = settings.stall_timeout_s = 5;
  settings.retry_delay_s = 0;
  return settings;
}

void ask_for_commit(HubApi& api) {
  RepoName name = kName;
  name.revision = "main";
  if (!is_commit(api.commit_of(name))) __builtin_trap();
}

void ask_for_list(HubApi& api) {
  constexpr uint64_t kMaxBytes = uint64_t{1} << 53;
  for (const RemoteFile& file : api.list(kName).files)
    if (!is_relative_path(file.path) || file.size > kMaxBytes) __builtin_trap();
}

/// An ETag becomes a file's name.
void ask_for_metadata(HubApi& api) {
  const RemoteFile file{.path = "a b/c.bin", .size = 5};
  const FileMetadata metadata = api.metadata(kName, kName.revision, file);
  const bool is_name =
      is_relative_path(metadata.etag) && metadata.etag.find('/') == std::string::npos;
  if (!is_name) __builtin_trap();
}

/// What is put into place has the size and the checksum that were asked for.
void ask_for_file(HubApi& api) {
  static const test::TemporaryDirectory folder;
  const BlobTask task{.name = kName,
                      .file = "c.bin",
                      .url = api.file_url(kName, kName.revision, "c.bin"),
                      .etag = "e",
                      .incomplete = folder / "e.incomplete",
                      .blob = folder / "e",
                      .size = 5,
                      // Git's of "hello".
                      .checksum = checksum_of_etag("b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0")};
  Tally tally;
  std::filesystem::remove(task.blob);
  std::filesystem::remove(task.incomplete);
  BlobDownload(task, api, tally).run(Retries(kPolicy, "c.bin", {}));
  if (read_text_file(task.blob) != "hello") __builtin_trap();
}

}  // namespace

/// Nothing leaves this machine: the server is the proxy to all others, too.
extern "C" int LLVMFuzzerInitialize(int*, char***) {
  for (const char* name : {"http_proxy", "https_proxy", "all_proxy"})
    ::setenv(name, server().url().c_str(), /*overwrite=*/1);
  for (const char* name : {"no_proxy", "NO_PROXY", "HTTPS_PROXY", "ALL_PROXY"}) ::unsetenv(name);
  log::configure({.console = log::Level::kOff});
  return 0;
}

/// The first byte chooses the question; then replies as they come over the wire, with a NUL between
/// them. No message may show the token.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  server().set_replies(split(fuzz::text_of(data + 1, size - 1), '\0'));
  static const Settings used = settings();
  HubApi api(used, kPolicy, {});
  constexpr std::array kQuestions = {ask_for_commit, ask_for_list, ask_for_metadata, ask_for_file};
  try {
    kQuestions[data[0] % kQuestions.size()](api);
  } catch (const Error& error) {
    if (std::string_view(error.what()).find("hf_secret") != std::string_view::npos)
      __builtin_trap();
    if (!is_valid_utf8(error.what())) __builtin_trap();
  }
  return 0;
}
