#include "setting.h"

#include <algorithm>
#include <cmath>

#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"

namespace sftrun::images {

namespace {

using nlohmann::json;

constexpr int64_t kMaxLength = 1 << 16;         // pixels of a side
constexpr int64_t kMaxArea = int64_t{1} << 32;  // pixels of an image

std::string shown_setting(const json& value) {
  return excerpt(value.dump(-1, ' ', false, json::error_handler_t::replace));
}

}  // namespace

void Setting::fail(const std::string& expected) const {
  throw DataError(fmt::format("`{}` must be {}; it is {}", name_, expected, shown_setting(value_)),
                  where_);
}

bool Setting::boolean() const {
  if (!value_.is_boolean()) fail("true or false");
  return value_.get<bool>();
}

int64_t Setting::integer(int64_t least, int64_t most) const {
  const bool is_in_range = value_.is_number_integer() &&
                           (!value_.is_number_unsigned() || value_.get<uint64_t>() <= INT64_MAX);
  const int64_t number = is_in_range ? value_.get<int64_t>() : least - 1;
  if (number < least || number > most) fail(fmt::format("an integer from {} to {}", least, most));
  return number;
}

double Setting::number() const {
  if (!value_.is_number() || !std::isfinite(value_.get<double>())) fail("a number");
  return value_.get<double>();
}

double Setting::positive() const {
  if (!value_.is_number() || !(value_.get<double>() > 0) || !std::isfinite(value_.get<double>()))
    fail("a number above 0");
  return value_.get<double>();
}

std::array<double, 3> Setting::colour() const {
  if (value_.is_number()) return {number(), number(), number()};
  if (!value_.is_array() || value_.size() != 3 ||
      !std::all_of(value_.begin(), value_.end(), [](const json& one) { return one.is_number(); }))
    fail("a number or three");
  return value_.get<std::array<double, 3>>();
}

SizeRule Setting::size(bool square) const {
  if (value_.is_number()) {
    const int64_t side = integer(1, kMaxLength);
    return square ? SizeRule{.height = side, .width = side} : SizeRule{.shortest_edge = side};
  }
  if (value_.is_array() && value_.size() == 2)
    return {.height = Setting(value_[0], name_, where_).integer(1, kMaxLength),
            .width = Setting(value_[1], name_, where_).integer(1, kMaxLength)};
  if (!value_.is_object()) fail("an object of sizes, or a number");
  SizeRule rule;
  struct Member {
    const char* key;
    int64_t& value;
    int64_t most = kMaxLength;
  };
  const Member members[] = {{"height", rule.height},
                            {"width", rule.width},
                            {"shortest_edge", rule.shortest_edge, kMaxArea},  // Qwen: pixels
                            {"longest_edge", rule.longest_edge, kMaxArea},
                            {"max_height", rule.max_height},
                            {"max_width", rule.max_width}};
  for (const Member& member : members)
    if (value_.contains(member.key) && !value_.at(member.key).is_null())
      member.value = part(member.key).integer(1, member.most);
  return rule;
}

int64_t Setting::square_side(int64_t most) const {
  if (!value_.is_object()) return integer(1, most);
  if (!value_.contains("height") || value_.value("width", json()) != value_.at("height"))
    fail("a number, or an equal height and width");
  return part("height").integer(1, most);
}

int64_t Setting::only(const char* key, int64_t most) const {
  if (!value_.is_object() || value_.size() != 1 || !value_.contains(key))
    fail(fmt::format("an object with `{}` alone", key));
  return part(key).integer(1, most);
}

std::vector<std::array<int64_t, 2>> Setting::pairs(int64_t most) const {
  if (!value_.is_array() || value_.empty()) fail("a list of pairs: height and width");
  std::vector<std::array<int64_t, 2>> result;
  for (const json& pair : value_) {
    if (!pair.is_array() || pair.size() != 2) fail("a list of pairs: height and width");
    result.push_back({Setting(pair[0], name_, where_).integer(1, most),
                      Setting(pair[1], name_, where_).integer(1, most)});
  }
  return result;
}

namespace {

struct SettingReader {
  std::string_view key;
  ReadSetting read;
};

constexpr int64_t kMaxPatch = 1024;  // pixels of a patch's side
constexpr int64_t kMaxTiles = 4096;

using P = ImageProcessor;
using S = Setting;

constexpr SettingReader kReaders[] = {
    {"do_resize", [](const S& s, P& p) { p.do_resize = s.boolean(); }},
    {"do_rescale", [](const S& s, P& p) { p.do_rescale = s.boolean(); }},
    {"do_normalize", [](const S& s, P& p) { p.do_normalize = s.boolean(); }},
    {"rescale_factor", [](const S& s, P& p) { p.rescale_factor = s.positive(); }},
    {"image_mean", [](const S& s, P& p) { p.image_mean = s.colour(); }},
    {"image_std",
     [](const S& s, P& p) {
       p.image_std = s.colour();
       for (const double one : p.image_std)
         if (!(one > 0)) s.fail("above 0");
     }},
    {"resample",
     [](const S& s, P& p) {
       const std::optional<Filter> filter = filter_numbered(s.integer(0, 5));
       SFTRUN_CHECK(filter.has_value());
       p.resample = *filter;
     }},
    {"size", [](const S& s, P& p) { p.size = s.size(p.row().default_to_square); }},
    {"crop_size",
     [](const S& s, P& p) {
       p.crop_size = s.size(/*square=*/true);
       if (!p.crop_size.is_exact()) s.fail("an object with height and width, or a number");
     }},
    {"do_center_crop",
     [](const S& s, P& p) {
       p.do_center_crop = s.boolean();
       if (p.kind == ProcessorKind::kPixtral && p.do_center_crop)
         s.fail("false: cropping is not supported for Pixtral");
     }},
    {"do_pad",
     [](const S& s, P& p) {
       p.do_pad = s.boolean();
       if (p.kind != ProcessorKind::kLlava && p.do_pad)
         s.fail("false: padding is not supported for this processor");
     }},
    {"min_pixels", [](const S& s, P& p) { p.size.shortest_edge = s.integer(1, kMaxArea); }},
    {"max_pixels", [](const S& s, P& p) { p.size.longest_edge = s.integer(1, kMaxArea); }},
    {"patch_size", [](const S& s, P& p) { p.patch_size = s.square_side(kMaxPatch); }},
    {"temporal_patch_size", [](const S& s, P& p) { p.temporal_patch_size = s.integer(1, 64); }},
    {"merge_size", [](const S& s, P& p) { p.merge_size = s.integer(1, 64); }},
    {"pooling_kernel_size", [](const S& s, P& p) { p.pooling_kernel_size = s.integer(1, 64); }},
    {"max_soft_tokens",
     [](const S& s, P& p) {
       p.max_soft_tokens = s.integer(1, kMaxLength);
       if (std::find(kSoftTokens.begin(), kSoftTokens.end(), p.max_soft_tokens) ==
           kSoftTokens.end())
         s.fail("70, 140, 280, 560 or 1120");
     }},
    {"do_image_splitting", [](const S& s, P& p) { p.do_image_splitting = s.boolean(); }},
    {"max_image_size",
     [](const S& s, P& p) { p.max_image_size = s.only("longest_edge", kMaxLength); }},
    {"image_grid_pinpoints",
     [](const S& s, P& p) { p.image_grid_pinpoints = s.pairs(kMaxLength); }},
    {"min_patches", [](const S& s, P& p) { p.min_patches = s.integer(1, kMaxTiles); }},
    {"max_patches", [](const S& s, P& p) { p.max_patches = s.integer(1, kMaxTiles); }},
};

struct IgnoredKey {
  std::string_view key, reason;
  std::optional<ProcessorKind> kind = {};  ///< unset: of all kinds that do not read it
};

constexpr std::string_view kName = "a name";
constexpr std::string_view kCall = "of a call in Python, not of the values";
constexpr std::string_view kOfBatch = "pads batches: here what puts them together does so";
constexpr std::string_view kNotRead = "the class does not read it";
constexpr std::string_view kPassed = "the model's processor passes its own";
constexpr std::string_view kVideo = "for videos";
constexpr std::string_view kText = "the processor's, for the text";

constexpr IgnoredKey kIgnored[] = {
    {"image_processor_type", kName},
    {"feature_extractor_type", kName},
    {"processor_class", kName},
    {"_processor_class", kName},
    {"auto_map", "a class of another repository, which transformers does not run unless told to"},
    {"do_convert_rgb", "images are decoded to RGB"},
    {"default_to_square", "what a size of one number means; sizes are checked"},
    {"data_format", kCall},
    {"input_data_format", kCall},
    {"return_tensors", kCall},
    {"device", kCall},
    {"disable_grouping", kCall},
    {"_valid_processor_keys", kCall},
    {"model_input_names", kCall},
    {"return_row_col_info", kCall},
    {"image_seq_length", kText},
    {"image_seq_len", kText},
    {"video_sampling", kVideo},
    {"aspect_ratio_setting", kNotRead},
    {"pad_size", kNotRead},
    {"do_center_crop", kNotRead},
    {"crop_size", kNotRead},
    {"do_pad", kNotRead, ProcessorKind::kQwen2Vl},
    {"do_pad", kNotRead, ProcessorKind::kGemma3},
    {"do_pad", kNotRead, ProcessorKind::kGemma4},
    {"do_pad", kNotRead, ProcessorKind::kInternVl},
    {"do_pad", kOfBatch},
    {"size", kNotRead, ProcessorKind::kGemma4},
    {"do_pan_and_scan", kPassed, ProcessorKind::kGemma3},
    {"pan_and_scan_min_crop_size", kPassed, ProcessorKind::kGemma3},
    {"pan_and_scan_max_num_crops", kPassed, ProcessorKind::kGemma3},
    {"pan_and_scan_min_ratio_to_activate", kPassed, ProcessorKind::kGemma3},
    {"crop_to_patches", kPassed, ProcessorKind::kInternVl},
};

}  // namespace

ReadSetting reader_of(std::string_view key) {
  for (const SettingReader& reader : kReaders)
    if (reader.key == key) return reader.read;
  return nullptr;
}

std::string_view reason_to_ignore(ProcessorKind kind, std::string_view key) {
  for (const IgnoredKey& ignored : kIgnored)
    if (ignored.key == key && (!ignored.kind || *ignored.kind == kind)) return ignored.reason;
  return {};
}

}  // namespace sftrun::images
