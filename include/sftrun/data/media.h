#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

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
/// "photos/a.jpg", or "bytes in the record"
std::string name_of(const Media& media);

/// An image in a sequence of tokens, or features that another encoder computed.
struct SequenceMedia {
  Media media;
  int64_t projector = -1;  ///< of features: the number in `ArchSpec::projectors`; -1: an image
  bool is_image() const { return projector < 0; }
  int64_t width = 0, height = 0;  ///< pixels, turned as EXIF's orientation says; of features 0
  /// What the model's image processor makes of this size (images::ImagePlan).
  int64_t rows = 0;        ///< patches or tiles; rows of features
  int64_t num_tokens = 0;  ///< positions that get its features
  std::array<int64_t, 3> grid_thw =
      {};  ///< patches in time, height and width, for layouts of patches
  /// Its tokens [begin, end), with the processor's markers around and between them. Those with the id `feature` get features, in order.
  int64_t begin = 0, end = 0;
  int32_t feature = -1;
  bool operator==(const SequenceMedia&) const = default;
};

}  // namespace sftrun::data
