#include "sftrun/data/data_extensions.h"

#include <algorithm>
#include <array>

#include "sftrun/core/strings.h"

namespace sftrun::data {
namespace {

constexpr std::array kFormats = {".jsonl", ".ndjson",  ".json", ".csv",
                                 ".tsv",   ".parquet", ".arrow"};
constexpr std::array kCompressions = {".gz", ".gzip", ".zst", ".zstd"};

template <typename Extensions>
bool holds(const Extensions& extensions, const std::string& extension) {
  return std::find(extensions.begin(), extensions.end(), extension) != extensions.end();
}

}  // namespace

const std::vector<std::string>& data_extensions() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> extensions(kFormats.begin(), kFormats.end());
    extensions.insert(extensions.end(), kCompressions.begin(), kCompressions.end());
    return extensions;
  }();
  return all;
}

std::string inner_extension(const std::filesystem::path& file) {
  const std::string outer = ascii_lower(file.extension().string());
  return holds(kCompressions, outer) ? ascii_lower(file.stem().extension().string()) : outer;
}

bool has_data_extension(const std::filesystem::path& file) {
  return holds(kFormats, inner_extension(file));
}

}  // namespace sftrun::data
