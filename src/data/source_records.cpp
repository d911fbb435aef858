#include "source_records.h"

#include <algorithm>

#include "bad_records.h"
#include "record.h"
#include "sftrun/core/error.h"

namespace sftrun::data {
namespace {

/// A record's block, of which the first `skipped` records are left out.
class BlockTail final : public RecordBlock {
 public:
  BlockTail(std::shared_ptr<const RecordBlock> whole, size_t skipped)
      : whole_(std::move(whole)), skipped_(skipped) {}
  size_t size() const override { return whole_->size() - skipped_; }
  int64_t number(size_t index) const override { return whole_->number(skipped_ + index); }
  Json parse(size_t index, const std::string& where) const override {
    return whole_->parse(skipped_ + index, where);
  }

 private:
  std::shared_ptr<const RecordBlock> whole_;
  size_t skipped_;
};

Json merged(const Json& base, const Json& over) {
  Json result = base;
  for (const auto& [key, value] : over.items()) result[key] = value;
  return result;
}

/// Cached examples have paths of images, for runs in other folders, too.
std::filesystem::path without_links(const std::filesystem::path& folder) {
  std::error_code code;
  const auto canonical = std::filesystem::canonical(folder.empty() ? "." : folder, code);
  return code ? folder : canonical;
}

std::filesystem::path image_root_of(const config::DataConfig& data,
                                    const config::DataSource& source) {
  const std::string& root = source.image_root.empty() ? data.image_root : source.image_root;
  return root.empty() ? std::filesystem::path() : without_links(root);
}

RecordFormat format_of(const config::DataConfig& data, const config::DataSource& source) {
  return source.format == RecordFormat::kAuto ? data.format : source.format;
}

}  // namespace

SourceRecords::SourceRecords(const config::RunConfig& config, const config::DataSource& source,
                             SplitRole role)
    : source_(source),
      image_root_(image_root_of(config.data, source)),
      fields_(merged(config.data.fields, source.fields), format_of(config.data, source)),
      objective_(config.train.objective),
      reads_prompts_(config.train.has_rollouts()),
      takes_text_(
          config::is_format(format_of(config.data, source), &config::RecordFormatInfo::is_text)),
      left_(source.max_samples) {
  for (const std::filesystem::path& file : source_files(source, role)) {
    files_.push_back({.path = file.string()});
    std::error_code ignored;
    sizes_.push_back(std::filesystem::file_size(file, ignored));
  }
  first_ = read();
  if (!first_) {
    throw DataError("the file has no records", source.path, "write one JSON object per line");
  }
  estimated_records_ = static_cast<double>(first_->count) / std::clamp(fraction_read(), 1e-9, 1.0);
  if (source.max_samples)
    estimated_records_ = std::min(estimated_records_, static_cast<double>(*source.max_samples));
  if (reader_->is_plain_text()) reads_json_as_text_ = first_line_is_json();
  const RecordFormat configured = format_of(config.data, source);
  if (configured != RecordFormat::kAuto) {
    format_ = {configured, "set by data.format"};
    return;
  }
  format_ = detect();
}

bool SourceRecords::first_line_is_json() const {
  try {
    const Json record = first_->records->parse(0, where(*first_, 0));
    return parse_json_text(record.at("text").get_ref<const std::string&>()).is_object();
  } catch (const DataError&) {
    return false;  // a bad record
  }
}

DetectedFormat SourceRecords::format_of_record(const Json& record, const std::string& place) const {
  return reads_prompts_ ? detect_prompt_format(record, place)
                        : detect_format(record, place, objective_);
}

/// The format of the first record that has one; records before it may be bad.
DetectedFormat SourceRecords::detect() const {
  BadRecords bad;
  for (size_t i = 0; i < first_->count; ++i) {
    const std::string place = where(*first_, i);
    try {
      const Json record = parse(*first_, i).record;
      if (!reads_prompts_) fields_.require_pairs(record, place);
      return format_of_record(record, place);
    } catch (const DataError& error) {
      bad.add({error}, static_cast<int64_t>(i));
      if (bad.is_hopeless(bad.count())) break;
    }
  }
  bad.refuse(bad.count());
}

void SourceRecords::require_one_format() const {
  constexpr size_t kMaxFiles = 128;
  const size_t stride = (files_.size() + kMaxFiles - 1) / kMaxFiles;
  for (size_t file = stride; file < files_.size(); file += stride) require_same_format(file);
}

void SourceRecords::require_same_format(size_t file) const {
  SourceFile named = files_[file];
  const auto reader = open(file);
  named.is_table = reader->is_table();
  const auto block = reader->next();
  if (!block) return;
  const std::string place = named.where(block->number(0));
  DetectedFormat other;
  try {
    const Json record =
        fields_.apply(block->parse(0, place), place, reader->has_text_cells()).record;
    other = format_of_record(record, place);
    if (other.format == format_.format) return;
    if (reads_prompts_) return;  // each is read by its own keys
    shapes_of(record, format_.format, TemplateTraits{.reads_images = true}, place);
    return;  // it has the keys of both
  } catch (const DataError&) {
    if (other.reason.empty()) return;  // a bad record, as there may be everywhere
  }
  throw DataError(
      fmt::format("the files of a data set must have the same format: {} has {} records "
                  "({}), {} has {} records ({})",
                  files_[0].path, name_of(format_.format), format_.reason, named.path,
                  name_of(other.format), other.reason),
      place, "list them as separate data sets: data.train: [a.jsonl, b.jsonl]");
}

std::unique_ptr<RecordReader> SourceRecords::open(size_t file) const {
  auto reader = open_records(files_[file].path, takes_text_ ? LineForm::kText : LineForm::kEither);
  if (reader->is_plain_text() && !takes_text_) {
    throw DataError(
        "this is plain text, not records", files_[file].path,
        "set data.format: text to train on it line by line; each non-empty line is a record");
  }
  return reader;
}

bool SourceRecords::open_next() {
  if (next_file_ == files_.size()) return false;
  if (reader_) bytes_before_ += sizes_[next_file_ - 1];
  reader_ = open(next_file_);
  files_[next_file_].is_table = reader_->is_table();
  ++next_file_;
  return true;
}

std::optional<SourceRecords::Block> SourceRecords::read() {
  if (left_ == 0) return std::nullopt;
  for (;;) {
    if (!reader_ && !open_next()) return std::nullopt;
    std::shared_ptr<const RecordBlock> records = reader_->next();
    if (!records) {
      if (!open_next()) return std::nullopt;
      continue;
    }
    const auto in_block = static_cast<int64_t>(records->size());
    if (to_skip_ >= in_block) {
      to_skip_ -= in_block;
      if (left_) *left_ = std::max<int64_t>(*left_ - in_block, 0);
      if (left_ == 0) return std::nullopt;
      continue;
    }
    if (to_skip_ > 0) {
      records = std::make_shared<BlockTail>(records, static_cast<size_t>(to_skip_));
      if (left_) *left_ = std::max<int64_t>(*left_ - to_skip_, 0);
      to_skip_ = 0;
      if (left_ == 0) return std::nullopt;
    }
    Block block{.records = records,
                .count = records->size(),
                .file = static_cast<int32_t>(next_file_) - 1,
                .has_text_cells = reader_->has_text_cells()};
    if (left_) {
      block.count = std::min(block.count, static_cast<size_t>(*left_));
      *left_ -= static_cast<int64_t>(block.count);
    }
    return block;
  }
}

std::optional<SourceRecords::Block> SourceRecords::next() {
  if (first_) return std::exchange(first_, std::nullopt);
  return read();
}

void SourceRecords::skip(int64_t count) {
  SFTRUN_CHECK(first_.has_value());
  const auto in_first = static_cast<int64_t>(first_->count);
  if (count >= in_first) {
    to_skip_ = count - in_first;
    first_.reset();
  } else if (count > 0) {
    first_->records = std::make_shared<BlockTail>(first_->records, static_cast<size_t>(count));
    first_->count -= static_cast<size_t>(count);
  }
}

MappedRecord SourceRecords::parse(const Block& block, size_t index) const {
  const std::string place = where(block, index);
  return fields_.apply(block.records->parse(index, place), place, block.has_text_cells);
}

std::string SourceRecords::where(const Block& block, size_t index) const {
  return files_[static_cast<size_t>(block.file)].where(block.records->number(index));
}

std::filesystem::path SourceRecords::folder(const Block& block) const {
  if (!image_root_.empty()) return image_root_;
  return without_links(
      std::filesystem::path(files_[static_cast<size_t>(block.file)].path).parent_path());
}

double SourceRecords::fraction_read() const {
  uint64_t total = 0;
  for (const uint64_t size : sizes_) total += size;
  if (total == 0) return 1;
  const uint64_t read = bytes_before_ + (reader_ ? reader_->file_position() : 0);
  return static_cast<double>(std::min(read, total)) / static_cast<double>(total);
}

}  // namespace sftrun::data
