#include "json_text.h"

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "sftrun/core/encoding.h"
#include "sftrun/core/error.h"
#include "sftrun/core/json_depth.h"
#include "sftrun/core/json_reason.h"
#include "sftrun/core/python_json.h"
#include "sftrun/core/strings.h"

namespace sftrun::weights {
namespace {

using nlohmann::json;
constexpr int kMaxDepth = 64;

std::string position_of(std::string_view text, size_t byte) {
  const std::string_view before = text.substr(0, std::min(byte, text.size()));
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const size_t line_start =
      before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
  return fmt::format("{}:{}", line, std::max<size_t>(before.size() - line_start, 1));
}

/// Detects equal keys, of which nlohmann keeps the last, and restores Python's numbers.
class KeyWatch {
 public:
  KeyWatch(const std::string& where, bool restores, EqualKeys equal_keys)
      : where_(where), restores_(restores), refuses_(equal_keys == EqualKeys::kRefused) {}

  bool operator()(int depth, json::parse_event_t event, json& parsed) {
    switch (event) {
      case json::parse_event_t::object_start:
        if (depth >= kMaxDepth) fail_deep();
        if (refuses_) open_.emplace_back();
        break;
      case json::parse_event_t::array_start:
        if (depth >= kMaxDepth) fail_deep();
        break;
      case json::parse_event_t::object_end:
        if (refuses_) open_.pop_back();
        break;
      case json::parse_event_t::key:
        if (refuses_ && !open_.back().insert(parsed.get<std::string>()).second) {
          throw DataError(fmt::format("`{}` appears twice", excerpt(parsed.get<std::string>())),
                          where_);
        }
        break;
      case json::parse_event_t::value:
        if (restores_) PythonJson::restore(parsed);
        break;
      default:
        break;
    }
    return true;
  }

 private:
  [[noreturn]] void fail_deep() const {
    throw DataError(fmt::format("JSON nested deeper than {} levels", kMaxDepth), where_);
  }
  const std::string& where_;
  bool restores_, refuses_;
  std::vector<std::unordered_set<std::string>> open_;  ///< keys of open objects; of kRefused only
};

}  // namespace

json parse_json(std::string_view text, const std::string& where, EqualKeys equal_keys) {
  where.ends_with(".json") ? require_utf8(text, where) : require_no_wide_encoding(text, where);
  // The parser stops at a NUL and would ignore the rest.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    throw DataError("not valid JSON: a NUL byte", where + ":" + position_of(text, nul + 1),
                    "the file is damaged or cut short: download or copy it again");
  }
  const std::string excess = json_excess(json_shape(text, kMaxDepth), KeyOrder::kSorted);
  if (!excess.empty()) throw DataError(excess, where, "is this the right file?");
  const PythonJson python(text);
  try {
    return json::parse(python.text(), KeyWatch(where, python.has_stand_ins(), equal_keys));
  } catch (const json::parse_error& error) {
    throw DataError("not valid JSON: " + json_reason(error),
                    where + ":" + position_of(text, python.byte_in_file(error.byte)),
                    "the file is damaged or cut short: download or copy it again");
  }
}

}  // namespace sftrun::weights
