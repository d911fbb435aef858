#include <algorithm>
#include <array>

#include "json_access.h"
#include "sftrun/core/encoding.h"
#include "sftrun/core/entries.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/optional_file.h"
#include "tokenizer_classes.h"

namespace sftrun::tokenizer {
namespace {

namespace fs = std::filesystem;

/// The first file by name that has one of the endings.
std::optional<fs::path> file_ending_in(const fs::path& directory, std::string_view ending) {
  std::vector<fs::path> found;
  for (const fs::path& entry : readable_entries_of(directory))
    if (entry.filename().string().ends_with(ending)) found.push_back(entry);
  if (found.empty()) return std::nullopt;
  return *std::min_element(found.begin(), found.end());
}

TokenizerSource from_model_file(const fs::path& path, const TokenizerConfig& config) {
  const std::string bytes = read_text_file(path);
  if (looks_like_tiktoken(bytes))
    return source_from_tiktoken(bytes, path.filename().string(), config, path.string());
  TokenizerSource source =
      source_from_sentencepiece(read_sentencepiece_model(bytes, path.string()), config);
  add_configured_tokens(config, source, false);
  return source;
}

[[noreturn]] void fail_no_files(const fs::path& directory) {
  throw DataError("the model has no tokenizer.json", directory.string(),
                  "copy the tokenizer's files too: tokenizer.json, tekken.json, tokenizer.model, "
                  "*.tiktoken, or vocab.json with merges.txt");
}

constexpr std::array kModelFiles = {"tokenizer.model", "tiktoken.model"};

TokenizerSource from_other_files(const fs::path& directory, const TokenizerConfig& config) {
  if (const fs::path file = directory / "tekken.json"; has_optional_file(file))
    return source_from_tekken(read_utf8_file(file), file.string());
  for (const char* name : kModelFiles) {
    if (has_optional_file(directory / name)) return from_model_file(directory / name, config);
  }
  if (const auto file = file_ending_in(directory, ".tiktoken"))
    return source_from_tiktoken(read_text_file(*file), file->filename().string(), config,
                                file->string());
  const fs::path vocab = directory / "vocab.json", merges = directory / "merges.txt";
  if (!has_optional_file(vocab) || !has_optional_file(merges)) fail_no_files(directory);
  return source_from_vocab_files(read_utf8_file(vocab), read_utf8_file(merges), config,
                                 directory.string());
}

/// "" if config.json does not say; errors in that file are reported by the code that reads the
/// model.
std::string model_type_of(const fs::path& directory) {
  const fs::path path = directory / "config.json";
  if (!has_optional_file(path)) return "";
  const Json document = parse_document(read_utf8_file(path));
  const bool names_one = document.is_object() && document.contains("model_type") &&
                         document.at("model_type").is_string();
  return names_one ? document.at("model_type").get<std::string>() : "";
}

}  // namespace

bool has_tokenizer_files(const fs::path& directory) {
  const auto has = [&](const char* name) { return has_optional_file(directory / name); };
  return has("tokenizer.json") || has("tekken.json") ||
         std::any_of(kModelFiles.begin(), kModelFiles.end(), has) ||
         file_ending_in(directory, ".tiktoken") || (has("vocab.json") && has("merges.txt"));
}

TokenizerSource read_tokenizer_directory(const fs::path& directory) {
  const TokenizerConfig config = TokenizerConfig::read(directory);
  const fs::path file = directory / "tokenizer.json";
  if (!has_optional_file(file)) return from_other_files(directory, config);
  TokenizerSource source = read_tokenizer_json(read_utf8_file(file), file.string());
  source.other_class = other_class(source, config, model_type_of(directory));
  add_configured_tokens(config, source, true);
  return source;
}

}  // namespace sftrun::tokenizer
