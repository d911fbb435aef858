#include "sftrun/images/header.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "formats.h"
#include "sftrun/core/error.h"

namespace sftrun::images {

std::string_view name_of(ImageFormat format) {
  switch (format) {
    case ImageFormat::kJpeg:
      return "JPEG";
    case ImageFormat::kPng:
      return "PNG";
    case ImageFormat::kWebp:
      return "WebP";
  }
  return {};
}

std::string_view name_of(ImageMode mode) {
  switch (mode) {
    case ImageMode::kBit:
      return "1";
    case ImageMode::kGrey:
      return "L";
    case ImageMode::kGrey16:
      return "I;16";
    case ImageMode::kGreyA:
      return "LA";
    case ImageMode::kPalette:
      return "P";
    case ImageMode::kRgb:
      return "RGB";
    case ImageMode::kRgba:
      return "RGBA";
    case ImageMode::kCmyk:
      return "CMYK";
  }
  return {};
}

void throw_damaged(ImageFormat format, const ImageFile& file, std::string_view what) {
  throw DataError(fmt::format("the {} file is damaged: {}", name_of(format), what),
                  std::string(file.where), "replace the file");
}

void throw_truncated(ImageFormat format, const ImageFile& file) {
  throw DataError(
      fmt::format("the {} file is truncated: it has {} bytes, and its image is not complete",
                  name_of(format), file.bytes.size()),
      std::string(file.where), "download or copy the file again");
}

namespace {

constexpr std::string_view kConvert =
    "convert the file to JPEG, PNG or WebP, for example with ImageMagick (magick picture.bmp "
    "picture.png) or Pillow (Image.open(\"picture.bmp\").convert(\"RGB\").save(\"picture.png\"))";
constexpr std::string_view kConvertFrame =
    "convert a frame of the file to PNG, for example with ImageMagick (magick 'picture.gif[0]' "
    "picture.png) or Pillow (Image.open(\"picture.gif\").convert(\"RGB\").save(\"picture.png\"))";
constexpr std::string_view kWriteFrames =
    "write its frames as images (ffmpeg -i clip.mp4 -vf fps=2 clip/%04d.jpg), and list these in "
    "the record";
constexpr std::string_view kDownload = "download the file again";

/// Where and how files of another kind begin.
struct ForeignBeginning {
  size_t at;
  std::string_view text, kind, fix = kConvert;
};
using namespace std::string_view_literals;
constexpr ForeignBeginning kForeignBeginnings[] = {
    {0, "GIF8"sv, "a GIF image", kConvertFrame},
    {0, "BM"sv, "a BMP image"},
    {0, "II*\0"sv, "a TIFF image"},
    {0, "MM\0*"sv, "a TIFF image"},
    {0, "II+\0"sv, "a TIFF image"},
    {0, "MM\0+"sv, "a TIFF image"},
    {4, "ftypavif"sv, "an AVIF image"},
    {4, "ftypavis"sv, "an AVIF image"},
    {4, "ftyphei"sv, "a HEIC image"},
    {4, "ftyphev"sv, "a HEIC image"},
    {4, "ftypmif1"sv, "a HEIF or AVIF image"},
    {4, "ftypmsf1"sv, "a HEIF or AVIF image"},
    {4, "ftyp"sv, "a video", kWriteFrames},
    {0, "\xFF\x0A"sv, "a JPEG XL image"},
    {0, "\0\0\0\x0CJXL "sv, "a JPEG XL image"},
    {0, "\0\0\0\x0CjP  "sv, "a JPEG 2000 image"},
    {0, "\xFF\x4F\xFF\x51"sv, "a JPEG 2000 image"},
    {0, "\0\0\1\0"sv, "an ICO image"},
    {0, "<svg"sv, "an SVG drawing"},
    {0, "%PDF"sv, "a PDF document"},
    {0, "version https://git-lfs"sv, "a pointer of Git LFS", "fetch the file with `git lfs pull`"},
    {0, "<!DOCTYPE html"sv, "an HTML page, perhaps the error of a download", kDownload},
    {0, "<!doctype html"sv, "an HTML page, perhaps the error of a download", kDownload},
    {0, "<html"sv, "an HTML page, perhaps the error of a download", kDownload},
};

std::string first_bytes(Bytes bytes) {
  std::string text;
  for (const uint8_t byte : part_of(bytes, 0, 8))
    text += fmt::format("{}{:02x}", text.empty() ? "" : " ", byte);
  return text;
}

[[noreturn]] void throw_not_an_image(const ImageFile& file) {
  if (file.bytes.empty())
    throw DataError("the image file is empty", std::string(file.where), std::string(kDownload));
  const auto* const known =
      std::find_if(std::begin(kForeignBeginnings), std::end(kForeignBeginnings),
                   [&](const ForeignBeginning& one) {
                     return text_of(from(file.bytes, one.at)).starts_with(one.text);
                   });
  const bool is_known = known != std::end(kForeignBeginnings);
  const std::string kind = is_known ? fmt::format("; it is {}", known->kind) : "";
  throw DataError(fmt::format("not a JPEG, PNG or WebP file; it begins with {}{}",
                              first_bytes(file.bytes), kind),
                  std::string(file.where), std::string(is_known ? known->fix : kConvert));
}

}  // namespace

ImageHeader read_header(std::span<const std::byte> bytes, std::string_view where) {
  const ImageFile file{{reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, where};
  if (is_jpeg(file.bytes)) return jpeg_header(file);
  if (is_png(file.bytes)) return png_header(file);
  if (is_webp(file.bytes)) return webp_header(file);
  throw_not_an_image(file);
}

}  // namespace sftrun::images
