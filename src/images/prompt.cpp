#include "sftrun/images/prompt.h"

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/optional_file.h"
#include "sftrun/core/python_json.h"

namespace sftrun::images {

namespace {

using PromptJson = nlohmann::json;

/// A token's key in a model's files, and its text where they do not have the key. Empty: there is no such token.
struct TokenName {
  std::string_view key = {}, usual = {};
};

std::string repeated(const std::string& text, int64_t count) {
  std::string all;
  all.reserve(text.size() * static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) all += text;
  return all;
}

std::string plain_text(const ImagePrompt& prompt, const ImagePlan& plan) {
  return repeated(prompt.feature, plan.num_tokens);
}

std::string enclosed_text(const ImagePrompt& prompt, const ImagePlan& plan) {
  return prompt.begin + repeated(prompt.feature, plan.num_tokens) + prompt.end;
}

/// Gemma 3: the whole image, then the crops of pan and scan.
std::string text_of_crops(const ImagePrompt& prompt, const ImagePlan& plan) {
  const auto num_tiles = static_cast<int64_t>(plan.tiles.size());
  const std::string one = "\n\n" + prompt.begin +
                          repeated(prompt.feature, plan.num_tokens / num_tiles) + prompt.end +
                          "\n\n";
  if (num_tiles == 1) return one;
  std::string text =
      "Here is the original image " + one + " and here are some crops to help you see better";
  for (int64_t crop = 1; crop < num_tiles; ++crop) text += ' ' + one;
  return text;
}

/// Idefics 3: tiles row by row, then the whole image.
std::string text_of_tiles(const ImagePrompt& prompt, const ImagePlan& plan) {
  const std::string features =
      repeated(prompt.feature, plan.num_tokens / static_cast<int64_t>(plan.tiles.size()));
  std::string text;
  for (int64_t row = 1; row <= plan.tile_rows; ++row) {
    for (int64_t column = 1; column <= plan.tile_columns; ++column)
      text += fmt::format("{}<row_{}_col_{}>{}", prompt.begin, row, column, features);
    text += '\n';
  }
  if (plan.tile_rows > 0) text += '\n';
  return text + prompt.begin + prompt.whole + features + prompt.end;
}

/// Pixtral: an end after each row, another after the last.
std::string text_of_rows(const ImagePrompt& prompt, const ImagePlan& plan) {
  const std::string row = repeated(prompt.feature, plan.token_columns);
  return repeated(row + prompt.row_end, plan.token_rows - 1) + row + prompt.end;
}

/// How a kind's models write images.
struct PromptRow {
  ProcessorKind kind;
  TokenName placeholder, feature;
  TokenName begin = {}, end = {}, whole = {}, row_end = {};
  std::array<TokenName, 2> around = {};
  std::string (*text)(const ImagePrompt& prompt, const ImagePlan& plan) = plain_text;
};

constexpr TokenName kLlavaImage = {"image_token", "<image>"};

constexpr auto kPrompts = std::to_array<PromptRow>({
    {.kind = ProcessorKind::kQwen2Vl,
     .placeholder = {"image_token", "<|image_pad|>"},
     .feature = {"image_token", "<|image_pad|>"},
     .around = {{{"vision_start_token", "<|vision_start|>"},
                 {"vision_end_token", "<|vision_end|>"}}}},
    {.kind = ProcessorKind::kGemma3,
     .placeholder = {"boi_token", "<start_of_image>"},
     .feature = {"image_token", "<image_soft_token>"},
     .begin = {"boi_token", "<start_of_image>"},
     .end = {"eoi_token", "<end_of_image>"},
     .text = text_of_crops},
    {.kind = ProcessorKind::kGemma4,
     .placeholder = {"image_token", "<|image|>"},
     .feature = {"image_token", "<|image|>"},
     .begin = {"boi_token", "<|image>"},
     .end = {"eoi_token", "<image|>"},
     .text = enclosed_text},
    {.kind = ProcessorKind::kIdefics3,
     .placeholder = {"image_token", "<image>"},
     .feature = {"image_token", "<image>"},
     .begin = {"fake_image_token", "<fake_token_around_image>"},
     .end = {"fake_image_token", "<fake_token_around_image>"},
     .whole = {"global_image_token", "<global-img>"},
     .text = text_of_tiles},
    {.kind = ProcessorKind::kClip, .placeholder = kLlavaImage, .feature = kLlavaImage},
    {.kind = ProcessorKind::kSiglip, .placeholder = kLlavaImage, .feature = kLlavaImage},
    {.kind = ProcessorKind::kLlava, .placeholder = kLlavaImage, .feature = kLlavaImage},
    {.kind = ProcessorKind::kLlavaNext, .placeholder = kLlavaImage, .feature = kLlavaImage},
    {.kind = ProcessorKind::kPixtral,
     .placeholder = {"image_token", "[IMG]"},
     .feature = {"image_token", "[IMG]"},
     .end = {"image_end_token", "[IMG_END]"},
     .row_end = {"image_break_token", "[IMG_BREAK]"},
     .text = text_of_rows},
    {.kind = ProcessorKind::kInternVl,
     .placeholder = {"context_image_token", "<IMG_CONTEXT>"},
     .feature = {"context_image_token", "<IMG_CONTEXT>"},
     .begin = {"start_image_token", "<img>"},
     .end = {"end_image_token", "</img>"},
     .text = enclosed_text},
});
static_assert(kPrompts.size() == kProcessors.size());
static_assert(are_in_order(kPrompts, &PromptRow::kind));

const PromptRow& prompt_row(ProcessorKind kind) {
  return kPrompts[static_cast<size_t>(kind)];
}

PromptJson object_in(const std::filesystem::path& file) {
  if (!has_optional_file(file)) return PromptJson::object();
  PromptJson value = parse_python_json(read_text_file(file));
  if (value.is_object()) return value;
  throw DataError("not a JSON object", file.string(), "download or copy the file again");
}

/// A token's text: a string, or an object with `content`; empty: there is none.
std::string token_text(const PromptJson& object, std::string_view key) {
  if (!object.is_object()) return {};
  auto found = object.find(key);
  if (found == object.end()) return {};
  const PromptJson value = found->is_object() ? found->value("content", PromptJson()) : *found;
  return value.is_string() ? value.get<std::string>() : std::string();
}

/// The files of a folder that name tokens.
class NamedTokens {
 public:
  explicit NamedTokens(const std::filesystem::path& folder)
      : tokenizer_(object_in(folder / "tokenizer_config.json")),
        processor_(object_in(folder / "processor_config.json")) {}

