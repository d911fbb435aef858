#include "record_media.h"

#include <algorithm>
#include <utility>

#include "content_parts.h"
#include "media_path.h"
#include "nulls.h"
#include "sftrun/core/base64.h"
#include "sftrun/core/error.h"
#include "sftrun/core/exact_json.h"
#include "sftrun/core/input_file.h"
#include "sftrun/core/plural.h"
#include "sftrun/core/strings.h"
#include "sftrun/data/tower_grid.h"
#include "sftrun/images/decode.h"

namespace sftrun::data {
namespace {

void erase_white_space(std::string& text) {
  std::erase_if(text, [](char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; });
}

/// base64 of files, with line breaks and without padding, too.
std::optional<std::string> bytes_of_base64(std::string text) {
  erase_white_space(text);
  while (text.size() % 4 != 0) text += '=';
  return decode_base64(text);
}

/// "https" of "https://…"; empty: it is no such address.
std::string_view scheme_of(std::string_view text) {
  const size_t end = text.find("://");
  if (end == std::string_view::npos || end == 0) return {};
  const std::string_view scheme = text.substr(0, end);
  return std::all_of(scheme.begin(), scheme.end(), is_word_char) ? scheme : std::string_view();
}

Json image_part(size_t index) {
  return {{"type", "image"}, {"image", index}};
}

Json text_part(std::string text) {
  return {{"type", "text"}, {"text", std::move(text)}};
}

/// The turns of a record, with the names of their lists.
template <class OnTurn>
void for_each_turn(const Json& record, RecordFormat format, const OnTurn& on_turn) {
  for (const std::string_view column : config::format_info(format).turns) {
    const Json* turns = value_of(record, column.data());
    if (turns == nullptr || !turns->is_array()) continue;
    for (size_t i = 0; i < turns->size(); ++i)
      on_turn((*turns)[i], fmt::format("{}[{}]", column, i));
  }
}

}  // namespace

bool is_webp_file(std::string_view bytes) {
  return bytes.starts_with("RIFF") && bytes.substr(0, 12).ends_with("WEBP");
}

bool is_image_part(const Json& part) {
  if (!part.is_object()) return false;
  const Json* type = value_of(part, "type");
  if (type != nullptr) return *type == "image" || *type == "image_url";
  const Json* text = value_of(part, "text");
  const bool has_image =
      value_of(part, "image") != nullptr || value_of(part, "image_url") != nullptr;
  return has_image && text == nullptr;
}

bool has_image_parts(const Json& record, RecordFormat format) {
  bool found = false;
  for_each_turn(record, format, [&](const Json& turn, const std::string&) {
    const Json* content = value_of(turn, "content");
    if (content != nullptr && content->is_array())
      found = found || std::any_of(content->begin(), content->end(), is_visual_part);
  });
  return found;
}

bool has_image_columns(const Json& record) {
  for (const char* key : {"images", "image", "videos", "video"})
    if (const Json* value = value_of(record, key); value != nullptr && !is_nothing(*value))
      return true;
  return false;
}

void refuse_image_parts(const Json& record, RecordFormat format, const std::string& where) {
  for_each_turn(record, format, [&](const Json& turn, const std::string& name) {
    const Json* content = value_of(turn, "content");
    if (content != nullptr && content->is_array())
      check_parts(*content, name + ".content", where, PartKinds::kText);
  });
}

RecordMedia::RecordMedia(const ImageInput* input, const FeatureInput* features, const Json& record,
                         MediaPlace place)
    : input_(input), place_(std::move(place)) {
  if (input_ != nullptr) {
    find_columns(record);
    find_video_columns(record);
  }
  if (features != nullptr) features_.emplace(*features, place_);
}

const Json& RecordMedia::marked(const Json& record, RecordFormat format, Json& room) {
  if (!features_) return record;
  room = features_->mark(record, format);
  return room;
}

void RecordMedia::find_columns(const Json& record) {
  for (const char* key : {"images", "image"}) {
    const auto found = record.find(key);
    if (found == record.end()) continue;
    has_columns_ = true;
    const Json* value = &*found;
    if (is_nothing(*value)) continue;
    if (!columns_.empty())
      refuse("the record has both \"images\" and \"image\"", "leave one of them out");
    if (!value->is_array()) {
      columns_.push_back({value, fmt::format("\"{}\"", key)});
      continue;
    }
    for (size_t i = 0; i < value->size(); ++i)
      columns_.push_back({&(*value)[i], fmt::format("{}[{}]", key, i)});
  }
}

/// How to give an image.
const char* RecordMedia::image_fix() const {
  if (input_->reads_files)
    return R"(write {"type": "image", "path": "photo.jpg"}, with a path relative to the record's file)";
  return R"(write {"type": "image_url", "image_url": {"url": "data:image/png;base64,…"}})";
}

void RecordMedia::refuse(const std::string& what, const std::string& fix) const {
  throw DataError(what, place_.where, fix);
}

void RecordMedia::take(Json& messages) {
  if (input_ == nullptr) return;
  num_used_ = num_markers_ = 0;
  for (size_t i = 0; i < messages.size(); ++i) {
    const auto content = messages[i].find("content");
    if (content == messages[i].end()) continue;
    split_texts(*content);
    if (!content->is_array()) continue;
    for (size_t j = 0; j < content->size(); ++j) {
      Json& part = (*content)[j];
      const std::string name = fmt::format("messages[{}].content[{}]", i, j);
      if (is_features_part(part)) refuse_features_part(name, place_.where);
      if (!is_image_part(part)) continue;
      const auto key = std::find_if(kImageKeys.begin(), kImageKeys.end(), [&](const char* k) {
        const Json* value = value_of(part, k);
        return value != nullptr && !is_nothing(*value);
      });
      part =
          key == kImageKeys.end() ? next_of_columns(name) : image_part(add(part[*key], *key, name));
    }
  }
  if (num_markers_ == 0 && !columns_.empty()) put_before_text(messages);
  require_all_used("parts or <image> for them");
  take_videos(messages);
}

void RecordMedia::note_text(std::string_view text) {
  const bool is_idle = !has_columns_ && text.find(kImageMarker) != std::string_view::npos;
  has_idle_marker_ = has_idle_marker_ || is_idle;
}

/// Makes parts of texts with markers. Without a column of images they stay text.
void RecordMedia::split_texts(Json& content) {
  const auto has_marker = [&](const std::string& text) {
    note_text(text);
    return has_columns_ && text.find(kImageMarker) != std::string::npos;
  };
  if (content.is_string()) {
    const auto& text = content.get_ref<const std::string&>();
    if (has_marker(text)) content = split_at_markers(text);
    return;
  }
  if (!content.is_array()) return;
  Json parts = Json::array();
  for (Json& part : content) {
    const Json* text = part.is_object() && !is_image_part(part) ? value_of(part, "text") : nullptr;
    if (text == nullptr || !text->is_string() || !has_marker(text->get<std::string>())) {
      parts.push_back(std::move(part));
      continue;
    }
    for (Json& piece : split_at_markers(text->get<std::string>()))
      parts.push_back(std::move(piece));
  }
  content = std::move(parts);
}

/// LLaVA's layout. A line break between a text and an image belongs to the marker.
Json RecordMedia::split_at_markers(const std::string& text) {
  Json parts = Json::array();
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t found = std::min(text.find(kImageMarker, begin), text.size());
    std::string_view piece = std::string_view(text).substr(begin, found - begin);
    if (begin > 0 && piece.starts_with('\n')) piece.remove_prefix(1);
    if (found < text.size() && piece.ends_with('\n')) piece.remove_suffix(1);
    if (!piece.empty()) parts.push_back(text_part(std::string(piece)));
    if (found == text.size()) break;
    parts.push_back({{"type", "image"}});
    begin = found + kImageMarker.size();
  }
  return parts;
}

