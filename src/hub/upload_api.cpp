#include "upload_api.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>

#include "refusal.h"
#include "sftrun/core/base64.h"
#include "sftrun/core/error.h"
#include "sftrun/core/outside_json.h"
#include "sftrun/hub/repo_name.h"
#include "url.h"

namespace sftrun::hub {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMaxAnswerBytes = size_t{64} << 20, kMaxAnswerDepth = 64;
constexpr double kMaxAnswerS = 300;
/// The hub checks a commit, and its storage what it received, before it answers.
constexpr double kAnswerStallFactor = 6;
constexpr long kUnauthorizedStatus = 401, kForbiddenStatus = 403, kAbsentStatus = 404,
               kConflictStatus = 409;
constexpr const char* kLfsType = "application/vnd.git-lfs+json";
constexpr const char* kPublicHub = "https://huggingface.co";

std::optional<uint64_t> whole_number(const std::string& text) {
  uint64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_whole = code == std::errc() && end == text.data() + text.size() && !text.empty();
  return is_whole ? std::optional(value) : std::nullopt;
}

/// A value that a server gives as a text or as a number.
std::string text_of_value(const ordered_json& value) {
  return value.is_string()            ? value.get<std::string>()
         : value.is_number_unsigned() ? std::to_string(value.get<uint64_t>())
                                      : "";
}

const ordered_json* object_under(const ordered_json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found != object.end() && found->is_object() ? &*found : nullptr;
}

/// The URLs of parts are under "1", "2", …; the size of a part under "chunk_size".
void read_header(const ordered_json& header, LfsPlace& place) {
  std::map<uint64_t, std::string> urls;
  for (const auto& [name, value] : header.items()) {
    const std::string text = text_of_value(value);
    if (name == "chunk_size") {
      place.part_bytes = whole_number(text).value_or(0);
    } else if (const auto number = whole_number(name)) {
      urls[*number] = text;
    } else if ((name + text).find_first_of("\r\n") == std::string::npos) {
      place.headers.push_back(name + ": " + text);
    }
  }
  for (auto& [number, url] : urls) place.part_urls.push_back(std::move(url));
}

std::string json_text(const ordered_json& value) {
  return value.dump(-1, ' ', /*ensure_ascii=*/false, ordered_json::error_handler_t::replace);
}

}  // namespace

UploadApi::UploadApi(const Settings& settings, std::string repo, const ShouldStop& should_stop)
    : settings_(settings),
      repo_(std::move(repo)),
      should_stop_(should_stop),
      http_(settings, should_stop) {}

RetryPolicy UploadApi::policy() const {
  RetryPolicy policy;
  policy.first_delay_s = settings_.retry_delay_s;
  return policy;
}

std::string UploadApi::page_url() const {
  return fmt::format("{}/{}", settings_.endpoint, repo_);
}

std::string UploadApi::api_url(const std::string& rest) const {
  return fmt::format("{}/api/models/{}{}", settings_.endpoint, repo_, rest);
}

UploadStep UploadApi::step(const std::string& what) const {
  return {.what = what,
          .page_url = shown_url(repo_.empty() ? settings_.endpoint : page_url()),
          .settings = settings_};
}

void UploadApi::malformed_answer(const std::string& what, const std::string& why) const {
  throw CommError(fmt::format("{}: the hub's answer is malformed: {}", what, why),
                  step(what).page_url,
                  "check that HF_ENDPOINT is a hub and that no proxy answers instead");
}

UploadApi::Answer UploadApi::ask_once(const Request& request, const std::string& what,
                                      std::span<const long> accepts) {
  std::string body;
  const BodySink sink{.begin = [&](const Response&) { body.clear(); },
                      .write =
                          [&](std::span<const char> bytes) {
                            if (body.size() + bytes.size() > kMaxAnswerBytes)
                              malformed_answer(what, "it is too long");
                            body.append(bytes.data(), bytes.size());
                          }};
  // A redirect of a renamed repository is not followed: it would repeat a POST as another request.
  const Response response = http_.send(request, sink, [](const Response&) { return true; });
  const bool is_accepted = std::ranges::find(accepts, response.status) != accepts.end();
  if (!response.redirect_url.empty())
    throw CommError(fmt::format("{}: the server redirects to {}", what,
                                shown_url(response.redirect_url, settings_)),
                    shown_url(request.url, settings_),
                    "use the repository's present name, and the address that HF_ENDPOINT leads to");
  if (!response.ok() && !is_accepted) refuse_upload(step(what), response);
  return {
      .status = response.status,
      .content = parse_outside_json(response.ok() ? body : response.error_body, kMaxAnswerDepth)};
}

UploadApi::Answer UploadApi::ask(Request request, const std::string& what,
                                 std::span<const long> accepts) {
  request.max_s = kMaxAnswerS;
  request.stall_s = settings_.stall_timeout_s * kAnswerStallFactor;
  return with_retries(Retries(policy(), shown_url(request.url, settings_), should_stop_),
                      [&] { return ask_once(request, what, accepts); });
}

