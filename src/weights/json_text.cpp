#include "json_text.h"

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "sftrun/core/error.h"
#include "sftrun/core/json_depth.h"
#include "sftrun/core/strings.h"

namespace sftrun::weights {
namespace {

using nlohmann::json;
constexpr int kMostDepth = 64;

std::string position_of(std::string_view text, size_t byte) {
  const std::string_view before = text.substr(0, std::min(byte, text.size()));
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const size_t line_start =
      before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
  return fmt::format("{}:{}", line, std::max<size_t>(before.size() - line_start, 1));
}

/// Detects duplicate keys, of which nlohmann would keep the last.
class KeyWatch {
 public:
  explicit KeyWatch(const std::string& where) : where_(where) {}

  bool operator()(int depth, json::parse_event_t event, json& parsed) {
    switch (event) {
      case json::parse_event_t::object_start:
        if (depth >= kMostDepth) fail_deep();
        open_.emplace_back();
        break;
      case json::parse_event_t::array_start:
        if (depth >= kMostDepth) fail_deep();
        break;
      case json::parse_event_t::object_end:
        open_.pop_back();
        break;
      case json::parse_event_t::key:
        if (!open_.back().insert(parsed.get<std::string>()).second) {
          throw DataError(fmt::format("`{}` appears twice", excerpt(parsed.get<std::string>())),
                          where_);
        }
        break;
      default:
        break;
    }
    return true;
  }

 private:
  [[noreturn]] void fail_deep() const {
    throw DataError(fmt::format("JSON nested deeper than {} levels", kMostDepth), where_);
  }
  const std::string& where_;
  std::vector<std::unordered_set<std::string>> open_;
};

}  // namespace

json parse_json(std::string_view text, const std::string& where) {
  // The parser stops at a NUL and would ignore the rest.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    throw DataError("not valid JSON: a NUL byte", where + ":" + position_of(text, nul + 1),
                    "the file is damaged or cut short: download or copy it again");
  }
  const std::string excess = json_excess(json_shape(text, kMostDepth), KeyOrder::kSorted);
  if (!excess.empty()) throw DataError(excess, where, "is this the right file?");
  try {
    return json::parse(text, KeyWatch(where));
  } catch (const json::parse_error& error) {
    std::string reason =
        error.what();  // "[json.exception.parse_error.101] parse error at …: reason"
    const size_t colon = reason.find(": ");
    reason = excerpt(colon == std::string::npos ? reason : reason.substr(colon + 2));
    throw DataError("not valid JSON: " + reason, where + ":" + position_of(text, error.byte),
                    "the file is damaged or cut short: download or copy it again");
  } catch (const json::out_of_range&) {
    throw DataError("not valid JSON: a number is too large", where);
  }
}

}  // namespace sftrun::weights