Json RecordMedia::next_of_columns(const std::string& place) {
  ++num_markers_;
  if (num_used_ < columns_.size()) {
    const Column& column = columns_[num_used_++];
    return image_part(add(*column.value, column.name, column.name));
  }
  if (!has_columns_)
    refuse(place + (input_->reads_files
                        ? " is an image without a file, and the record has no \"images\""
                        : " is an image without its file"),
           image_fix());
  return {{"type", "image"}};  // require_all_used counts it
}

/// As TRL's prepare_multimodal_messages.
void RecordMedia::put_before_text(Json& messages) {
  for (Json& message : messages) {
    const auto content = message.find("content");
    if (message["role"] != "user" || content == message.end() || !content->is_string()) continue;
    Json parts = Json::array();
    for (size_t i = 0; i < columns_.size(); ++i) parts.push_back(next_of_columns({}));
    parts.push_back(text_part(content->get<std::string>()));
    *content = std::move(parts);
    return;
  }
}

void RecordMedia::require_all_used(const std::string& place) const {
  if (num_markers_ == columns_.size()) return;
  refuse(
      fmt::format("the record's columns have {}, and its texts have {} {}",
                  counted(columns_.size(), "image"), num_markers_, place),
      num_markers_ > columns_.size()
          ? R"(write the file of each image into "images", or remove <image> where none is meant)"
          : R"(write one {"type": "image"} part, or one <image> in a text, for each image)");
}

