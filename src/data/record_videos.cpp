// The part of RecordMedia that reads videos.
#include <algorithm>
#include <cmath>
#include <utility>

#include "nulls.h"
#include "record_media.h"
#include "sftrun/core/error.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/strings.h"
#include "sftrun/data/tower_grid.h"

namespace sftrun::data {
namespace {

constexpr const char* kVideoFix =
    R"(write {"type": "video", "video": ["1.jpg", "2.jpg"], "fps": 2}, with paths relative to the record's file)";

/// Endings of files that hold a whole video.
constexpr std::array<std::string_view, 9> kVideoEndings = {".mp4", ".mov", ".avi",  ".mkv", ".webm",
                                                           ".m4v", ".mpg", ".mpeg", ".gif"};

bool is_video_file(const std::string& path) {
  const std::string lower = ascii_lower(path);
  return std::any_of(kVideoEndings.begin(), kVideoEndings.end(),
                     [&](std::string_view ending) { return lower.ends_with(ending); });
}

Json video_part(size_t index) {
  return {{"type", "video"}, {"video", index}};
}

const Json* held_value(const Json& object, const char* key) {
  const Json* value = object.is_object() ? value_of(object, key) : nullptr;
  return value != nullptr && !is_nothing(*value) ? value : nullptr;
}

/// The frames of a video: itself, or what a key of it has.
const Json* frames_in(const Json& video) {
  if (!video.is_object()) return &video;
  for (const char* key : kVideoKeys)
    if (const Json* value = held_value(video, key)) return value;
  return nullptr;
}

Json text_piece(std::string_view text) {
  return {{"type", "text"}, {"text", std::string(text)}};
}

/// Appends a text's pieces and what stands for videos between them. A line break between a text and a video belongs to the marker.
void append_pieces(std::string_view text, Json& parts) {
  for (bool is_first = true;; is_first = false) {
    const size_t found = text.find(kVideoMarker);
    std::string_view piece = text.substr(0, found);
    if (!is_first && piece.starts_with('\n')) piece.remove_prefix(1);
    if (found != std::string_view::npos && piece.ends_with('\n')) piece.remove_suffix(1);
    if (!piece.empty()) parts.push_back(text_piece(piece));
    if (found == std::string_view::npos) return;
    parts.push_back({{"type", "video"}});
    text.remove_prefix(found + kVideoMarker.size());
  }
}

/// Tables of RoPE reach to the last position.
constexpr double kMaxTimePositions = 1 << 18;

/// M-RoPE: the position of a group on the axis of time, in the reference's float32.
int64_t time_of_group(int64_t group, const VideoInput& input, double frames_per_second) {
  const auto seconds = static_cast<float>(static_cast<double>(input.processor.frames_of_group()) /
                                          frames_per_second);
  const float interval = static_cast<float>(input.tokens_per_second) * seconds;
  return static_cast<int64_t>(static_cast<float>(group) * interval);
}

/// Frames a second of frames at these times.
double mean_rate(const std::vector<double>& seconds) {
  const double all = seconds.back() - seconds.front();
  return all > 0 ? static_cast<double>(seconds.size() - 1) / all : images::kUsualFramesPerSecond;
}

}  // namespace

bool is_video_part(const Json& part) {
  if (!part.is_object()) return false;
  if (const Json* type = value_of(part, "type")) return *type == "video" || *type == "video_url";
  return value_of(part, "video") != nullptr && value_of(part, "text") == nullptr;
}

void RecordMedia::require_videos() const {
  if (input_->videos != nullptr) return;
  SFTRUN_CHECK(input_->video_refusal.has_value());
  const DataError& why = *input_->video_refusal;
  throw DataError(
      "the record has a video: " + why.message(),
      why.where().empty() ? place_.where : fmt::format("{}, {}", place_.where, why.where()),
      why.fix());
}

void RecordMedia::find_video_columns(const Json& record) {
  for (const char* key : {"videos", "video"}) {
    has_video_columns_ = has_video_columns_ || record.contains(key);
    const Json* value = held_value(record, key);
    if (value == nullptr) continue;
    if (!video_columns_.empty())
      refuse("the record has both \"videos\" and \"video\"", "leave one of them out");
    // A list of files is one video.
    const bool is_list =
        value->is_array() && std::all_of(value->begin(), value->end(), [](const Json& one) {
          return one.is_array() || held_value(one, "frames") != nullptr ||
                 held_value(one, "video") != nullptr ||
                 (one.is_string() && is_video_file(one.get_ref<const std::string&>()));
        });
    if (!is_list) {
      video_columns_.push_back({value, fmt::format("\"{}\"", key)});
      continue;
    }
    for (size_t i = 0; i < value->size(); ++i)
      video_columns_.push_back({&(*value)[i], fmt::format("{}[{}]", key, i)});
  }
}

void RecordMedia::take_videos(Json& messages) {
  num_videos_used_ = num_video_markers_ = 0;
  if (!video_columns_.empty()) require_videos();
  for (size_t i = 0; i < messages.size(); ++i) {
    const auto content = messages[i].find("content");
    if (content == messages[i].end()) continue;
    if (has_video_columns_) split_at_video_markers(*content);
    if (!content->is_array()) continue;
    for (size_t j = 0; j < content->size(); ++j) {
      Json& part = (*content)[j];
      if (!is_video_part(part)) continue;
      const std::string name = fmt::format("messages[{}].content[{}]", i, j);
      part = frames_in(part) == nullptr ? next_video_of_columns(name)
                                        : video_part(add_video(part, name));
    }
  }
  if (num_video_markers_ == 0 && !video_columns_.empty()) put_videos_before_text(messages);
  require_all_videos_used("parts or <video> for them");
}

void RecordMedia::split_at_video_markers(Json& content) {
  const auto has_marker = [](const Json& text) {
    return text.is_string() &&
           text.get_ref<const std::string&>().find(kVideoMarker) != std::string::npos;
  };
  Json parts = Json::array();
  if (has_marker(content)) {
    append_pieces(content.get_ref<const std::string&>(), parts);
  } else if (content.is_array()) {
    for (Json& part : content) {
      const Json* text = is_visual_part(part) ? nullptr : held_value(part, "text");
      if (text != nullptr && has_marker(*text))
        append_pieces(text->get_ref<const std::string&>(), parts);
      else
        parts.push_back(std::move(part));
    }
  } else {
    return;
  }
  content = std::move(parts);
}

Json RecordMedia::next_video_of_columns(const std::string& place) {
  ++num_video_markers_;
  if (num_videos_used_ < video_columns_.size()) {
    const Column& column = video_columns_[num_videos_used_++];
    return video_part(add_video(*column.value, column.name));
  }
  if (!has_video_columns_)
    refuse(place + " is a video without frames, and the record has no \"videos\"", kVideoFix);
  return {{"type", "video"}};  // require_all_videos_used counts it
}

void RecordMedia::put_videos_before_text(Json& messages) {
  for (Json& message : messages) {
    const auto content = message.find("content");
    if (message["role"] != "user" || content == message.end()) continue;
    Json parts = Json::array();
    for (size_t i = 0; i < video_columns_.size(); ++i) parts.push_back(next_video_of_columns({}));
    if (content->is_string()) {
      parts.push_back(text_piece(content->get_ref<const std::string&>()));
    } else if (content->is_array()) {
      parts.insert(parts.end(), content->begin(), content->end());
    }
    *content = std::move(parts);
    return;
  }
}

void RecordMedia::require_all_videos_used(const std::string& place) const {
  if (num_video_markers_ == video_columns_.size()) return;
  refuse(fmt::format("the record's columns have {}, and its texts have {} {}",
                     counted(video_columns_.size(), "video"), num_video_markers_, place),
         R"(write one {"type": "video"} part, or one <video> in a text, for each video)");
}

std::vector<size_t> RecordMedia::take_videos_for_text(size_t num_markers) {
  require_videos();
  num_video_markers_ = num_markers;
  require_all_videos_used("markers for them");
  std::vector<size_t> taken;
  for (const Column& column : video_columns_)
    taken.push_back(add_video(*column.value, column.name));
  return taken;
}

size_t RecordMedia::add_video(const Json& video, const std::string& name) {
  require_videos();
  const VideoInput& input = *input_->videos;
  const Json* frames = frames_in(video);
  if (frames == nullptr) refuse(name + " is a video without frames", kVideoFix);
  const std::vector<SequenceMedia> read = read_frames(*frames, name);
  const FrameTimes times = times_of(video, read.size(), name);
  const double last_position =
      static_cast<double>(read.size()) / times.rate * static_cast<double>(input.tokens_per_second);
  if (last_position > kMaxTimePositions || times.seconds.back() > kMaxTimePositions)
    refuse(fmt::format("{} is too long: its last frame is at {:.10g} seconds", name,
                       times.seconds.back()),
           "divide the video, or correct \"fps\" or \"timestamps\"");
  const SequenceMedia& first = read.front();
  images::ImagePlan plan;
  try {
    plan = images::plan_frames(input.processor, first.width, first.height, std::ssize(read));
    if (input_->tower) tower_grid(input.processor.frame, *input_->tower, plan);
  } catch (const DataError& error) {
    throw DataError(fmt::format("{}: {}", name, error.message()), place_.where, error.fix());
  }
  const std::vector<std::string> texts =
      images::texts_of_video(input.prompt, input.processor, plan, times.seconds);
  ReadMedia whole;
  for (size_t group = 0; group < texts.size(); ++group) {
    const size_t begin = group * static_cast<size_t>(input.processor.frames_of_group());
    const size_t end =
        std::min(read.size(), begin + static_cast<size_t>(input.processor.frames_of_group()));
    ReadMedia& one = whole.groups.emplace_back();
    one.text = texts[group];
    one.media = {
        .media = read[begin].media,
        .frames = {.video = 1, .of_video = std::ssize(read), .first = static_cast<int64_t>(begin)},
        .width = first.width,
        .height = first.height,
        .rows = plan.rows,
        .num_tokens = plan.num_tokens,
        .grid_thw = plan.grid_thw,
        .feature = input.feature};
    for (size_t i = begin + 1; i < end; ++i) one.media.frames.further.push_back(read[i].media);
    if (input.tokens_per_second > 0)
      one.media.frames.time = time_of_group(static_cast<int64_t>(group), input, times.rate);
    whole.text += one.text;
  }
  whole.media = whole.groups.front().media;
  images_.push_back(std::move(whole));
  return images_.size() - 1;
}

/// The headers of frames, which must have one size.
std::vector<SequenceMedia> RecordMedia::read_frames(const Json& frames,
                                                    const std::string& name) const {
  if (frames.is_string() && is_video_file(frames.get_ref<const std::string&>())) {
    const auto& file = frames.get_ref<const std::string&>();
    refuse(fmt::format("{} is a video file, and videos are not decoded: {}", name, excerpt(file)),
           fmt::format("extract frames first, for example two a second with `ffmpeg -i {} -vf "
                       "fps=2 %04d.jpg`, and write them: {{\"video\": [\"0001.jpg\", …], \"fps\": "
                       "2}}",
                       excerpt(file)));
  }
  if (!frames.is_array() || frames.empty())
    refuse(fmt::format("{} must be a list of frames, each an image", name), kVideoFix);
  std::vector<SequenceMedia> read_ones;
  for (size_t i = 0; i < frames.size(); ++i) {
    const std::string frame = fmt::format("{}, frame {}", name, i);
    read_ones.push_back(read_frame(media_of(frames[i], "video", frame), frame));
    const SequenceMedia &first = read_ones.front(), &last = read_ones.back();
    if (first.width != last.width || first.height != last.height)
      refuse(fmt::format("{} has {} x {} pixels, and frame 0 has {} x {}", frame, last.width,
                         last.height, first.width, first.height),
             "give frames of one size");
  }
  return read_ones;
}

/// Frames without a rate have transformers' 24 a second.
RecordMedia::FrameTimes RecordMedia::times_of(const Json& video, size_t num_frames,
                                              const std::string& name) const {
  FrameTimes times;
  if (const Json* given = held_value(video, "timestamps")) {
    if (given->is_array())
      for (const Json& time : *given)
        if (time.is_number()) times.seconds.push_back(time.get<double>());
    const std::vector<double>& seconds = times.seconds;
    const bool is_fit = seconds.size() == num_frames && given->size() == num_frames &&
                        std::is_sorted(seconds.begin(), seconds.end()) && seconds.front() >= 0 &&
                        std::isfinite(seconds.back());
    if (!is_fit)
      refuse(fmt::format("{}: \"timestamps\" must be a list of {}, in seconds and in order", name,
                         counted(num_frames, "number")),
             "write one for each frame");
    times.rate = mean_rate(seconds);
    return times;
  }
  times.rate = images::kUsualFramesPerSecond;
  for (const char* key : {"sample_fps", "fps"}) {
    const Json* value = held_value(video, key);
    if (value == nullptr) continue;
    if (!value->is_number() || !(value->get<double>() > 0) || !std::isfinite(value->get<double>()))
      refuse(fmt::format("{}: \"{}\" must be a number above 0", name, key),
             "write how many of these frames there are for a second of the video");
    times.rate = value->get<double>();
    break;
  }
  for (size_t i = 0; i < num_frames; ++i)
    times.seconds.push_back(static_cast<double>(i) / times.rate);
  return times;
}

}  // namespace sftrun::data
