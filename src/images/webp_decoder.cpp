#include <webp/decode.h>
#include <webp/demux.h>

#include <memory>

#include "formats.h"

namespace sftrun::images {
namespace {

struct DemuxerDeleter {
  void operator()(WebPDemuxer* demuxer) const { WebPDemuxDelete(demuxer); }
};

/// A frame of a file.
struct WebpFrame {
  WebPIterator iterator = {};
  WebpFrame() = default;
  WebpFrame(const WebpFrame&) = delete;
  WebpFrame& operator=(const WebpFrame&) = delete;
  ~WebpFrame() { WebPDemuxReleaseIterator(&iterator); }
};

bool is_inside(const WebPIterator& frame, const Image& canvas) {
  return frame.x_offset >= 0 && frame.y_offset >= 0 && frame.width > 0 && frame.height > 0 &&
         frame.x_offset + int64_t{frame.width} <= canvas.width &&
         frame.y_offset + int64_t{frame.height} <= canvas.height;
}

/// Decodes the frame into its place.
VP8StatusCode decode_frame(const WebPIterator& frame, Image& canvas) {
  WebPDecoderConfig config;
  if (!WebPInitDecoderConfig(&config)) return VP8_STATUS_INVALID_PARAM;
  const VP8StatusCode status =
      WebPGetFeatures(frame.fragment.bytes, frame.fragment.size, &config.input);
  if (status != VP8_STATUS_OK) return status;
  if (config.input.width != frame.width || config.input.height != frame.height)
    return VP8_STATUS_BITSTREAM_ERROR;
  const int64_t stride = canvas.width * 3;
  uint8_t* corner = canvas.row(frame.y_offset) + int64_t{frame.x_offset} * 3;
  config.output.colorspace = MODE_RGB;
  config.output.is_external_memory = 1;
  config.output.u.RGBA.rgba = corner;
  config.output.u.RGBA.stride = static_cast<int>(stride);
  config.output.u.RGBA.size =
      static_cast<size_t>((frame.height - 1) * stride + int64_t{frame.width} * 3);
  return WebPDecode(frame.fragment.bytes, frame.fragment.size, &config);
}

}  // namespace

Image decode_webp(const ImageFile& file, const ImageHeader& header) {
  const WebPData data{file.bytes.data(), file.bytes.size()};
  WebPDemuxState state = WEBP_DEMUX_PARSE_ERROR;
  const std::unique_ptr<WebPDemuxer, DemuxerDeleter> demuxer(WebPDemuxPartial(&data, &state));
  if (state == WEBP_DEMUX_PARSING_HEADER || state == WEBP_DEMUX_PARSED_HEADER)
    throw_truncated(ImageFormat::kWebp, file);
  if (!demuxer || state != WEBP_DEMUX_DONE)
    throw_damaged(ImageFormat::kWebp, file, "its chunks are not those of a WebP file");
  Image canvas(header.stored_width, header.stored_height);
  if (WebPDemuxGetI(demuxer.get(), WEBP_FF_CANVAS_WIDTH) != canvas.width ||
      WebPDemuxGetI(demuxer.get(), WEBP_FF_CANVAS_HEIGHT) != canvas.height)
    throw_damaged(ImageFormat::kWebp, file, "its headers contradict each other");
  WebpFrame frame;
  if (!WebPDemuxGetFrame(demuxer.get(), 1, &frame.iterator) || !is_inside(frame.iterator, canvas))
    throw_damaged(ImageFormat::kWebp, file, "it has no first image");
  const VP8StatusCode status = decode_frame(frame.iterator, canvas);
  if (status == VP8_STATUS_NOT_ENOUGH_DATA || status == VP8_STATUS_SUSPENDED)
    throw_truncated(ImageFormat::kWebp, file);
  if (status != VP8_STATUS_OK)
    throw_damaged(ImageFormat::kWebp, file, "the data of its image cannot be decoded");
  return canvas;
}

}  // namespace sftrun::images
