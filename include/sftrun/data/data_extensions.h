#pragma once

#include <filesystem>
#include <string>
#include <vector>

/// What data files are called.
namespace sftrun::data {

/// ".jsonl", ".csv", …, and ".gz", ".zst", … of compressed ones.
const std::vector<std::string>& data_extensions();

/// In lower case and below that of a compression: ".csv" of "A.CSV.gz".
std::string inner_extension(const std::filesystem::path& file);

/// Whether a file is data by its name.
bool has_data_extension(const std::filesystem::path& file);

}  // namespace sftrun::data
