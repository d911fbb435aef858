#pragma once

#include <filesystem>
#include <string>
#include <vector>

/// File extensions of data files.
namespace sftrun::data {

/// ".jsonl", ".csv", …, and ".gz", ".zst", … for compressed ones.
const std::vector<std::string>& data_extensions();

/// The extension in lower case, without that of the compression: ".csv" for "A.CSV.gz".
std::string inner_extension(const std::filesystem::path& file);

/// Whether a file has the name of a data file.
bool has_data_extension(const std::filesystem::path& file);

}  // namespace sftrun::data
