#include "media_text.h"

#include <algorithm>
#include <utility>

#include "content_parts.h"
#include "sftrun/core/error.h"
#include "sftrun/core/plural.h"

namespace sftrun::data {
namespace {

using templates::LabelledConversation;
using templates::Origin;
using templates::OriginSpan;
using tokenizer::ByteSpan;

struct FoundMarker {
  size_t begin, size;
};

std::vector<FoundMarker> find_markers(std::string_view text, std::string_view marker) {
  std::vector<FoundMarker> found;
  for (size_t at = text.find(marker); at != std::string_view::npos;
       at = text.find(marker, at + marker.size()))
    found.push_back({at, marker.size()});
  return found;
}

[[noreturn]] void refuse_marker(const std::string& who, std::string_view marker,
                                const std::string& where, bool is_of_video = false) {
  throw DataError(
      fmt::format("{} contains `{}`, which stands for {} in the model's texts", who, marker,
                  is_of_video ? "a video" : "an image"),
      where,
      is_of_video ? R"(write videos as parts, {"type": "video", "video": […]}, or remove the word)"
                  : R"(write images as parts, {"type": "image", "path": …}, or remove the word)");
}

/// Where bytes of a rendered text come from.
class Origins {
 public:
  explicit Origins(const std::vector<OriginSpan>& spans) : spans_(spans) {}

  /// The first origin of these bytes that is not the template's own text; null: there is none.
  const Origin* foreign(size_t begin, size_t end) const {
    auto span = std::partition_point(spans_.begin(), spans_.end(),
                                     [&](const OriginSpan& s) { return s.end <= begin; });
    for (; span != spans_.end() && span->begin < end; ++span)
      if (span->origin.kind != Origin::Kind::kTemplate) return &span->origin;
    return nullptr;
  }

 private:
  const std::vector<OriginSpan>& spans_;
};

std::string name_of_origin(const Origin& origin) {
  return origin.kind == Origin::Kind::kMessage
             ? fmt::format("messages[{}].{}", origin.message, origin.field)
             : "a variable of the chat template";
}

/// What stands in a text in place of an image or of features.
struct FoundMedia {
  FoundMarker marker;
  const ReadMedia* media;
};

void sort_by_place(std::vector<FoundMedia>& found) {
  std::sort(found.begin(), found.end(), [](const FoundMedia& a, const FoundMedia& b) {
    return a.marker.begin < b.marker.begin;
  });
}

void add_features(std::string_view text, const RecordMedia& media, std::vector<FoundMedia>& found) {
  if (!media.reads_features()) return;
  for (const FeatureMark& mark : find_feature_marks(text))
    found.push_back({{mark.begin, mark.size}, &media.features_of(mark)});
}

size_t count_features(const Json& messages) {
  size_t count = 0;
  for (const Json& message : messages)
    for (const std::string* text : texts_of(message)) count += find_feature_marks(*text).size();
  return count;
}

/// The images of messages, or their videos, in order.
/// @param key "image" or "video"
std::vector<size_t> visuals_of(const Json& messages, const char* key) {
  std::vector<size_t> images;
  for (const Json& message : messages) {
    const auto content = message.find("content");
    if (content == message.end() || !content->is_array()) continue;
    for (const Json& part : *content)
      if (is_visual_part(part) && part["type"] == key) images.push_back(part[key].get<size_t>());
  }
  return images;
}

/// Replaces bytes of a text, from the front to the back, and knows where other bytes move.
class Replacement {
 public:
  explicit Replacement(std::string_view text) : text_(text) {}

  ByteSpan replace(FoundMarker marker, std::string_view by) {
    result_.append(text_, copied_, marker.begin - copied_);
    const auto begin = static_cast<uint32_t>(result_.size());
    result_ += by;
    copied_ = marker.begin + marker.size;
    const auto end = static_cast<uint32_t>(result_.size());
    moves_.push_back({marker.begin, copied_, begin, end});
    return {begin, end};
  }
  std::string finish() {
    result_.append(text_, copied_);
    return std::move(result_);
  }
  /// A byte within what was replaced moves to its end.
  uint32_t moved(size_t at) const {
    const auto next = std::partition_point(moves_.begin(), moves_.end(),
                                           [&](const Move& move) { return move.old_begin < at; });
    if (next == moves_.begin()) return static_cast<uint32_t>(at);
    const Move& last = *std::prev(next);
    return static_cast<uint32_t>(last.new_end + (at > last.old_end ? at - last.old_end : 0));
  }

