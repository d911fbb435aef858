#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

/// References to images. Pixels are nowhere in the data: an image's file is read when a batch needs it.
namespace sftrun::data {

/// The encoded file of an image: a file of its own, or bytes that its record holds.
struct Media {
  std::string path;                          ///< empty: `bytes`
  std::shared_ptr<const std::string> bytes;  ///< null: `path`
  bool operator==(const Media& other) const;
};

/// The encoded file.   @throws DataError naming the path if it cannot be read
std::string read_media(const Media& media);
inline constexpr const char* kBytesInRecord = "bytes in the record";
/// "photos/a.jpg", or kBytesInRecord
std::string name_of(const Media& media);

/// Where frames of a video are in it.
struct VideoFrames {
  int64_t video = 0;     ///< number of the video in its sequence, from 1; 0: these are no frames
  int64_t of_video = 0;  ///< frames of the whole video
  int64_t first = 0;     ///< number of the first of these frames in the video, from 0
  /// M-RoPE: position on the axis of time, from the video's first. The frames are at the place of the video's first ones. -1: they
  /// have a place of their own, as an image has.
  int64_t time = -1;
  std::vector<Media> further;  ///< files of the frames behind `SequenceMedia::media`
  bool operator==(const VideoFrames&) const = default;
};

/// An image in a sequence of tokens, frames of a video that become patches together, or features that another encoder computed.
struct SequenceMedia {
  Media media;
  int64_t projector = -1;  ///< of features: the number in `ArchSpec::projectors`; -1: an image
  VideoFrames frames;      ///< of an image none
  /// Frames are images, too: what the vision tower sees.
  bool is_image() const { return projector < 0; }
  bool is_of_video() const { return frames.video > 0; }
  int64_t width = 0, height = 0;  ///< pixels, turned as EXIF's orientation says; of features 0
  /// What the model's image processor makes of this size (images::ImagePlan).
  int64_t rows = 0;        ///< patches or tiles; rows of features
  int64_t num_tokens = 0;  ///< positions that get its features
  std::array<int64_t, 3> grid_thw =
      {};  ///< patches in time, height and width, for layouts of patches
  /// Its tokens [begin, end), with the processor's markers around and between them. Those with the id `feature` get features, in order.
  int64_t begin = 0, end = 0;
  int32_t feature = -1;
  bool is_blank = false;  ///< of a batch: it cannot be read, and zeros stand in its place
  bool operator==(const SequenceMedia&) const = default;
};

/// All its files: one, or of frames each.
std::vector<Media> files_of(const SequenceMedia& media);
/// Several files in one text, and back: how frames are stored.   @throws DataError for a text that is damaged
std::string packed_files(const SequenceMedia& media);
std::vector<Media> unpacked_files(std::string_view packed);

}  // namespace sftrun::data