std::vector<size_t> RecordMedia::take_for_text(size_t num_markers) {
  num_used_ = 0;
  num_markers_ = num_markers;
  require_all_used("markers for them");
  std::vector<size_t> taken;
  for (const Column& column : columns_)
    taken.push_back(add(*column.value, column.name, column.name));
  return taken;
}

size_t RecordMedia::add(const Json& value, const std::string& key, const std::string& name) {
  Media media = media_of(value, key, name);
  for (size_t i = 0; i < images_.size(); ++i)
    if (images_[i].groups.empty() && images_[i].media.media == media) return i;
  images_.push_back(read(media, name));
  return images_.size() - 1;
}

/// With its size alone, which is all that frames of videos need.
SequenceMedia RecordMedia::read_header(const Media& media) const {
  const bool is_file = media.bytes == nullptr;
  const bool is_new =
      is_file && place_.stamps != nullptr && place_.stamps->note(media.path, /*is_image=*/true);
  const auto header_of_file = [&] {
    const InputFile file(media.path);
    if (is_new) place_.stamps->note_contents(written_path(media.path), file);
    return images::header_of_complete(file, {}, media.path);
  };
  const images::ImageHeader header =
      is_file ? header_of_file()
              : images::header_of_complete(std::as_bytes(std::span(*media.bytes)));
  return {.media = media, .width = header.width(), .height = header.height()};
}

ReadMedia RecordMedia::read_image(const Media& media) const {
  ReadMedia read{.media = read_header(media)};
  const images::ImagePlan plan =
      images::plan_image(input_->processor, read.media.width, read.media.height);
  if (input_->tower) tower_grid(input_->processor, *input_->tower, plan);
  read.text = images::text_of_image(input_->prompt, plan);
  read.media.rows = plan.rows;
  read.media.num_tokens = plan.num_tokens;
  read.media.grid_thw = plan.grid_thw;
  read.media.feature = input_->feature;
  return read;
}

/// A path as the record has it, or below the record's folder.
std::string RecordMedia::written_path(const std::string& path) const {
  const std::string folder = (place_.folder / "").string();
  return path.starts_with(folder) ? path.substr(folder.size()) : path;
}

