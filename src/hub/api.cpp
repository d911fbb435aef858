#include "api.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "refusal.h"
#include "sftrun/core/error.h"
#include "sftrun/core/outside_json.h"
#include "sftrun/core/strings.h"
#include "url.h"

namespace sftrun::hub {
namespace {

using nlohmann::json;

constexpr size_t kMaxPageBytes = size_t{64} << 20, kMaxFiles = 1'000'000, kMaxPages = 10'000;
constexpr double kMaxPageS = 300;
/// The largest size that every JSON reader represents exactly.
constexpr uint64_t kMaxFileBytes = uint64_t{1} << 53;

std::optional<uint64_t> size_of(const json& object) {
  const auto found = object.find("size");
  if (found == object.end() || !found->is_number_unsigned()) return std::nullopt;
  const auto size = found->get<uint64_t>();
  return size <= kMaxFileBytes ? std::optional(size) : std::nullopt;
}

[[noreturn]] void malformed(const std::string& what, const std::string& url,
                            const Settings& settings) {
  throw CommError("the hub's answer is malformed: " + printable(what, settings),
                  shown_url(url, settings),
                  "check that HF_ENDPOINT is a hub and that no proxy answers instead");
}

/// One entry of a listing; nullopt for a folder.
std::optional<RemoteFile> file_of(const json& entry, const std::string& url,
                                  const Settings& settings) {
  if (!entry.is_object()) malformed("an entry that is not an object", url, settings);
  if (text_under(entry, "type") != "file") return std::nullopt;
  RemoteFile file{.path = text_under(entry, "path")};
  if (!is_relative_path(file.path)) malformed("a file name outside its folder", url, settings);
  const auto lfs = entry.find("lfs");
  const bool is_large = lfs != entry.end() && lfs->is_object();
  const std::optional<uint64_t> size = size_of(is_large ? *lfs : entry);
  if (!size) malformed("an invalid file size: " + file.path, url, settings);
  file.size = *size;
  file.checksum = checksum_of_etag(text_under(is_large ? *lfs : entry, "oid"));
  return file;
}

/// The ETag as huggingface_hub names blobs: `W/"abc"` becomes abc.
std::string plain_etag(std::string_view etag) {
  etag = trim(etag);
  if (etag.starts_with("W/")) etag.remove_prefix(2);
  if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"')
    etag = etag.substr(1, etag.size() - 2);
  return std::string(etag);
}

/// An object or a list, as far as its beginning shows.
bool may_be_json(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  constexpr size_t kMaxBlank = 1000;
  return first == std::string_view::npos ? text.size() <= kMaxBlank
                                         : text[first] == '{' || text[first] == '[';
}

/// Whether a response to HEAD describes the file: the hub's own response, even if it is a redirect
/// to storage.
bool describes_file(const Response& response) {
  return !response.header("x-repo-commit").empty() && !response.header("x-linked-etag").empty();
}

}  // namespace

struct HubApi::Page {
  json content;
  std::string next_url;
};

HubApi::HubApi(const Settings& settings, const RetryPolicy& policy, const ShouldStop& should_stop)
    : settings_(settings),
      policy_(policy),
      should_stop_(should_stop),
      http_(settings, should_stop) {
  policy_.first_delay_s = settings.retry_delay_s;
}

std::string HubApi::api_url(const RepoName& name) const {
  const char* kind = name.type == RepoType::kDataset ? "datasets" : "models";
  return fmt::format("{}/api/{}/{}", settings_.endpoint, kind, name.id);
}

std::string HubApi::page_url(const RepoName& name) const {
  const char* kind = name.type == RepoType::kDataset ? "datasets/" : "";
  return fmt::format("{}/{}{}", settings_.endpoint, kind, name.id);
}

std::string HubApi::file_url(const RepoName& name, const std::string& commit,
                             const std::string& path) const {
  return fmt::format("{}/resolve/{}/{}", page_url(name), commit,
                     quoted(path, /*keep_slashes=*/true));
}

void HubApi::fail(const RepoName& name, const Response& response) const {
  refuse({.name = name, .page_url = shown_url(page_url(name)), .settings = settings_}, response);
}

HubApi::Page HubApi::get_page(const RepoName& name, const std::string& url) {
  return with_retries(Retries(policy_, shown_url(url, settings_), should_stop_), [&] {
    std::string body;
    const BodySink sink{.write = [&](std::span<const char> bytes) {
      if (body.size() + bytes.size() > kMaxPageBytes) malformed("it is too long", url, settings_);
      body.append(bytes.data(), bytes.size());
      // Not read to its end, which may never come.
      if (!may_be_json(body)) throw TransientFailure("the hub's answer is not JSON");
    }};
    const Response response = http_.send({.url = url, .max_s = kMaxPageS}, sink);
    if (!response.ok()) fail(name, response);
    Page page{.content = json::parse(body, nullptr, /*allow_exceptions=*/false)};
    if (page.content.is_discarded()) throw TransientFailure("the hub's answer is not JSON");
    page.next_url = next_link(response.header("link"));
    return page;
  });
}

std::string HubApi::commit_of(const RepoName& name) {
  const std::string url = fmt::format("{}/revision/{}", api_url(name),
                                      quoted(name.revision_or_main(), /*keep_slashes=*/false));
  const Page page = get_page(name, url);
  const std::string commit = page.content.is_object() ? text_under(page.content, "sha") : "";
  if (!is_commit(commit)) malformed("it names no commit", url, settings_);
  return commit;
}

Listing HubApi::list(const RepoName& name) {
  Listing listing{.commit = is_commit(name.revision) ? name.revision : commit_of(name)};
  std::string url =
      fmt::format("{}/tree/{}?recursive=true&expand=false", api_url(name), listing.commit);
  for (size_t pages = 0; !url.empty(); ++pages) {
    const Page page = get_page(name, url);
    if (!page.content.is_array()) malformed("it is not a list of files", url, settings_);
    for (const json& entry : page.content) {
      if (auto file = file_of(entry, url, settings_)) listing.files.push_back(std::move(*file));
    }
    if (listing.files.size() > kMaxFiles || pages > kMaxPages)
      malformed("its list of files is too long", url, settings_);
    if (!page.next_url.empty() && origin_of(page.next_url) != origin_of(settings_.endpoint))
      malformed("the next page of its list of files is on another host", url, settings_);
    url = page.next_url;
  }
  return listing;
}

FileMetadata HubApi::metadata(const RepoName& name, const std::string& commit,
                              const RemoteFile& file) {
  const std::string url = file_url(name, commit, file.path);
  return with_retries(Retries(policy_, shown_url(url, settings_), should_stop_), [&] {
    const Response response = http_.send({.url = url, .head = true}, {}, describes_file);
    if (!response.ok() && response.redirect_url.empty()) fail(name, response);
    const std::string linked = response.header("x-linked-etag");
    FileMetadata metadata{.etag = plain_etag(linked.empty() ? response.header("etag") : linked)};
    if (metadata.etag.empty()) throw TransientFailure("the hub sent no ETag for the file");
    if (!is_relative_path(metadata.etag) || metadata.etag.find('/') != std::string::npos)
      malformed("an ETag that is not a valid file name", url, settings_);
    const std::string size = response.header("x-linked-size");
    if (!size.empty() && size != std::to_string(file.size)) {
      throw TransientFailure(fmt::format("the hub lists {} bytes for the file, but sends {}",
                                         file.size, printable(size, settings_)));
    }
    const Checksum named = checksum_of_etag(metadata.etag);
    const bool known = file.checksum.kind != Checksum::Kind::kNone;
    if (known && named.kind == file.checksum.kind && named != file.checksum)
      throw TransientFailure(
          "the hub's list and its response have different checksums for the file");
    metadata.checksum = known ? file.checksum : named;
    return metadata;
  });
}

}  // namespace sftrun::hub
