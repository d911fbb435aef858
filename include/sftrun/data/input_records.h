#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/config/run_config.h"
#include "sftrun/core/error.h"
#include "sftrun/data/json_lines.h"

/// Records that commands read from --input and write to --output.
namespace sftrun::data {

struct InputRecord {
  /// The record as one line of JSON; for JSON lines, exactly the line of the file.
  std::string line;
  /// The same; conversations that a table stores as JSON strings are lists here.
  Json record;
  std::string where;             ///< "file:line" or "file, row N", for errors
  std::filesystem::path folder;  ///< of its file: paths of images are relative to it
};

/// Whether one of the records has something that may be an image.
bool have_images(const std::vector<InputRecord>& records);

/// A warning if no record has an image, and some have columns that seem to hold images; empty: there is nothing to say.
std::string unread_images_warning(const std::vector<InputRecord>& records);

/// Reads all records of a file in a format of training (data/record_reader.h; lines of a .txt file
/// are {"text"}), or of standard input.
/// @param input a file; "-": JSON lines or one JSON array from standard input
/// @throws DataError
std::vector<InputRecord> read_input_records(const std::string& input, int num_threads);
/// The records of all files of an input, file by file.   @throws as input_files
std::vector<InputRecord> read_input_records(const config::DataSource& input, int num_threads);

/// The files that an input names, as data.train names them: a file, a folder with its splits and
/// subsets, a pattern. Without a split: train. Not for "-".
/// @throws DataError if there are none, or for an unknown split or subset
std::vector<std::filesystem::path> input_files(const config::DataSource& input);

/// The record with `additions`, as one line of JSON without its end, for `output`. It has the files of
/// images, videos and features in a form that can be read from there: bytes of tables as base64, and
/// relative paths as absolute ones, if `output` is in another folder than the record's file.
/// @param output a file; "-": standard output
std::string output_line(const InputRecord& input, const Json& additions, const std::string& output);

/// @param output a file, written atomically; "-": standard output   @param lines with line ends
/// @param stop_code as write_standard_output (core/standard_streams.h) asks it
void write_records(const std::string& output, std::string_view lines,
                   const std::function<int()>& stop_code = {});

}  // namespace sftrun::data
