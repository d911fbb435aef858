#include <cstdio>  // jpeglib.h needs FILE

#include <jpeglib.h>

#include <cstdlib>

#include "guarded.h"
#include "sftrun/core/error.h"
#include "sftrun/images/encode.h"

namespace sftrun::images {
namespace {

/// libjpeg's encoder, and what its callbacks need.
struct JpegEncoder {
  jpeg_compress_struct info = {};
  jpeg_error_mgr errors = {};
  std::jmp_buf jump;
  char message[JMSG_LENGTH_MAX] = {};

  const Image* image = nullptr;
  int quality = 0;
  unsigned char* file = nullptr;  ///< libjpeg allocates it
  unsigned long size = 0;

  JpegEncoder() = default;
  JpegEncoder(const JpegEncoder&) = delete;
  JpegEncoder& operator=(const JpegEncoder&) = delete;
  ~JpegEncoder() {
    jpeg_destroy_compress(&info);
    std::free(file);
  }
};

void end_encoding_after_error(j_common_ptr info) {
  JpegEncoder& encoder = *static_cast<JpegEncoder*>(info->client_data);
  info->err->format_message(info, encoder.message);
  std::longjmp(encoder.jump, 1);
}

/// Under `guarded`.
void write_jpeg(JpegEncoder& encoder) {
  jpeg_compress_struct& info = encoder.info;
  info.err = jpeg_std_error(&encoder.errors);
  encoder.errors.error_exit = end_encoding_after_error;
  info.client_data = &encoder;
  jpeg_create_compress(&info);
  jpeg_mem_dest(&info, &encoder.file, &encoder.size);
  info.image_width = static_cast<JDIMENSION>(encoder.image->width);
  info.image_height = static_cast<JDIMENSION>(encoder.image->height);
  info.input_components = 3;
  info.in_color_space = JCS_RGB;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, encoder.quality, TRUE);
  jpeg_start_compress(&info, TRUE);
  while (info.next_scanline < info.image_height) {
    // libjpeg's interface is not const; it only reads the row.
    JSAMPROW row = const_cast<uint8_t*>(encoder.image->row(info.next_scanline));
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
}

}  // namespace

std::string encode_jpeg(const Image& image, int quality) {
  JpegEncoder encoder;
  encoder.image = &image;
  encoder.quality = quality;
  if (!guarded(encoder.jump, write_jpeg, encoder))
    throw DataError(fmt::format("an image of {} x {} pixels cannot be written as JPEG: {}",
                                image.width, image.height, encoder.message));
  return {reinterpret_cast<const char*>(encoder.file), encoder.size};
}

}  // namespace sftrun::images
