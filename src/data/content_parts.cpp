#include "content_parts.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "nulls.h"
#include "record_media.h"
#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"
#include "sftrun/data/record_error.h"
#include "tool_calls.h"

namespace sftrun::data {
namespace {

/// Keys beside a part's text that are not for the model.
constexpr std::array<std::string_view, 6> kNotes = {"cache_control", "annotations", "citations",
                                                    "logprobs",      "id",          "index"};

bool is_note(const std::string& key) {
  return std::find(kNotes.begin(), kNotes.end(), key) != kNotes.end();
}

bool is_image_key(const std::string& key) {
  return std::find(kImageKeys.begin(), kImageKeys.end(), key) != kImageKeys.end();
}

/// Sizes of single images, as Qwen's processors read them.
bool is_size_key(const std::string& key) {
  constexpr std::array<std::string_view, 5> kSizes = {"min_pixels", "max_pixels", "total_pixels",
                                                      "resized_height", "resized_width"};
  return std::find(kSizes.begin(), kSizes.end(), key) != kSizes.end();
}

/// An image has the size that its processor gives it.
[[noreturn]] void refuse_size_key(const std::string& key, const char* what, const std::string& name,
                                  const std::string& where) {
  throw RecordError(
      fmt::format("{} has \"{}\" beside its {}, which is not read", name, key, what), where,
      "remove the key: data.max_image_pixels limits the pixels of all images and frames",
      "remove the key, or the record");
}

/// An image's file is looked at where it is read (RecordMedia).
void check_image_part(const Json& part, const std::string& name, const std::string& where) {
  bool has_image = false;
  for (const auto& [key, value] : part.items())
    has_image = has_image || (is_image_key(key) && !is_nothing(value));
  for (const auto& [key, value] : part.items()) {
    const bool is_known = is_image_key(key) || key == "type" || key == "detail";
    if (is_known || is_note(key) || is_nothing(value)) continue;
    if (!has_image)
      throw DataError(
          fmt::format("{} is an image without a file: its \"{}\" is not read", name, excerpt(key)),
          where, R"(write the file as "path", "url", "image" or "image_url")");
    if (is_size_key(key)) refuse_size_key(key, "image", name, where);
    throw DataError(
        fmt::format("{} has \"{}\" beside its image, which is not read", name, excerpt(key)), where,
        "remove the key, or the record");
  }
}

/// Likewise.
void check_video_part(const Json& part, const std::string& name, const std::string& where) {
  const auto is_among = [](const auto& keys, const std::string& key) {
    return std::find(keys.begin(), keys.end(), key) != keys.end();
  };
  for (const auto& [key, value] : part.items()) {
    const bool is_known =
        is_among(kVideoKeys, key) || is_among(kFrameTimeKeys, key) || key == "type";
    if (is_known || is_note(key) || is_nothing(value)) continue;
    if (is_size_key(key)) refuse_size_key(key, "video", name, where);
    throw DataError(
        fmt::format("{} has \"{}\" beside its video, which is not read", name, excerpt(key)), where,
        "give the frames as a list, \"video\": [\"1.jpg\", …], and \"fps\"; remove other keys");
  }
}

/// The advice for a part of a type that is not read.
const char* fix_for_type(const Json& type, PartKinds kinds) {
  constexpr std::array<std::string_view, 3> kSounds = {"audio", "input_audio", "audio_url"};
  if (std::find(kSounds.begin(), kSounds.end(), type.get_ref<const std::string&>()) !=
      kSounds.end())
    return "sound is not read: remove this part, or the record";
  return kinds == PartKinds::kTextAndImages
             ? "write the type as text, image, image_url or video, or remove this part"
             : "the model reads text alone: remove this part, or the record";
}

void check_part(const Json& part, const std::string& name, const std::string& where,
                PartKinds kinds) {
  constexpr const char* kFix = R"(write {"type": "text", "text": "…"})";
  const Json type = part.is_object() ? part.value("type", Json()) : Json();
  if (is_features_part(part)) refuse_features_part(name, where);
  if (is_image_part(part)) {
    throw DataError(fmt::format("{} is an image, and the model reads text alone", name), where,
                    "remove the part, or use a model with images (docs/images.md)");
  }
  if (type.is_string() && type != "text") {
    throw DataError(fmt::format("{} has the type {}", name, excerpt(type.dump())), where,
                    fix_for_type(type, kinds));
  }
  const bool is_text = part.is_object() && (type.is_null() || type.is_string()) &&
                       part.contains("text") && part["text"].is_string();
  if (!is_text) throw DataError(fmt::format("{} is not a text part", name), where, kFix);
  for (const auto& [key, value] : part.items()) {
    if (key == "type" || key == "text" || is_nothing(value)) continue;
    if (is_note(key)) continue;
    throw DataError(
        fmt::format("{} has \"{}\" beside its text, which is not read", name, excerpt(key)), where,
        "remove the key, or the record");
  }
}

/// A conversation whose message of `role` has the content.
Json conversation_about(const std::string& role, const Json& content) {
  const Json question = {{"role", "user"}, {"content", "q"}};
  Json message = {{"role", role}, {"content", content}};
  if (role == "user") return Json::array({message});
  if (role == "system" || role == "developer") return Json::array({message, question});
  if (role != "tool") return Json::array({question, message});
  message["name"] = kProbedName;
  message["tool_call_id"] = kProbedId;
  return Json::array({question, calling_answer(Json::object()), message});
}

Json part_of(const std::string& text) {
  return {{"type", "text"}, {"text", text}};
}

/// What the template makes of a message of `role` with this content, beside messages of either form;
/// empty: it fails.
std::string rendered_content(const TextModel& model, const std::string& role, const Json& content) {
  const Json messages = conversation_about(role, content);
  std::string all;
  for (const Json& form : {messages, strings_as_parts(messages)}) {
    const auto own = std::find_if(form.begin(), form.end(),
                                  [&](const Json& message) { return message["role"] == role; });
    if ((*own)["content"].type() != content.type()) continue;
    // A template for strings concatenates them, and fails for parts.
    const auto rendered = model.chat_template->render_if_accepted(form, model.render_defaults);
    if (rendered) all += rendered->text;
  }
  return all;
}

bool reads_parts(const TextModel& model, const std::string& role,
                 const std::vector<std::string>& texts) {
  Json parts = Json::array();
  for (const std::string& text : texts) parts.push_back(part_of(text));
  const std::string all = rendered_content(model, role, parts);
  const auto holds = [&](const std::string& what) { return all.find(what) != std::string::npos; };
  const bool prints_list = holds("'text'") || holds(R"("text")");
  return std::all_of(texts.begin(), texts.end(), holds) && !prints_list;
}

bool reads_strings(const TextModel& model, const std::string& role) {
  return rendered_content(model, role, "sftrunq").find("sftrunq") != std::string::npos;
}

}  // namespace

void check_parts(const Json& parts, const std::string& name, const std::string& where,
                 PartKinds kinds) {
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string part = fmt::format("{}[{}]", name, i);
    if (kinds == PartKinds::kTextAndImages && is_image_part(parts[i]))
      check_image_part(parts[i], part, where);
    else if (kinds == PartKinds::kTextAndImages && is_video_part(parts[i]))
      check_video_part(parts[i], part, where);
    else if (kinds == PartKinds::kTextAndImages && is_features_part(parts[i]))
      check_features_part(parts[i], part, where);
    else
      check_part(parts[i], part, where, kinds);
  }
}