UploadApi::Answer UploadApi::post(const std::string& url, const ordered_json& body,
                                  const std::string& what, std::span<const long> accepts) {
  return ask({.url = url, .headers = {"Content-Type: application/json"}, .body = json_text(body)},
             what, accepts);
}

std::string UploadApi::user() {
  const std::string what = "cannot find out whose token this is";
  const Answer answer = ask({.url = settings_.endpoint + "/api/whoami-v2"}, what);
  const std::string name = text_under(answer.content, "name");
  if (!parse_model_name(name + "/x")) malformed_answer(what, "it names no user");
  return name;
}

std::optional<RepoState> UploadApi::repo() {
  constexpr std::array kAccepts = {kAbsentStatus, kUnauthorizedStatus};
  const std::string what = "cannot look up " + repo_;
  const Answer answer = ask({.url = api_url("")}, what, kAccepts);
  if (answer.status == kAbsentStatus) return std::nullopt;
  if (answer.status == kUnauthorizedStatus) {
    const std::string words = text_under(answer.content, "error");
    if (!is_about_a_token(words)) return std::nullopt;
    refuse_upload(step(what), {.status = answer.status, .error_body = json_text(answer.content)});
  }
  if (!answer.content.is_object()) malformed_answer(what, "it is not an object");
  return RepoState{.is_private = answer.content.value("private", ordered_json()) == true};
}

void UploadApi::create(bool is_private) {
  const size_t slash = repo_.find('/');
  ordered_json body = {{"type", "model"},
                       {"name", repo_.substr(slash + 1)},
                       {"organization", repo_.substr(0, slash)}};
  if (is_private) body["visibility"] = "private";
  const std::string what = "cannot create the repository " + repo_;
  const std::string url = settings_.endpoint + "/api/repos/create";
  const Request request{.url = url,
                        .headers = {"Content-Type: application/json"},
                        .max_s = kMaxAnswerS,
                        .body = json_text(body)};
  with_retries(Retries(policy(), shown_url(url, settings_), should_stop_), [&] {
    constexpr std::array kAccepts = {kConflictStatus};
    const Answer answer = ask_once(request, what, kAccepts);
    // The hub creates one repository of a user at a time, and says so with the status of one that exists.
    if (answer.status == kConflictStatus &&
        text_under(answer.content, "error").find("in progress") != std::string::npos)
      throw TransientFailure(what + ": the hub creates another one for this account");
  });
}

std::optional<std::string> UploadApi::commit_of(const std::string& branch) {
  constexpr std::array kAccepts = {kAbsentStatus};
  const std::string what = fmt::format("cannot look up the branch {} of {}", branch, repo_);
  const Answer answer =
      ask({.url = api_url("/revision/" + quoted(branch, /*keep_slashes=*/false))}, what, kAccepts);
  if (answer.status == kAbsentStatus) return std::nullopt;
  const std::string commit = text_under(answer.content, "sha");
  if (!is_commit(commit)) malformed_answer(what, "it names no commit");
  return commit;
}

void UploadApi::create_branch(const std::string& branch) {
  constexpr std::array kAccepts = {kConflictStatus};  // it exists
  post(api_url("/branch/" + quoted(branch, /*keep_slashes=*/false)), ordered_json::object(),
       fmt::format("cannot create the branch {} of {}", branch, repo_), kAccepts);
}

std::vector<FileMode> UploadApi::modes(const std::string& branch,
                                       std::span<const FileQuestion> files) {
  const std::string what = "cannot prepare the upload to " + repo_;
  ordered_json asked = ordered_json::array();
  for (const FileQuestion& file : files)
    asked.push_back(
        {{"path", file.path}, {"size", file.size}, {"sample", encode_base64(file.sample)}});
  const Answer answer = post(api_url("/preupload/" + quoted(branch, /*keep_slashes=*/false)),
                             {{"files", asked}}, what);
  std::map<std::string, FileMode> modes;
  const auto entries =
      answer.content.is_object() ? answer.content.value("files", ordered_json()) : ordered_json();
  for (const ordered_json& entry : entries.is_array() ? entries : ordered_json::array()) {
    const std::string mode = text_under(entry, "uploadMode");
    if (mode != "lfs" && mode != "regular") malformed_answer(what, "an unknown upload mode");
    modes[text_under(entry, "path")] = {
        .is_lfs = mode == "lfs",
        .is_ignored = entry.value("shouldIgnore", ordered_json()) == true,
        .oid = text_under(entry, "oid")};
  }
  std::vector<FileMode> in_order;
  for (const FileQuestion& file : files) {
    const auto found = modes.find(file.path);
    if (found == modes.end()) malformed_answer(what, "it lacks " + file.path);
    in_order.push_back(found->second);
    if (file.size == 0) in_order.back().is_lfs = false;  // storage takes no empty objects
  }
  return in_order;
}