  std::string operator()(const TokenName& name) const {
    if (name.key.empty()) return {};
    for (const std::string& found :
         {token_text(tokenizer_, name.key), nested("extra_special_tokens", name.key),
          nested("model_specific_special_tokens", name.key), token_text(processor_, name.key)})
      if (!found.empty()) return found;
    return std::string(name.usual);
  }

 private:
  std::string nested(const char* object, std::string_view key) const {
    const auto found = tokenizer_.find(object);
    return found == tokenizer_.end() ? std::string() : token_text(*found, key);
  }

  PromptJson tokenizer_, processor_;
};

int64_t feature_id_in(const std::filesystem::path& folder,
                      std::initializer_list<const char*> keys) {
  const PromptJson model = object_in(folder / "config.json");
  for (const char* key : keys) {
    const auto found = model.find(key);
    if (found != model.end() && found->is_number_integer()) return found->get<int64_t>();
  }
  return -1;
}

/// Without empty texts.
std::vector<std::string> once_each(std::vector<std::string> texts) {
  std::vector<std::string> once;
  for (std::string& text : texts)
    if (!text.empty() && std::find(once.begin(), once.end(), text) == once.end())
      once.push_back(std::move(text));
  return once;
}

}  // namespace

std::vector<std::string> ImagePrompt::tokens() const {
  std::vector<std::string> all = {placeholder, feature, begin, end, whole, row_end};
  all.insert(all.end(), around.begin(), around.end());
  return once_each(std::move(all));
}

ImagePrompt read_prompt(const std::filesystem::path& folder, ProcessorKind kind) {
  const NamedTokens named(folder);
  const PromptRow& row = prompt_row(kind);
  ImagePrompt prompt{.kind = kind,
                     .placeholder = named(row.placeholder),
                     .feature = named(row.feature),
                     .begin = named(row.begin),
                     .end = named(row.end),
                     .whole = named(row.whole),
                     .row_end = named(row.row_end),
                     .feature_id = feature_id_in(folder, {"image_token_id", "image_token_index"})};
  for (const TokenName& name : row.around)
    if (!name.key.empty()) prompt.around.push_back(named(name));
  return prompt;
}

std::string text_of_image(const ImagePrompt& prompt, const ImagePlan& plan) {
  if (plan.num_tokens > 0) return prompt_row(prompt.kind).text(prompt, plan);
  throw DataError("the model's files do not say how many tokens an image gets",
                  "processor_config.json",
                  "copy processor_config.json from the model's repository, with patch_size, "
                  "num_additional_image_tokens and vision_feature_select_strategy");
}

namespace {

std::string minutes_of(double seconds) {
  const auto whole = static_cast<int64_t>(seconds);
  return fmt::format("{:02}:{:02}", whole / 60, whole % 60);
}

/// Python's str(timedelta(seconds=…)) of a whole number.
std::string hours_of(double seconds) {
  const auto whole = static_cast<int64_t>(seconds);
  const int64_t days = whole / 86'400, rest = whole % 86'400;
  const std::string time = fmt::format("{}:{:02}:{:02}", rest / 3600, rest % 3600 / 60, rest % 60);
  return days == 0 ? time : fmt::format("{} day{}, {}", days, days == 1 ? "" : "s", time);
}

std::string text_of_group(const VideoPrompt& prompt, const ImagePlan& plan,
                          std::span<const double> seconds) {
  const std::string features = repeated(prompt.feature, plan.num_tokens);
  switch (prompt.kind) {
    case VideoKind::kQwen2Vl:
      return features;
    case VideoKind::kQwen3Vl:
      return fmt::format("<{:.1f} seconds>", (seconds.front() + seconds.back()) / 2) +
             prompt.begin + features + prompt.end;
    case VideoKind::kSmolVlm:
      return fmt::format("\nFrame from {}:", minutes_of(seconds.front())) + prompt.begin +
             prompt.whole + features + prompt.end;
  }
  return {};
}

}  // namespace

std::vector<std::string> VideoPrompt::tokens() const {
  std::vector<std::string> all = {feature, begin, end, whole};
  if (kind != VideoKind::kSmolVlm) all.push_back(placeholder);
  return once_each(std::move(all));
}

VideoPrompt read_video_prompt(const std::filesystem::path& folder, VideoKind kind) {
  const NamedTokens named(folder);
  VideoPrompt prompt{.kind = kind};
  if (kind == VideoKind::kSmolVlm) {
    const PromptRow& row = prompt_row(ProcessorKind::kIdefics3);
    prompt.placeholder = named({"video_token", "<video>"});
    prompt.feature = named(row.feature), prompt.whole = named(row.whole);
    prompt.begin = named(row.begin), prompt.end = named(row.end);
    return prompt;
  }
  prompt.placeholder = prompt.feature = named({"video_token", "<|video_pad|>"});
  prompt.feature_id = feature_id_in(folder, {"video_token_id"});
  const auto& [begin, end] = prompt_row(ProcessorKind::kQwen2Vl).around;
  prompt.begin = named(begin), prompt.end = named(end);
  return prompt;
}

std::vector<std::string> texts_of_video(const VideoPrompt& prompt, const VideoProcessor& processor,
                                        const ImagePlan& plan, std::span<const double> seconds) {
  const auto of_group = static_cast<size_t>(processor.frames_of_group());
  std::vector<std::string> texts;
  for (size_t first = 0; first < seconds.size(); first += of_group) {
    const size_t count = std::min(of_group, seconds.size() - first);
    texts.push_back(text_of_group(prompt, plan, seconds.subspan(first, count)));
  }
  if (prompt.kind != VideoKind::kSmolVlm) return texts;
  texts.front().insert(
      0, fmt::format("You are provided the following series of {} frames from a {} [H:MM:SS] "
                     "video.\n",
                     in_words(static_cast<int64_t>(seconds.size())), hours_of(seconds.back())));
  texts.back() += "\n\n";
  return texts;
}

namespace {

constexpr std::string_view kUnits[] = {"zero",    "one",     "two",       "three",    "four",
                                       "five",    "six",     "seven",     "eight",    "nine",
                                       "ten",     "eleven",  "twelve",    "thirteen", "fourteen",
                                       "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"};
constexpr std::string_view kTens[] = {"",      "",      "twenty",  "thirty", "forty",
                                      "fifty", "sixty", "seventy", "eighty", "ninety"};

}  // namespace

std::string in_words(int64_t number) {
  SFTRUN_CHECK(number >= 0);
  if (number < 20) return std::string(kUnits[number]);
  if (number < 100) {
    const std::string tens(kTens[number / 10]);
    return number % 10 == 0 ? tens : tens + "-" + in_words(number % 10);
  }
  const int64_t unit = number < 1000 ? 100 : number < 1'000'000 ? 1000 : 1'000'000;
  const std::string_view name = unit == 100 ? "hundred" : unit == 1000 ? "thousand" : "million";
  const std::string text = fmt::format("{} {}", in_words(number / unit), name);
  const int64_t rest = number % unit;
  if (rest == 0) return text;
  return text + (unit == 100 || rest < 100 ? " and " : ", ") + in_words(rest);
}

}  // namespace sftrun::images