PartSupport part_support(const TextModel& model) {
  PartSupport support;
  for (const char* role : {"system", "developer", "user", "assistant", "tool"}) {
    if (reads_parts(model, role, {"sftrunq", "sftrunz"})) support.reads.insert(role);
    const bool reads_one = support.reads.contains(role) || reads_parts(model, role, {"sftrunq"});
    if (reads_one && !reads_strings(model, role)) support.needs.insert(role);
  }
  return support;
}

Json strings_as_parts(Json messages) {
  for (Json& message : messages) {
    const auto content = message.find("content");
    if (content == message.end() || !content->is_string()) continue;
    *content = Json::array({part_of(content->get<std::string>())});
  }
  return messages;
}

namespace {

bool has_visual(const Json& content) {
  return content.is_array() && std::any_of(content.begin(), content.end(), is_visual_part);
}

Json with_plain_texts(Json parts) {
  for (Json& part : parts)
    if (!is_visual_part(part)) part = part_of(part["text"].get<std::string>());
  return parts;
}

}  // namespace

void set_parts(Json& message, const PartSupport& support) {
  const auto content = message.find("content");
  if (content == message.end() || content->is_null()) return;
  if (has_visual(*content)) {
    *content = with_plain_texts(std::move(*content));
    return;
  }
  const auto& role = message["role"].get_ref<const std::string&>();
  std::vector<std::string> texts;
  for (const std::string* text : texts_of(message)) texts.push_back(*text);
  const bool reads = support.reads.contains(role);
  const bool becomes_string = content->is_string() || texts.empty() || !reads;
  if (texts.empty() || !reads) texts = {join(texts, "\n")};
  if (becomes_string && !support.needs.contains(role)) {
    *content = join(texts, "\n");
    return;
  }
  *content = Json::array();
  for (const std::string& text : texts) content->push_back(part_of(text));
}

std::vector<const std::string*> texts_of(const Json& message) {
  const auto content = message.find("content");
  if (content == message.end()) return {};
  if (content->is_string()) return {&content->get_ref<const std::string&>()};
  std::vector<const std::string*> texts;
  if (!content->is_array()) return texts;
  for (const Json& part : *content) {
    const auto text = part.find("text");
    if (text != part.end()) texts.push_back(&text->get_ref<const std::string&>());
  }
  return texts;
}

std::string& text_in(Json& message, size_t index) {
  Json& content = message["content"];
  if (content.is_string()) return content.get_ref<std::string&>();
  for (Json& part : content)
    if (part.contains("text") && index-- == 0) return part["text"].get_ref<std::string&>();
  invariant_failed(__FILE__, __LINE__, "no such text");
}

}  // namespace sftrun::data
