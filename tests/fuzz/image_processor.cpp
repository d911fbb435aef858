#include <algorithm>
#include <array>
#include <vector>

#include "fuzz.h"
#include "memory_file.h"
#include "sftrun/images/process.h"
#include "sftrun/images/video.h"
#include "support/temporary_directory.h"

namespace {

using namespace sftrun;

constexpr std::array kFiles = {"preprocessor_config.json", "processor_config.json", "config.json"};
constexpr int64_t kMaxValues = 1 << 18;

/// A model's folder whose files change from input to input.
struct ProcessorFolder {
  std::array<fuzz::MemoryFile, kFiles.size()> files;
  test::TemporaryDirectory root;

  ProcessorFolder() {
    for (size_t i = 0; i < kFiles.size(); ++i)
      std::filesystem::create_symlink(files[i].holding("{}"), root / kFiles[i]);
  }
};

void check_steps(const images::ImagePlan& plan) {
  for (size_t i = 0; i < plan.steps.size(); ++i)
    if (plan.steps[i].of > i || plan.steps[i].width < 1 || plan.steps[i].height < 1)
      __builtin_trap();
  if (plan.tiles.empty() || plan.num_values() < 1) __builtin_trap();
  for (const images::ImageTile& tile : plan.tiles)
    if (tile.of > plan.steps.size()) __builtin_trap();
}

bool is_small(const images::ImagePlan& plan) {
  int64_t pixels = plan.num_values();
  for (const images::ImageStep& step : plan.steps) pixels += step.width * step.height;
  return pixels <= kMaxValues;
}

void use(images::ImageProcessor processor, int64_t width, int64_t height) {
  processor.do_pan_and_scan = width % 2 == 0;
  const images::ImagePlan plan = images::plan_image(processor, width, height);
  check_steps(plan);
  if (!is_small(plan) || width * height > kMaxValues) return;
  const images::ProcessedImage processed = images::process(processor, images::Image(width, height));
  if (processed.plan.num_values() != plan.num_values()) __builtin_trap();
}

void use_frames(const images::VideoProcessor& processor, int64_t width, int64_t height) {
  const int64_t num_frames = 1 + (width + 3 * height) % 9;
  const images::ImagePlan plan = images::plan_frames(processor, width, height, num_frames);
  check_steps(plan);
  if (!is_small(plan) || width * height > kMaxValues) return;
  const auto count = static_cast<size_t>(std::min(num_frames, processor.frames_of_group()));
  const std::vector<images::Image> frames(count, images::Image(width, height));
  if (images::process_frames(processor, plan, frames, {}).plan.rows != plan.rows) __builtin_trap();
}

}  // namespace

/// Two bytes are the sizes of an image (of 1 to 65536 pixels, few of them large); then preprocessor_config.json, processor_config.json and
/// config.json, with a NUL between them.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  static const ProcessorFolder folder;
  std::string_view rest = fuzz::text_of(data + 2, size - 2);
  for (const fuzz::MemoryFile& file : folder.files) {
    const std::string_view part = rest.substr(0, rest.find('\0'));
    rest.remove_prefix(std::min(part.size() + 1, rest.size()));
    file.holding(part.empty() ? "{}" : part);
  }
  const auto length = [](uint8_t byte) { return ((int64_t{byte} & 15) + 1) << (byte >> 4) % 13; };
  const std::filesystem::path path = folder.root.path();
  const int64_t width = length(data[0]), height = length(data[1]);
  fuzz::expecting_errors([&] { use(images::read_processor(path), width, height); });
  fuzz::expecting_errors([&] {
    use_frames(images::read_video_processor(path, images::read_processor(path)), width, height);
  });
  return 0;
}
