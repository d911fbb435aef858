#pragma once

#include <deque>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "media_stamps.h"
#include "record.h"
#include "sftrun/data/features.h"
#include "sftrun/data/media.h"

/// Features of records: where they are written, and the marks that stand for them until the text is whole.
namespace sftrun::data {

/// Where a record is from.
struct MediaPlace {
  std::string where;             ///< "file:line", for errors
  std::filesystem::path folder;  ///< that paths are relative to: the record's file's, or image_root
  MediaStamps* stamps = nullptr;  ///< notes the record's files; may be null
};

/// An image, features or a video, with the text that stands for it.
struct ReadMedia {
  SequenceMedia media;  ///< without its place in the tokens
  std::string text;
  /// Of a video: its frames that become patches together, in order. Their texts are all of `text`.
  std::vector<ReadMedia> groups = {};
};

/// Whether a part of a message's content stands for features: {"type": "features", "path": …}.
bool is_features_part(const Json& part);
/// Of a model without projectors.   @throws RecordError
[[noreturn]] void refuse_features_part(const std::string& name, const std::string& where);
/// @throws DataError for a part of this kind with other keys
void check_features_part(const Json& part, const std::string& name, const std::string& where);

/// A mark in a text, and the features that it stands for.
struct FeatureMark {
  size_t begin = 0, size = 0, number = 0;
};
std::vector<FeatureMark> find_feature_marks(std::string_view text);

/// The features of one record: parts {"type": "features", "path": "a.npy", "projector": "world"}, or the column `features`, a path, {name
/// of a projector: path}, or a list of these, whose features come before the first user's text. `projector` may be left out if there is
/// one.
class RecordFeatures {
 public:
  RecordFeatures(const FeatureInput& input, MediaPlace place)
      : input_(input), place_(std::move(place)) {}

  /// The record with text parts in place of its features, or with marks in its texts. They are read by their headers.
  /// @throws DataError for features that cannot be read, or do not fit a projector, and for records with marks of their own
  Json mark(const Json& record, RecordFormat format);
  size_t size() const { return media_.size(); }
  /// Of a mark that `mark` made.
  const ReadMedia& of(const FeatureMark& mark) const;

 private:
  std::string mark_of(const Json& path, const std::string& projector, const std::string& name);
  std::string marks_of_column(const Json& column);
  void mark_turns(Json& turns, const std::string& name);
  void put_before_text(Json& record, RecordFormat format, const std::string& marks);
  const FeatureProjector& projector_named(const std::string& name, const std::string& place) const;
  [[noreturn]] void refuse(const std::string& what, const std::string& fix) const;

  const FeatureInput& input_;
  MediaPlace place_;
  std::deque<ReadMedia> media_;
};

}  // namespace sftrun::data
