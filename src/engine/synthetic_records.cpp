#include "synthetic_records.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/rng.h"
#include "sftrun/images/encode.h"

namespace sftrun::engine {
namespace {

constexpr uint64_t kRecordSeed = 1234;
/// More would cost memory and show nothing: nothing of a file is kept from one use to the next.
constexpr int64_t kMostFiles = 8;

/// Smooth colours under a little noise: about as many bytes as a photograph's JPEG file has.
images::Image made_picture(int64_t width, int64_t height, int64_t number) {
  images::Image picture(width, height);
  RandomStream random(kRecordSeed, static_cast<uint64_t>(number));
  for (int64_t y = 0; y < height; ++y) {
    uint8_t* row = picture.row(y);
    for (int64_t x = 0; x < width; ++x) {
      const double across = static_cast<double>(x) / static_cast<double>(width),
                   down = static_cast<double>(y) / static_cast<double>(height);
      const auto noise = static_cast<double>(random.next_below(24));
      const double waves = 40 * std::sin(9 * across + 7 * down + static_cast<double>(number));
      for (int64_t c = 0; c < 3; ++c) {
        const double mixed = c == 0 ? across : c == 1 ? down : 1 - across;
        row[3 * x + c] = static_cast<uint8_t>(45 + 100 * mixed + waves + noise);
      }
    }
  }
  return picture;
}

/// With what a chat template writes around an image.
std::string text_in_records(const images::ImagePrompt& prompt, const images::ImagePlan& plan) {
  const std::string text = images::text_of_image(prompt, plan);
  return prompt.around.size() == 2 ? prompt.around[0] + text + prompt.around[1] : text;
}

std::vector<std::shared_ptr<const std::string>> made_files(const app::PlannedImages& planned) {
  constexpr int64_t kPixelsOfSeconds = 1 << 24;  // so many take seconds to make
  const int64_t count = std::min(kMostFiles, 4 * planned.of_sequence);
  if (count * planned.width * planned.height > kPixelsOfSeconds)
    log::info("making {} of {} x {} pixels", counted(count, "image"), planned.width,
              planned.height);
  std::vector<std::shared_ptr<const std::string>> files;
  for (int64_t i = 0; i < count; ++i)
    files.push_back(std::make_shared<const std::string>(
        images::encode_jpeg(made_picture(planned.width, planned.height, i))));
  return files;
}

}  // namespace

SyntheticImages::SyntheticImages(const app::PlannedImages& planned,
                                 std::shared_ptr<const data::ImageInput> input,
                                 const tokenizer::Tokenizer& tokenizer)
    : planned_(planned), input_(std::move(input)) {
  const images::ImagePlan plan =
      images::plan_image(input_->processor, planned_.width, planned_.height);
  tokens_ = tokenizer.encode(text_in_records(input_->prompt, plan), /*add_special_tokens=*/false);
  image_ = {.width = planned_.width,
            .height = planned_.height,
            .rows = plan.rows,
            .num_tokens = plan.num_tokens,
            .grid_thw = plan.grid_thw,
            .feature = input_->feature};
  const int64_t found = std::count(tokens_.begin(), tokens_.end(), input_->feature);
  if (found != plan.num_tokens)
    throw DataError(
        fmt::format("the tokenizer makes {} tokens of an image's {}", found, plan.num_tokens),
        "the model's directory", "copy the tokenizer's files from the model's repository");
}

void SyntheticImages::make_files() {
  files_ = made_files(planned_);
}

void SyntheticImages::add_to(data::Example& example, int64_t record) const {
  for (int64_t i = 0; i < planned_.of_sequence; ++i) {
    data::SequenceMedia image = image_;
    const auto number = static_cast<size_t>(record * planned_.of_sequence + i);
    image.media.bytes = files_[number % files_.size()];
    image.begin = std::ssize(example.tokens);
    example.tokens.insert(example.tokens.end(), tokens_.begin(), tokens_.end());
    image.end = std::ssize(example.tokens);
    example.media.push_back(std::move(image));
  }
}

SyntheticRecords::SyntheticRecords(int64_t seq_len, int64_t vocab_size,
                                   std::optional<SyntheticImages> images)
    : seq_len_(seq_len), vocab_size_(vocab_size), images_(std::move(images)) {
  if (!images_) return;
  if (images_->tokens_of_record() < seq_len_) {
    images_->make_files();
    return;
  }
  const app::PlannedImages& planned = images_->planned();
  throw ConfigError(fmt::format("{} of {} x {} pixels {} {}, and a sequence has {}",
                                counted(planned.of_sequence, "image"), planned.width,
                                planned.height, planned.of_sequence == 1 ? "has" : "have",
                                counted(images_->tokens_of_record(), "token"), seq_len_),
                    "--images on the command line",
                    "name fewer or smaller images, or raise --seq-len");
}

std::vector<data::Example> SyntheticRecords::of_step(int64_t count, int64_t step) const {
  std::vector<data::Example> examples(static_cast<size_t>(count));
  RandomStream random(kRecordSeed, static_cast<uint64_t>(step));
  for (int64_t record = 0; record < count; ++record) {
    data::Example& example = examples[static_cast<size_t>(record)];
    if (images_) images_->add_to(example, record);
    const auto first_text = std::ssize(example.tokens);
    for (int64_t i = first_text; i < seq_len_; ++i) {
      example.tokens.push_back(
          static_cast<int32_t>(random.next_below(static_cast<uint64_t>(vocab_size_))));
    }
    example.labels.assign(example.tokens.begin() + 1, example.tokens.end());
    example.labels.push_back(data::kIgnoreIndex);
    for (int64_t i = 0; i + 1 < first_text; ++i)
      example.labels[static_cast<size_t>(i)] = data::kIgnoreIndex;
    example.label_tokens = seq_len_ - std::max<int64_t>(1, first_text);
  }
  return examples;
}

}  // namespace sftrun::engine