template <class Read>
auto RecordMedia::naming(const Media& media, const std::string& name, const Read& read) const {
  try {
    return read(media);
  } catch (const DataError& error) {
    const std::string message = fmt::format("{}: {}", name, error.message());
    const std::string where =
        media.path.empty() ? place_.where : fmt::format("{}, {}", place_.where, media.path);
    const std::string fix = error.fix().empty()    ? image_fix()
                            : !input_->reads_files ? error.fix()
                                                   : error.fix() + ", or remove the record";
    if (!media.path.empty() && is_missing_below_folder(written_path(media.path), media.path))
      throw MissingFileError(message, where, fix);
    throw DataError(message, where, fix);
  }
}

ReadMedia RecordMedia::read(const Media& media, const std::string& name) const {
  return naming(media, name, [this](const Media& of) { return read_image(of); });
}

SequenceMedia RecordMedia::read_frame(const Media& media, const std::string& name) const {
  return naming(media, name, [this](const Media& of) { return read_header(of); });
}

Media RecordMedia::media_of(const Json& value, const std::string& key,
                            const std::string& name) const {
  if (is_bytes(value) || key == "bytes" || key == "base64") return media_in(value, name);
  if (value.is_string()) return media_at(value.get_ref<const std::string&>(), name);
  if (value.is_object()) {  // OpenAI's image_url, or a row of datasets' Image
    for (const char* inner : {"bytes", "base64", "path", "url"}) {
      const Json* held = value_of(value, inner);
      if (held != nullptr && !is_nothing(*held)) return media_of(*held, inner, name);
    }
  }
  refuse(fmt::format("{} is not an image: {}", name,
                     value.is_object() ? "its keys: " + keys_of(value)
                                       : fmt::format("it is of type {}", json_type(value))),
         image_fix());
}

Media RecordMedia::media_at(const std::string& path_or_url, const std::string& name) const {
  constexpr std::string_view kData = "data:";
  if (std::string_view(path_or_url).starts_with(kData)) return media_in(path_or_url, name);
  if (!input_->reads_files)
    refuse(name + " is not a data: URL, and neither files are read here nor URLs followed",
           "send the image itself: data:image/png;base64,…");
  if (!scheme_of(path_or_url).empty() && !is_file_address(path_or_url))
    refuse(
        fmt::format("{} is a URL, and images are not downloaded: {}", name, excerpt(path_or_url)),
        "download the file, and write its path, relative to the record's file");
  return {.path = media_path(path_or_url, place_.folder).string()};
}

Media RecordMedia::media_in(const Json& bytes, const std::string& name) const {
  const auto held = [](std::string_view file) {
    return Media{.bytes = std::make_shared<const std::string>(file)};
  };
  if (is_bytes(bytes)) return held(bytes_of(bytes));
  if (!bytes.is_string())
    refuse(fmt::format("{} must be bytes or a string of base64, not {}", name, json_type(bytes)),
           image_fix());
  std::string_view text = bytes.get_ref<const std::string&>();
  if (is_webp_file(text)) return held(text);
  if (text.starts_with("data:")) {
    const size_t comma = text.find(',');
    if (comma == std::string_view::npos || !text.substr(0, comma).ends_with(";base64"))
      refuse(name + " is a data: URL without base64", "write data:image/png;base64,…");
    text.remove_prefix(comma + 1);
  }
  const auto decoded = bytes_of_base64(std::string(text));
  if (!decoded)
    refuse(fmt::format("{} is not valid base64: {}", name, excerpt(text.substr(0, 40))),
           "encode the file again, with the alphabet A-Z a-z 0-9 + /");
  return held(*decoded);
}

std::unique_ptr<RecordMedia> media_of_record(const Json& record, RecordFormat format,
                                             const TextModel& model, MediaPlace place) {
  const ImageInput* input = model.images.get();
  if (input != nullptr && input->refusal) {
    if (has_image_parts(record, format) || has_image_columns(record))
      throw DataError(input->refusal->message(),
                      fmt::format("{}, {}", place.where, input->refusal->where()),
                      input->refusal->fix());
    input = nullptr;
  }
  if (input == nullptr && model.features == nullptr) return nullptr;
  return std::make_unique<RecordMedia>(input, model.features.get(), record, std::move(place));
}

}  // namespace sftrun::data
