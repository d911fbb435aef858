#include "sftrun/hub/repo_name.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"

namespace sftrun::hub {
namespace {

constexpr std::string_view kScheme = "hf://";
constexpr std::array<std::string_view, 3> kSites = {
    "https://huggingface.co/", "https://www.huggingface.co/", "https://hf.co/"};
constexpr size_t kMaxPart = 96;  // length limit of owner and name on the hub

bool is_control(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte < 0x20 || byte == 0x7f;
}

/// Whether `part` is a valid owner or name, as in huggingface_hub's validate_repo_id.
bool is_id_part(std::string_view part) {
  return !part.empty() && part.size() <= kMaxPart && is_word_char(part.front()) &&
         is_word_char(part.back()) && part.find("--") == std::string_view::npos &&
         part.find("..") == std::string_view::npos &&
         std::all_of(part.begin(), part.end(),
                     [&](char c) { return is_word_char(c) || c == '-' || c == '.'; });
}

/// A name with one of these endings is taken for a missing file, not for a repository.
bool is_file_name(std::string_view text) {
  constexpr auto kEndings =
      std::to_array<std::string_view>({".gguf", ".safetensors", ".bin", ".json", ".jsonl", ".csv",
                                       ".parquet", ".txt", ".yaml", ".yml", ".git"});
  return std::any_of(kEndings.begin(), kEndings.end(),
                     [&](std::string_view ending) { return text.ends_with(ending); });
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

/// %2F in the revision of an hf:// name stands for a slash.
std::string percent_decoded(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool coded = text[i] == '%' && i + 2 < text.size() && hex_digit(text[i + 1]) >= 0 &&
                       hex_digit(text[i + 2]) >= 0;
    decoded +=
        coded ? static_cast<char>(hex_digit(text[i + 1]) * 16 + hex_digit(text[i + 2])) : text[i];
    if (coded) i += 2;
  }
  return decoded;
}

/// The length of the revision at the beginning of `text`: up to a slash, except within refs/pr/7 or
/// refs/convert/parquet.
size_t end_of_revision(std::string_view text) {
  for (const std::string_view special : {"refs/pr/", "refs/convert/"}) {
    if (text.starts_with(special)) return std::min(text.find('/', special.size()), text.size());
  }
  return std::min(text.find('/'), text.size());
}

[[noreturn]] void fail(std::string_view text, const std::string& why) {
  throw ConfigError(fmt::format("{}: {}", excerpt(text), why), {},
                    "write hf://owner/name, hf://owner/name@revision, hf://owner/name/file.gguf or "
                    "hf://datasets/owner/name/file.jsonl");
}

/// Splits into owner/name and the text after the second slash.
std::pair<std::string_view, std::string_view> split_id(std::string_view text) {
  const size_t first = text.find('/');
  const size_t second = first == std::string_view::npos ? first : text.find('/', first + 1);
  if (second == std::string_view::npos) return {text, {}};
  return {text.substr(0, second), text.substr(second + 1)};
}

bool is_id(std::string_view id) {
  const size_t slash = id.find('/');
  return slash != std::string_view::npos && is_id_part(id.substr(0, slash)) &&
         is_id_part(id.substr(slash + 1));
}

/// Parses what follows hf:// and models/ or datasets/.
RepoName parse_uri(std::string_view text, std::string_view rest, RepoType type) {
  RepoName name{.type = type};
  const size_t at = rest.find('@');
  std::string_view id = rest, path;
  if (at != std::string_view::npos && std::count(rest.begin(), rest.begin() + at, '/') <= 1) {
    id = rest.substr(0, at);
    const std::string_view tail = rest.substr(at + 1);
    const size_t end = end_of_revision(tail);
    name.revision = percent_decoded(tail.substr(0, end));
    if (!is_revision(name.revision)) fail(text, "the revision after @ is not a valid git name");
    if (end < tail.size()) path = tail.substr(end + 1);
  } else {
    std::tie(id, path) = split_id(rest);
  }
  if (!is_id(id)) fail(text, "the name of a repository is owner/name");
  if (!path.empty() && !is_relative_path(path)) fail(text, "not a path in a repository");
  name.id = id;
  name.path = path;
  return name;
}

/// Converts a web address to the hf:// form: owner/name/tree/main/sub becomes owner/name@main/sub.
std::optional<std::string> from_page(std::string_view text) {
  for (const std::string_view site : kSites) {
    if (!text.starts_with(site)) continue;
    std::string rest(text.substr(site.size()));
    rest.resize(std::min(rest.find_first_of("?#"), rest.size()));
    for (const char* view : {"/tree/", "/blob/", "/resolve/"}) {
      if (const size_t at = rest.find(view); at != std::string::npos)
        rest.replace(at, std::string_view(view).size(), "@");
    }
    return std::string(kScheme) + rest;
  }
  return std::nullopt;
}

/// Parses hf://…; nullopt for a text without hf://.
std::optional<RepoName> parse_scheme(std::string_view text) {
  if (const auto page = from_page(text)) return parse_scheme(*page);
  if (!text.starts_with(kScheme)) return std::nullopt;
  std::string_view rest = text.substr(kScheme.size());
  while (rest.ends_with('/')) rest.remove_suffix(1);
  const auto after = [&](std::string_view prefix) { return rest.substr(prefix.size()); };
  if (rest.starts_with("datasets/")) return parse_uri(text, after("datasets/"), RepoType::kDataset);
  if (rest.starts_with("models/")) return parse_uri(text, after("models/"), RepoType::kModel);
  for (const std::string_view other : {"spaces/", "buckets/", "kernels/"}) {
    if (rest.starts_with(other)) fail(text, "only models and data sets are supported");
  }
  return parse_uri(text, rest, RepoType::kModel);
}

std::optional<RepoName> parse_plain(std::string_view text, RepoType type) {
  const size_t at = text.find('@');
  const std::string_view id = text.substr(0, at);
  if (!is_id(id) || is_file_name(text)) return std::nullopt;
  RepoName name{.type = type, .id = std::string(id)};
  if (at != std::string_view::npos) name.revision = text.substr(at + 1);
  if (at != std::string_view::npos && !is_revision(name.revision)) return std::nullopt;
  return name;
}

}  // namespace

std::string RepoName::text() const {
  const std::string at = revision.empty() ? "" : "@" + revision;
  if (type == RepoType::kModel && path.empty()) return id + at;
  std::string quoted = at;  // a slash would end the revision
  const bool special =
      revision.starts_with("refs/") && end_of_revision(revision) == revision.size();
  for (size_t slash = quoted.find('/'); !special && slash != std::string::npos;
       slash = quoted.find('/'))
    quoted.replace(slash, 1, "%2F");
  return fmt::format("{}{}{}{}{}", kScheme, type == RepoType::kDataset ? "datasets/" : "", id,
                     quoted, path.empty() ? "" : "/" + path);
}

std::optional<RepoName> parse_model_name(std::string_view text) {
  const std::optional<RepoName> name = parse_scheme(text);
  if (!name) return parse_plain(text, RepoType::kModel);
  if (name->type != RepoType::kModel) fail(text, "this names a data set, not a model");
  return name;
}

std::optional<RepoName> parse_dataset_name(std::string_view text) {
  const std::optional<RepoName> name = parse_scheme(text);
  if (!name) return parse_plain(text, RepoType::kDataset);
  if (name->type != RepoType::kDataset) fail(text, "this names a model, not a data set");
  return name;
}

bool begins_as_hub_name(std::string_view text) {
  return text.starts_with(kScheme) ||
         std::any_of(kSites.begin(), kSites.end(),
                     [&](std::string_view site) { return text.starts_with(site); });
}

RepoName with_revision(RepoName name, const std::string& revision) {
  if (revision.empty() || revision == name.revision) return name;
  if (!is_revision(revision)) {
    throw ConfigError(fmt::format("`{}` is not a valid revision", revision), {},
                      "name a branch, a tag or a commit");
  }
  if (!name.revision.empty()) {
    throw ConfigError(fmt::format("{} and the revision {} are different", name.text(), revision),
                      {}, "keep one of them");
  }
  name.revision = revision;
  return name;
}

bool is_revision(std::string_view text) {
  // Forbidden by git, or special in shells
  constexpr std::string_view kForbidden = " ~^:?*[\\\"'<>|";
  constexpr size_t kMaxRevision = 250;
  return text.size() <= kMaxRevision && is_relative_path(text) && !text.starts_with('-') &&
         text.find("..") == std::string_view::npos && text.find("@{") == std::string_view::npos &&
         text.find("/.") == std::string_view::npos && !text.starts_with('.') &&
         text.find_first_of(kForbidden) == std::string_view::npos;
}

bool is_commit(std::string_view text) {
  constexpr size_t kDigits = 40;
  return text.size() == kDigits &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool is_relative_path(std::string_view path) {
  constexpr size_t kMaxComponent = 255, kMaxPath = 1024;
  if (path.empty() || path.size() > kMaxPath || path.find('\\') != std::string_view::npos)
    return false;
  if (std::any_of(path.begin(), path.end(), is_control)) return false;
  const std::vector<std::string> parts = split(std::string(path), '/');
  return std::all_of(parts.begin(), parts.end(), [](const std::string& part) {
    return !part.empty() && part != "." && part != ".." && part.size() <= kMaxComponent;
  });
}

}  // namespace sftrun::hub
