#include <cstdio>  // jpeglib.h needs FILE

#include <jpeglib.h>

#include <jerror.h>

#include "formats.h"
#include "guarded.h"

namespace sftrun::images {
namespace {

// A progressive file of many scans takes long to decode; libjpeg-turbo's authors advise a limit. Encoders write about 10.
constexpr int kMaxScans = 1000;

enum class JpegOutcome { kBroken, kDone, kTruncated, kTooManyScans, kOtherSize };

/// libjpeg's decoder, and what its callbacks need.
struct JpegDecoder {
  jpeg_decompress_struct info = {};
  jpeg_error_mgr errors = {};
  jpeg_source_mgr source = {};
  jpeg_progress_mgr progress = {};
  std::jmp_buf jump;
  char message[JMSG_LENGTH_MAX] = {};

  Bytes bytes;
  int64_t width = 0, height = 0;
  uint8_t* pixels = nullptr;    ///< [height, width, 3]
  uint8_t* cmyk_row = nullptr;  ///< [width, 4], for CMYK
  JpegOutcome outcome = JpegOutcome::kBroken;

  JpegDecoder() = default;
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;
  ~JpegDecoder() { jpeg_destroy_decompress(&info); }
};

JpegDecoder& decoder_of(j_common_ptr info) {
  return *static_cast<JpegDecoder*>(info->client_data);
}

void end_after_error(j_common_ptr info) {
  JpegDecoder& decoder = decoder_of(info);
  info->err->format_message(info, decoder.message);
  std::longjmp(decoder.jump, 1);
}

void end_after_many_scans(j_common_ptr info) {
  if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number <= kMaxScans) return;
  decoder_of(info).outcome = JpegOutcome::kTooManyScans;
  std::longjmp(decoder_of(info).jump, 1);
}

void ignore_message(j_common_ptr) {}
void do_nothing(j_decompress_ptr) {}
/// There is nothing behind the bytes: libjpeg suspends, which calls return as 0.
boolean no_more_input(j_decompress_ptr) {
  return FALSE;
}
void skip_input(j_decompress_ptr info, long count) {
  jpeg_source_mgr& source = *info->src;
  const auto wanted = static_cast<size_t>(count < 0 ? 0 : count);
  const size_t skipped = wanted < source.bytes_in_buffer ? wanted : source.bytes_in_buffer;
  source.next_input_byte += skipped;
  source.bytes_in_buffer -= skipped;
}

void create_decoder(JpegDecoder& decoder) {
  decoder.info.err = jpeg_std_error(&decoder.errors);
  decoder.errors.error_exit = end_after_error;
  decoder.errors.output_message = ignore_message;
  decoder.info.client_data = &decoder;
  jpeg_create_decompress(&decoder.info);
  decoder.source = {decoder.bytes.data(), decoder.bytes.size(),   do_nothing, no_more_input,
                    skip_input,           jpeg_resync_to_restart, do_nothing};
  decoder.info.src = &decoder.source;
  decoder.progress.progress_monitor = end_after_many_scans;
  decoder.info.progress = &decoder.progress;
}

/// a * b / 255, rounded, as in Pillow's MULDIV255.
int times_255th(int a, int b) {
  const int product = a * b + 128;
  return ((product >> 8) + product) >> 8;
}

/// Adobe's files, which most CMYK files are, hold inverted values; Pillow takes all files for such.
void rgb_from_inverted_cmyk(const uint8_t* cmyk, uint8_t* rgb, int64_t width) {
  for (int64_t x = 0; x < width; ++x, cmyk += 4, rgb += 3) {
    const int white = cmyk[3];
    for (int c = 0; c < 3; ++c)
      rgb[c] = static_cast<uint8_t>(white - times_255th(255 - cmyk[c], white));
  }
}

/// False if the file ends before.
bool read_jpeg_rows(JpegDecoder& decoder) {
  jpeg_decompress_struct& info = decoder.info;
  while (info.output_scanline < info.output_height) {
    uint8_t* row = decoder.pixels + int64_t{info.output_scanline} * decoder.width * 3;
    JSAMPROW target = decoder.cmyk_row ? decoder.cmyk_row : row;
    if (jpeg_read_scanlines(&info, &target, 1) != 1) return false;
    if (decoder.cmyk_row) rgb_from_inverted_cmyk(decoder.cmyk_row, row, decoder.width);
  }
  return true;
}

/// Under `guarded`.
void read_jpeg(JpegDecoder& decoder) {
  create_decoder(decoder);
  jpeg_decompress_struct& info = decoder.info;
  int header = JPEG_HEADER_TABLES_ONLY;
  while (header == JPEG_HEADER_TABLES_ONLY) header = jpeg_read_header(&info, FALSE);
  decoder.outcome = JpegOutcome::kTruncated;
  if (header == JPEG_SUSPENDED) return;
  decoder.outcome = JpegOutcome::kOtherSize;
  if (info.image_width != decoder.width || info.image_height != decoder.height ||
      (info.num_components == 4) != (decoder.cmyk_row != nullptr))
    return;
  // The defaults of libjpeg are Pillow's: the accurate integer DCT, smooth upsampling.
  info.out_color_space = decoder.cmyk_row ? JCS_CMYK : JCS_RGB;
  decoder.outcome = JpegOutcome::kTruncated;
  if (!jpeg_start_decompress(&info) || !read_jpeg_rows(decoder)) return;
  jpeg_finish_decompress(&info);  // false if there is no end marker, which Pillow accepts, too
  decoder.outcome = JpegOutcome::kDone;
}

}  // namespace

Image decode_jpeg(const ImageFile& file, const ImageHeader& header) {
  Image image(header.stored_width, header.stored_height);
  std::vector<uint8_t> cmyk_row;
  if (header.mode == ImageMode::kCmyk) cmyk_row.resize(static_cast<size_t>(image.width) * 4);
  JpegDecoder decoder;
  decoder.bytes = file.bytes;
  decoder.width = image.width;
  decoder.height = image.height;
  decoder.pixels = image.pixels.data();
  decoder.cmyk_row = cmyk_row.empty() ? nullptr : cmyk_row.data();
  const bool came_to_its_end = guarded(decoder.jump, read_jpeg, decoder);
  if (decoder.outcome == JpegOutcome::kTooManyScans)
    throw_damaged(ImageFormat::kJpeg, file, "it has more than 1000 scans");
  if (!came_to_its_end) throw_damaged(ImageFormat::kJpeg, file, decoder.message);
  if (decoder.outcome == JpegOutcome::kTruncated) throw_truncated(ImageFormat::kJpeg, file);
  if (decoder.outcome == JpegOutcome::kOtherSize)
    throw_damaged(ImageFormat::kJpeg, file, "its frame headers contradict each other");
  return image;
}

}  // namespace sftrun::images