/// A mirror may name the hub that it stands for.
std::string UploadApi::reachable(std::string url) const {
  const bool is_mirror = origin_of(settings_.endpoint) != origin_of(kPublicHub);
  if (is_mirror && origin_of(url) == origin_of(kPublicHub))
    url.replace(0, std::string_view(kPublicHub).size(), settings_.endpoint);
  return url;
}

LfsPlace UploadApi::place_of(const ordered_json& entry, const LfsObject& object) const {
  const std::string what = "cannot upload " + object.path;
  if (const ordered_json* error = object_under(entry, "error")) {
    throw DataError(
        fmt::format("{}: {}", what, printable(text_under(*error, "message"), settings_)),
        step(what).page_url, "do what the hub says, then rerun the same command");
  }
  const ordered_json* actions = object_under(entry, "actions");
  const ordered_json* upload = actions != nullptr ? object_under(*actions, "upload") : nullptr;
  if (upload == nullptr) return {.is_there = true};
  LfsPlace place{.url = reachable(text_under(*upload, "href"))};
  if (const ordered_json* header = object_under(*upload, "header")) read_header(*header, place);
  if (const ordered_json* verify = object_under(*actions, "verify"))
    place.verify_url = reachable(text_under(*verify, "href"));
  std::vector<std::string> urls = place.part_urls;
  urls.push_back(place.url);
  const char* scheme = settings_.endpoint.starts_with("https://") ? "https://" : "http";
  const bool has_urls = std::ranges::all_of(
      urls, [&](const std::string& url) { return origin_of(url).starts_with(scheme); });
  const uint64_t num_parts =
      place.part_bytes == 0 ? 0 : (object.size + place.part_bytes - 1) / place.part_bytes;
  if (!has_urls || num_parts != place.part_urls.size())
    malformed_answer(what, "the addresses of its storage");
  return place;
}

std::vector<LfsPlace> UploadApi::places(const std::string& branch,
                                        std::span<const LfsObject> objects) {
  const std::string what = "cannot upload large files to " + repo_;
  ordered_json asked = ordered_json::array();
  for (const LfsObject& object : objects)
    asked.push_back({{"oid", object.sha256}, {"size", object.size}});
  const ordered_json body = {{"operation", "upload"},
                             {"transfers", {"basic", "multipart"}},
                             {"objects", asked},
                             {"hash_algo", "sha256"},
                             {"ref", {{"name", branch}}}};
  const Answer answer = ask(
      {.url = page_url() + ".git/info/lfs/objects/batch",
       .headers = {fmt::format("Accept: {}", kLfsType), fmt::format("Content-Type: {}", kLfsType)},
       .body = json_text(body)},
      what);
  const std::string transfer = text_under(answer.content, "transfer");
  if (!transfer.empty() && transfer != "basic" && transfer != "multipart")
    throw CommError(
        fmt::format("{}: the hub takes them only by the transfer `{}`, which sftrun does not have",
                    what, printable(transfer, settings_)),
        step(what).page_url,
        fmt::format("upload the folder with `hf upload {} FOLDER` (huggingface_hub with hf_xet)",
                    repo_));
  const auto entries =
      answer.content.is_object() ? answer.content.value("objects", ordered_json()) : ordered_json();
  std::vector<LfsPlace> places;
  for (const LfsObject& object : objects) {
    const auto found = std::find_if(entries.begin(), entries.end(), [&](const auto& entry) {
      return text_under(entry, "oid") == object.sha256;
    });
    if (!entries.is_array() || found == entries.end())
      malformed_answer(what, "it lacks " + object.path);
    places.push_back(place_of(*found, object));
  }
  return places;
}

void UploadApi::complete(const LfsObject& object, const LfsPlace& place,
                         const std::vector<PartTag>& parts) {
  ordered_json tags = ordered_json::array();
  for (const PartTag& part : parts)
    tags.push_back({{"partNumber", part.number}, {"etag", part.etag}});
  ask({.url = place.url,
       .headers = {fmt::format("Accept: {}", kLfsType), fmt::format("Content-Type: {}", kLfsType)},
       .body = json_text({{"oid", object.sha256}, {"parts", tags}})},
      "cannot complete the upload of " + object.path);
}

void UploadApi::verify(const LfsObject& object, const LfsPlace& place) {
  post(place.verify_url, {{"oid", object.sha256}, {"size", object.size}},
       fmt::format("the hub does not confirm the upload of {}", object.path));
}

std::string UploadApi::commit(const std::string& branch, std::string lines) {
  const std::string what = fmt::format("cannot commit to {}", repo_);
  const Request request{.url = api_url("/commit/" + quoted(branch, /*keep_slashes=*/false)),
                        .headers = {"Content-Type: application/x-ndjson"},
                        .body = std::move(lines),
                        .stall_s = settings_.stall_timeout_s * kAnswerStallFactor,
                        .only_once = true};
  const Answer answer = ask_once(request, what, {});
  const std::string commit = text_under(answer.content, "commitOid");
  if (!is_commit(commit)) malformed_answer(what, "it names no commit");
  return commit;
}

}  // namespace sftrun::hub
