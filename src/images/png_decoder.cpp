#include <png.h>

#include <cstring>

#include "formats.h"
#include "guarded.h"

namespace sftrun::images {
namespace {

/// The colours of indices; those that the file does not have are black, as in Pillow.
struct PngPalette {
  uint8_t colours[256][4] = {};  ///< the fourth byte is not used
};

// Bytes of compressed pixels that libpng reads at a time. In a file that ends before, all pixels may still be there.
constexpr size_t kReadBytes = 1 << 16;

/// libpng's decoder, and what its callbacks need.
struct PngDecoder {
  png_structp png = nullptr;
  png_infop info = nullptr;
  std::jmp_buf jump;
  char message[128] = {};

  Bytes rest;  ///< not yet read
  bool is_truncated = false, has_other_size = false;
  const ImageHeader* header = nullptr;
  uint8_t** rows = nullptr;  ///< [height]
  PngPalette* palette = nullptr;
  size_t read_bytes = kReadBytes;
  int64_t rows_left = INT64_MAX;  ///< whose pixels were not yet decompressed, over all passes

  PngDecoder() = default;
  PngDecoder(const PngDecoder&) = delete;
  PngDecoder& operator=(const PngDecoder&) = delete;
  ~PngDecoder() { png_destroy_read_struct(&png, &info, nullptr); }
};

[[noreturn]] void end_after_png_error(png_structp png, png_const_charp message) {
  auto& decoder = *static_cast<PngDecoder*>(png_get_error_ptr(png));
  std::strncpy(decoder.message, message, sizeof(decoder.message) - 1);
  std::longjmp(decoder.jump, 1);
}
void ignore_png_warning(png_structp, png_const_charp) {}

void read_png_bytes(png_structp png, png_bytep to, size_t size) {
  auto& decoder = *static_cast<PngDecoder*>(png_get_io_ptr(png));
  if (size > decoder.rest.size()) {
    decoder.is_truncated = true;
    png_error(png, "the file is truncated");
  }
  std::memcpy(to, decoder.rest.data(), size);
  decoder.rest = decoder.rest.subspan(size);
}

void create_png_decoder(PngDecoder& decoder) {
  decoder.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &decoder, end_after_png_error,
                                       ignore_png_warning);
  if (decoder.png) decoder.info = png_create_info_struct(decoder.png);
  if (!decoder.info) std::longjmp(decoder.jump, 1);
  png_set_read_fn(decoder.png, &decoder, read_png_bytes);
  // The size was checked. Of the other chunks, nothing is needed. Pillow does not look at the checksums of pixels' chunks.
  png_set_user_limits(decoder.png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
  png_set_keep_unknown_chunks(decoder.png, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
  png_set_crc_action(decoder.png, PNG_CRC_QUIET_USE, PNG_CRC_QUIET_USE);
  png_set_benign_errors(decoder.png, 1);
  png_set_compression_buffer_size(decoder.png, decoder.read_bytes);
}

void count_png_row(png_structp png, png_row_infop, png_bytep) {
  --static_cast<PngDecoder*>(png_get_user_transform_ptr(png))->rows_left;
}

/// Rows of all passes: an interlaced file has seven.
int64_t rows_of_passes(const PngDecoder& decoder) {
  const auto width = static_cast<png_uint_32>(decoder.header->stored_width);
  const auto height = static_cast<png_uint_32>(decoder.header->stored_height);
  if (png_get_interlace_type(decoder.png, decoder.info) == PNG_INTERLACE_NONE) return height;
  int64_t rows = 0;
  for (int pass = 0; pass < PNG_INTERLACE_ADAM7_PASSES; ++pass)
    if (PNG_PASS_COLS(width, pass) > 0) rows += PNG_PASS_ROWS(height, pass);
  return rows;
}

/// To rows of RGB; indices and 16-bit grey stay what they are, in one and two bytes.
void set_transforms(PngDecoder& decoder) {
  png_structp png = decoder.png;
  decoder.rows_left = rows_of_passes(decoder);
  png_set_read_user_transform_fn(png, count_png_row);
  png_set_user_transform_info(png, &decoder, 0, 0);
  png_set_packing(png);
  png_set_check_for_invalid_index(png, 0);  // the palette here has all indices
  if (decoder.header->mode == ImageMode::kPalette) {
    png_colorp colours = nullptr;
    int count = 0;
    if (png_get_PLTE(png, decoder.info, &colours, &count) == 0) count = 0;
    for (int i = 0; i < count && i < 256; ++i) {
      const uint8_t colour[] = {colours[i].red, colours[i].green, colours[i].blue};
      std::memcpy(decoder.palette->colours[i], colour, sizeof(colour));
    }
    return;
  }
  if (decoder.header->mode == ImageMode::kGrey16) return;
  png_set_strip_16(png);
  png_set_strip_alpha(png);
  if (!(png_get_color_type(png, decoder.info) & PNG_COLOR_MASK_COLOR)) {
    png_set_expand_gray_1_2_4_to_8(png);
    png_set_gray_to_rgb(png);
  }
}

int64_t bytes_of_pixel(ImageMode mode) {
  if (mode == ImageMode::kPalette) return 1;
  return mode == ImageMode::kGrey16 ? 2 : 3;
}

/// Under `guarded`.
void read_png(PngDecoder& decoder) {
  create_png_decoder(decoder);
  png_read_info(decoder.png, decoder.info);
  decoder.has_other_size =
      png_get_image_width(decoder.png, decoder.info) != decoder.header->stored_width ||
      png_get_image_height(decoder.png, decoder.info) != decoder.header->stored_height;
  if (decoder.has_other_size) return;
  set_transforms(decoder);
  png_set_interlace_handling(decoder.png);
  png_read_update_info(decoder.png, decoder.info);
  const auto row_bytes = decoder.header->stored_width * bytes_of_pixel(decoder.header->mode);
  decoder.has_other_size =
      static_cast<int64_t>(png_get_rowbytes(decoder.png, decoder.info)) != row_bytes;
  if (decoder.has_other_size) return;
  png_read_image(decoder.png, decoder.rows);  // and nothing behind the pixels
}

/// Reads rows of `bytes_of_pixel`. False if the file ends before.
bool try_png_rows(const ImageFile& file, const ImageHeader& header, size_t read_bytes,
                  uint8_t* pixels, PngPalette& palette) {
  std::vector<uint8_t*> rows(static_cast<size_t>(header.stored_height));
  const int64_t stride = header.stored_width * bytes_of_pixel(header.mode);
  for (size_t y = 0; y < rows.size(); ++y) rows[y] = pixels + static_cast<int64_t>(y) * stride;
  PngDecoder decoder;
  decoder.header = &header;
  decoder.rows = rows.data();
  decoder.palette = &palette;
  decoder.rest = file.bytes;
  decoder.read_bytes = read_bytes;
  const bool came_to_its_end = guarded(decoder.jump, read_png, decoder);
  if (decoder.is_truncated) return decoder.rows_left == 0;
  if (!came_to_its_end) throw_damaged(ImageFormat::kPng, file, decoder.message);
  if (decoder.has_other_size) throw_damaged(ImageFormat::kPng, file, "it has two IHDR chunks");
  return true;
}

/// The second time byte by byte: Pillow accepts a file without the last bytes of its compressed pixels, too, if it has all pixels.
void read_png_rows(const ImageFile& file, const ImageHeader& header, uint8_t* pixels,
                   PngPalette& palette) {
  if (!try_png_rows(file, header, kReadBytes, pixels, palette) &&
      !try_png_rows(file, header, 1, pixels, palette))
    throw_truncated(ImageFormat::kPng, file);
}

// `image` holds what the file has in its last bytes. They are read before they are overwritten.

void colour_indices(const PngPalette& palette, Image& image) {
  const int64_t count = image.width * image.height;
  const uint8_t* indices = image.pixels.data() + 2 * count;
  uint8_t* to = image.pixels.data();
  // Four bytes are faster than three; the next pixel overwrites the fourth.
  for (int64_t i = 0; i + 1 < count; ++i, to += 3) std::memcpy(to, palette.colours[indices[i]], 4);
  std::memcpy(to, palette.colours[indices[count - 1]], 3);
}

/// min(value, 255), as Pillow converts "I;16" to "RGB".
void spread_grey16(Image& image) {
  const int64_t count = image.width * image.height;
  const uint8_t* values = image.pixels.data() + count;
  uint8_t* to = image.pixels.data();
  for (int64_t i = 0; i < count; ++i, to += 3)
    std::memset(to, values[2 * i] == 0 ? values[2 * i + 1] : 255, 3);
}

}  // namespace

Image decode_png(const ImageFile& file, const ImageHeader& header) {
  Image image(header.stored_width, header.stored_height);
  const int64_t spare_bytes = image.width * image.height * (3 - bytes_of_pixel(header.mode));
  PngPalette palette;
  read_png_rows(file, header, image.pixels.data() + spare_bytes, palette);
  if (header.mode == ImageMode::kPalette) colour_indices(palette, image);
  if (header.mode == ImageMode::kGrey16) spread_grey16(image);
  return image;
}

}  // namespace sftrun::images