 private:
  struct Move {
    size_t old_begin, old_end, new_begin, new_end;
  };
  std::string_view text_;
  std::string result_;
  size_t copied_ = 0;
  std::vector<Move> moves_;
};

/// An image's text is no part of what the template wrote around it.
std::vector<OriginSpan> with_images(const std::vector<OriginSpan>& moved,
                                    const std::vector<PlacedMedia>& placed) {
  std::vector<OriginSpan> origins;
  const auto add = [&](uint32_t begin, uint32_t end, const Origin& origin) {
    if (begin < end) origins.push_back({begin, end, origin});
  };
  size_t next = 0;
  for (const OriginSpan& span : moved) {
    uint32_t at = span.begin;
    for (; next < placed.size() && placed[next].span.begin < span.end; ++next) {
      const ByteSpan image = placed[next].span;
      add(at, image.begin, span.origin);
      const SequenceMedia& media = placed[next].media->media;
      Origin own{.kind = Origin::Kind::kOther,
                 .field = media.is_of_video() ? "video"
                          : media.is_image()  ? "image"
                                              : "features"};
      add(image.begin, image.end, own);
      at = image.end;
    }
    add(at, span.end, span.origin);
  }
  return origins;
}

/// Where the text of an image or features is, or those of a video's groups.
void add_placed(const ReadMedia& media, ByteSpan span, std::vector<PlacedMedia>& placed) {
  if (media.groups.empty()) {
    placed.push_back({&media, span});
    return;
  }
  for (const ReadMedia& group : media.groups) {
    const auto end = span.begin + static_cast<uint32_t>(group.text.size());
    placed.push_back({&group, {span.begin, end}});
    span.begin = end;
  }
  SFTRUN_CHECK_EQ(span.begin, span.end);
}

void require_whole_count(size_t written, size_t wanted, const char* what, const char* fix,
                         const std::string& where) {
  if (written == wanted) return;
  throw DataError(fmt::format("the chat template writes {} of the {} {}", written, wanted, what),
                  where, fix);
}

/// What the template wrote for images.
void add_images(const templates::Rendered& rendered, const Json& messages, const RecordMedia& media,
                std::vector<FoundMedia>& found) {
  if (!media.reads_images()) return;
  const images::ImagePrompt& prompt = media.input().prompt;
  const Origins origins(rendered.origins);
  const auto refuse_texts = [&](const std::string& marker, bool is_of_video = false) {
    std::vector<FoundMarker> markers = find_markers(rendered.text, marker);
    for (const FoundMarker& one : markers)
      if (const Origin* origin = origins.foreign(one.begin, one.begin + one.size))
        refuse_marker(name_of_origin(*origin), marker, media.where(), is_of_video);
    return markers;
  };
  if (prompt.feature != prompt.placeholder) refuse_texts(prompt.feature);
  if (const VideoInput* videos = media.input().videos.get()) {
    const std::vector<FoundMarker> written =
        refuse_texts(videos->prompt.placeholder, /*is_of_video=*/true);
    const std::vector<size_t> wanted = visuals_of(messages, "video");
    require_whole_count(
        written.size(), wanted.size(), "videos",
        "write videos in turns of a role for which the template writes them, such as user; or set "
        "model.chat_template to one that writes them",
        media.where());
    for (size_t i = 0; i < written.size(); ++i) found.push_back({written[i], &media[wanted[i]]});
  }
  const std::vector<FoundMarker> written = refuse_texts(prompt.placeholder);
  const std::vector<size_t> wanted = visuals_of(messages, "image");
  require_whole_count(written.size(), wanted.size(), "images",
                      "write images in turns of a role for which the template writes them, such as "
                      "user; or set model.chat_template to that of the model's processor",
                      media.where());
  for (size_t i = 0; i < written.size(); ++i) found.push_back({written[i], &media[wanted[i]]});
}

}  // namespace

namespace {

/// Whether the template writes something for a video.
bool writes_videos(const TextModel& model, const VideoInput& videos) {
  const Json video = {{"type", "video"}, {"video", 0}}, text = {{"type", "text"}, {"text", "q"}};
  const Json probe = {{"role", "user"}, {"content", Json::array({video, text})}};
  const auto rendered =
      model.chat_template->render_if_accepted(Json::array({probe}), model.render_defaults);
  return rendered && rendered->text.find(videos.prompt.placeholder) != std::string::npos;
}

}  // namespace

const TextModel& model_for_videos(const TextModel& model, Json& messages, TextModel& room) {
  const VideoInput* videos = model.images != nullptr ? model.images->videos.get() : nullptr;
  if (videos == nullptr || videos->chat_template == nullptr || model.chat_template == nullptr ||
      visuals_of(messages, "video").empty() || writes_videos(model, *videos))
    return model;
  messages = strings_as_parts(std::move(messages));
  room = model;
  room.chat_template = videos->chat_template;
  return room;
}

std::vector<PlacedMedia> place_media(LabelledConversation& conversation, const Json& messages,
                                     const RecordMedia& media) {
  templates::Rendered& rendered = conversation.rendered;
  std::vector<FoundMedia> found;
  add_features(rendered.text, media, found);
  require_whole_count(
      found.size(), media.reads_features() ? count_features(messages) : 0, "parts of features",
      "write features in turns of a role that the template writes, such as user", media.where());
  add_images(rendered, messages, media, found);
  if (found.empty()) return {};
  sort_by_place(found);
  Replacement replacement(rendered.text);
  std::vector<PlacedMedia> placed;
  for (const FoundMedia& one : found)
    add_placed(*one.media, replacement.replace(one.marker, one.media->text), placed);
  for (LabelledConversation::Run& run : conversation.runs)
    run.span = {replacement.moved(run.span.begin), replacement.moved(run.span.end)};
  for (OriginSpan& span : rendered.origins)
    span.begin = replacement.moved(span.begin), span.end = replacement.moved(span.end);
  rendered.origins = with_images(rendered.origins, placed);
  rendered.text = replacement.finish();
  return placed;
}

namespace {

/// Markers of a text of either spelling, in order.
/// @param own the model's   @param general `<image>` or `<video>`
std::vector<FoundMarker> markers_of_text(std::string_view text, std::string_view own,
                                         std::string_view general) {
  std::vector<FoundMarker> found = find_markers(text, own);
  if (own == general) return found;
  const std::vector<FoundMarker> further = find_markers(text, general);
  found.insert(found.end(), further.begin(), further.end());
  std::sort(found.begin(), found.end(),
            [](const FoundMarker& a, const FoundMarker& b) { return a.begin < b.begin; });
  return found;
}

/// What the markers of one text stand for, in order.
struct OfMarkers {
  std::span<const size_t> images, videos;
};

/// How markers of a kind are written.
struct MarkerKind {
  std::string_view own, general;
};
MarkerKind image_markers(const RecordMedia& media) {
  return {media.input().prompt.placeholder, kImageMarker};
}
/// @pre the model reads videos
MarkerKind video_markers(const RecordMedia& media) {
  return {media.input().videos->prompt.placeholder, kVideoMarker};
}

void add_of_markers(std::string_view text, MarkerKind kind, std::span<const size_t> taken,
                    const RecordMedia& media, std::vector<FoundMedia>& found) {
  const std::vector<FoundMarker> markers = markers_of_text(text, kind.own, kind.general);
  for (size_t i = 0; i < markers.size(); ++i) found.push_back({markers[i], &media[taken[i]]});
}

/// Replaces the markers of one text.
std::vector<PlacedMedia> place_in_text(std::string& text, uint32_t offset, const OfMarkers& taken,
                                       const RecordMedia& media) {
  std::vector<FoundMedia> found;
  add_features(text, media, found);
  if (!taken.images.empty()) add_of_markers(text, image_markers(media), taken.images, media, found);
  if (!taken.videos.empty()) add_of_markers(text, video_markers(media), taken.videos, media, found);
  sort_by_place(found);
  Replacement replacement(text);
  std::vector<PlacedMedia> placed;
  for (const FoundMedia& one : found) {
    std::string before, after;
    const SequenceMedia& of = one.media->media;
    if (of.is_image()) {
      const images::ImagePrompt& prompt = media.input().prompt;
      const std::string_view own =
          of.is_of_video() ? video_markers(media).own : image_markers(media).own;
      const bool is_own = text.compare(one.marker.begin, one.marker.size, own) == 0;
      if (prompt.around.size() == 2 && !is_own) before = prompt.around[0], after = prompt.around[1];
    }
    const ByteSpan span = replacement.replace(one.marker, before + one.media->text + after);
    const auto begin = span.begin + offset + static_cast<uint32_t>(before.size()),
               end = span.end + offset - static_cast<uint32_t>(after.size());
    if (one.media->groups.empty())
      placed.push_back({one.media, {span.begin + offset, span.end + offset}});
    else
      add_placed(*one.media, {begin, end}, placed);
  }
  text = replacement.finish();
  return placed;
}

/// What the markers of a text stand for: those of its prompt, then those of its completion.
struct TakenForText {
  std::vector<size_t> all;
  size_t in_prompt = 0;
  std::span<const size_t> of_prompt() const { return std::span(all).first(in_prompt); }
  std::span<const size_t> of_completion() const { return std::span(all).subspan(in_prompt); }
};

void refuse_markers(const PlainText& text, const std::string& marker, const RecordMedia& media,
                    bool is_of_video) {
  for (const std::string* piece : {&text.prompt, &text.completion})
    if (piece->find(marker) != std::string::npos)
      refuse_marker("the text", marker, media.where(), is_of_video);
}

std::pair<size_t, size_t> count_markers(const PlainText& text, MarkerKind kind) {
  return {markers_of_text(text.prompt, kind.own, kind.general).size(),
          markers_of_text(text.completion, kind.own, kind.general).size()};
}

/// Puts markers before a text that has none, as images of columns come before the first user's text.
/// @param count of images, or of videos
void begin_with_markers(PlainText& text, MarkerKind kind, size_t count) {
  const auto [in_prompt, in_completion] = count_markers(text, kind);
  if (in_prompt + in_completion > 0) return;
  std::string& first = text.prompt.empty() ? text.completion : text.prompt;
  for (size_t i = 0; i < count; ++i) first.insert(0, kind.general);
}

TakenForText take_images(PlainText& text, RecordMedia& media) {
  if (!media.reads_images()) return {};
  const images::ImagePrompt& prompt = media.input().prompt;
  if (!media.has_columns()) refuse_markers(text, prompt.placeholder, media, false);
  if (prompt.feature != prompt.placeholder) refuse_markers(text, prompt.feature, media, false);
  if (!media.has_columns()) {
    media.note_text(text.prompt);
    media.note_text(text.completion);
    return {};
  }
  begin_with_markers(text, image_markers(media), media.num_of_columns());
  const auto [in_prompt, in_completion] = count_markers(text, image_markers(media));
  return {media.take_for_text(in_prompt + in_completion), in_prompt};
}

TakenForText take_videos(PlainText& text, RecordMedia& media) {
  if (!media.reads_images()) return {};
  if (media.input().videos == nullptr) {
    if (media.has_video_columns()) media.take_videos_for_text(0);  // says why not
    return {};
  }
  const std::string& placeholder = media.input().videos->prompt.placeholder;
  if (!media.has_video_columns()) {
    refuse_markers(text, placeholder, media, /*is_of_video=*/true);
    return {};
  }
  begin_with_markers(text, video_markers(media), media.num_videos_of_columns());
  const auto [in_prompt, in_completion] = count_markers(text, video_markers(media));
  return {media.take_videos_for_text(in_prompt + in_completion), in_prompt};
}

}  // namespace

std::vector<PlacedMedia> place_media(PlainText& text, RecordMedia& media) {
  const TakenForText images = take_images(text, media), videos = take_videos(text, media);
  std::vector<PlacedMedia> placed =
      place_in_text(text.prompt, 0, {images.of_prompt(), videos.of_prompt()}, media);
  const std::vector<PlacedMedia> behind =
      place_in_text(text.completion, static_cast<uint32_t>(text.prompt.size()),
                    {images.of_completion(), videos.of_completion()}, media);
  placed.insert(placed.end(), behind.begin(), behind.end());
  return placed;
}

void note_media(Sequence& sequence, const std::vector<PlacedMedia>& placed,
                const RecordMedia& media) {
  if (media.reads_images()) {
    const std::vector<tokenizer::TokenId>& markers = media.input().tokens;
    for (size_t i = 0; i < sequence.ids.size(); ++i)
      if (std::binary_search(markers.begin(), markers.end(), sequence.ids[i])) sequence.mask[i] = 0;
  }
  int64_t num_videos = 0;
  for (const PlacedMedia& placing : placed) {
    SequenceMedia one = placing.media->media;
    if (one.is_of_video()) {
      num_videos += one.frames.first == 0 ? 1 : 0;
      one.frames.video = num_videos;
    }
    const auto is_before = [](const ByteSpan& span, uint32_t at) { return span.end <= at; };
    const auto first = std::lower_bound(sequence.spans.begin(), sequence.spans.end(),
                                        placing.span.begin, is_before);
    one.begin = one.end = first - sequence.spans.begin();
    int64_t num_features = 0;
    for (auto i = static_cast<size_t>(one.begin);
         i < sequence.ids.size() && sequence.spans[i].begin < placing.span.end; ++i) {
      sequence.mask[i] = 0;
      num_features += sequence.ids[i] == one.feature ? 1 : 0;
      one.end = static_cast<int64_t>(i) + 1;
    }
    const bool is_whole =
        num_features == one.num_tokens && (one.is_image() || one.end - one.begin == num_features);
    if (!is_whole)
      throw DataError(
          fmt::format("the tokenizer makes {} of {}'s {}", counted(num_features, "token"),
                      one.is_of_video() ? "frames"
                      : one.is_image()  ? "an image"
                                        : "features",
                      one.num_tokens),
          media.where(), "copy the tokenizer's files from the model's repository");
    sequence.media.push_back(std::move(one));
  }
}

void require_no_image_labels(const Example& example, const TextModel& model,
                             const std::string& where) {
  if (model.images == nullptr) return;
  const std::vector<tokenizer::TokenId>& markers = model.images->tokens;
  for (const int32_t label : example.labels) {
    if (!std::binary_search(markers.begin(), markers.end(), label)) continue;
    invariant_failed(__FILE__, __LINE__,
                     fmt::format("{}: the token `{}` of an image has a label", where,
                                 model.tokenizer->id_to_token(label)));
  }
}

}  // namespace sftrun::data
