#pragma once

#include <array>
#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "record.h"
#include "record_features.h"
#include "sftrun/data/image_input.h"
#include "sftrun/data/media.h"

/// Images of records: where they are written, and what the model makes of them.
namespace sftrun::data {

/// What stands for an image in texts of LLaVA's layout, whatever the model writes.
inline constexpr std::string_view kImageMarker = "<image>";

/// Keys of a part that have its image, of which the first counts.
inline constexpr std::array kImageKeys = {"image", "image_url", "path", "url", "bytes", "base64"};

/// Whether a string has the bytes of a WebP file, which may be valid UTF-8.
bool is_webp_file(std::string_view bytes);

/// Whether a part of a message's content stands for an image: {"type": "image", …}, {"type": "image_url", …}, {"image": …}.
bool is_image_part(const Json& part);

/// What stands for a video in texts of LLaMA-Factory's layout, whatever the model writes.
inline constexpr std::string_view kVideoMarker = "<video>";

/// Keys of a part that have its video, a list of frames, of which the first counts.
inline constexpr std::array kVideoKeys = {"video", "frames", "path", "url"};
/// Further keys of a part or an object that is a video: when its frames are.
inline constexpr std::array kFrameTimeKeys = {"fps", "sample_fps", "timestamps"};

/// Whether a part of a message's content stands for a video: {"type": "video", …}, {"video": …}.
bool is_video_part(const Json& part);
inline bool is_visual_part(const Json& part) {
  return is_image_part(part) || is_video_part(part);
}

/// Whether a turn of the record has an image or a video among its parts.
bool has_image_parts(const Json& record, RecordFormat format);
/// Whether the record has a column of images or videos.
bool has_image_columns(const Json& record);
/// @throws DataError for a record with an image in a conversation, which the model does not read
void refuse_image_parts(const Json& record, RecordFormat format, const std::string& where);

/// The images and features of one record.
///
/// An image is a part of a message's content, with its file (`path`, `url`, `image`, `image_url`, `bytes`, `base64`) or without. Those
/// without take the images of the columns `images` or `image` in order, and so does each `<image>` in a message that is a string.
/// Where nothing stands for the columns' images, they are put before the text of the first user's turn, as TRL does.
///
/// A video is a list of frames, each written as an image is: a part with `video` or `frames`, and with `fps` or `timestamps` if it is
/// known when they are. The columns `videos` and `video`, and `<video>`, do what `images`, `image` and `<image>` do.
class RecordMedia {
 public:
  /// @param input null: the model reads no images   @param features null: the model has no projectors
  RecordMedia(const ImageInput* input, const FeatureInput* features, const Json& record,
              MediaPlace place);

  /// The record with marks in place of its features (RecordFeatures::mark); `record` itself if the model has no projectors.
  /// @param room receives the record with marks
  const Json& marked(const Json& record, RecordFormat format, Json& room);
  /// Of a mark in a text.   @pre the model has projectors
  const ReadMedia& features_of(const FeatureMark& mark) const { return features_->of(mark); }

  /// Reads the headers of the images of a conversation, and replaces each by {"type": "image", "image": N}, of which N is its index here.
  /// @throws DataError for images that cannot be read, that the processor refuses, or without a file, and for other numbers of images than
  /// of places
  void take(Json& messages);
  /// The images of a text, in the order of its markers: `<image>`, or what the model's template writes. Markers are looked for where the
  /// record has a column of images alone, which may be empty.
  /// @param num_markers in the whole text
  /// @throws DataError as above
  std::vector<size_t> take_for_text(size_t num_markers);

  /// Whether the record has the column `images` or `image`, even if nothing is in it: then `<image>` in a text stands for an image.
  bool has_columns() const { return has_columns_; }
  size_t num_of_columns() const { return columns_.size(); }  ///< images
  /// Whether a text has `<image>` in a record without such a column. It stays text.
  bool has_idle_marker() const { return has_idle_marker_; }
  void note_text(std::string_view text);  ///< of a record without turns
  /// As `take_for_text`, of videos.
  std::vector<size_t> take_videos_for_text(size_t num_markers);
  bool has_video_columns() const { return has_video_columns_; }
  size_t num_videos_of_columns() const { return video_columns_.size(); }
  const ReadMedia& operator[](size_t index) const { return images_[index]; }
  bool reads_images() const { return input_ != nullptr; }
  bool reads_features() const { return features_.has_value(); }
  /// Of the record, once it is `marked`.
  size_t num_features() const { return features_ ? features_->size() : 0; }
  /// @pre reads_images()
  const ImageInput& input() const { return *input_; }
  const std::string& where() const { return place_.where; }

 private:
  struct Column {
    const Json* value;
    std::string name;
  };
  void find_columns(const Json& record);
  Json split_at_markers(const std::string& text);
  void split_texts(Json& content);
  Json next_of_columns(const std::string& place);
  void put_before_text(Json& messages);
  void require_all_used(const std::string& place) const;
  size_t add(const Json& value, const std::string& key, const std::string& name);

  void find_video_columns(const Json& record);
  void take_videos(Json& messages);
  void split_at_video_markers(Json& content);
  Json next_video_of_columns(const std::string& place);
  void put_videos_before_text(Json& messages);
  void require_all_videos_used(const std::string& place) const;
  /// @param video a list of frames, or an object with one
  size_t add_video(const Json& video, const std::string& name);
  std::vector<SequenceMedia> read_frames(const Json& frames, const std::string& name) const;
  /// When each frame is, and how many there are for a second.
  struct FrameTimes {
    std::vector<double> seconds;
    double rate = 0;
  };
  FrameTimes times_of(const Json& video, size_t num_frames, const std::string& name) const;
  void require_videos() const;

  ReadMedia read(const Media& media, const std::string& name) const;
  SequenceMedia read_frame(const Media& media, const std::string& name) const;
  /// Calls `read`, whose errors get the name of the image and its record.
  template <class Read>
  auto naming(const Media& media, const std::string& name, const Read& read) const;
  ReadMedia read_image(const Media& media) const;
  SequenceMedia read_header(const Media& media) const;
  std::string written_path(const std::string& path) const;
  Media media_of(const Json& value, const std::string& key, const std::string& name) const;
  Media media_at(const std::string& path_or_url, const std::string& name) const;
  Media media_in(const Json& bytes, const std::string& name) const;
  const char* image_fix() const;
  [[noreturn]] void refuse(const std::string& what, const std::string& fix) const;

  const ImageInput* input_;
  std::optional<RecordFeatures> features_;
  MediaPlace place_;
  std::vector<Column> columns_;  // of all images
  bool has_columns_ = false, has_idle_marker_ = false;
  size_t num_used_ = 0, num_markers_ = 0;  // of the columns, in the conversation that is read
  std::vector<Column> video_columns_;
  bool has_video_columns_ = false;
  size_t num_videos_used_ = 0, num_video_markers_ = 0;  // likewise
  std::deque<ReadMedia> images_;                        // and videos; places refer to them
};

/// The images and features of a record.   @return null: the model reads text alone
/// @throws DataError for a record with images in a conversation, which the model's files make unreadable
std::unique_ptr<RecordMedia> media_of_record(const Json& record, RecordFormat format,
                                             const TextModel& model, MediaPlace place);

}  // namespace sftrun::data
