#include "sftrun/core/json_depth.h"

#include <algorithm>
#include <vector>

#include "sftrun/core/read_limits.h"

namespace sftrun {

JsonShape json_shape(std::string_view text, size_t max_depth) {
  JsonShape shape;
  std::vector<uint64_t> num_keys;  // per open bracket
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') {
      in_string = !in_string;
    } else if (in_string) {
      i += c == '\\' ? 1 : 0;
    } else if (c == '[' || c == '{') {
      num_keys.push_back(0);
      ++shape.num_values;
      shape.depth = std::max(shape.depth, num_keys.size());
      if (shape.depth > max_depth) return shape;
    } else if ((c == ']' || c == '}') && !num_keys.empty()) {
      num_keys.pop_back();
    } else if (c == ',') {
      ++shape.num_values;
    } else if (c == ':' && !num_keys.empty()) {
      shape.key_steps += num_keys.back()++;
      shape.num_keys = std::max(shape.num_keys, num_keys.back());
    }
  }
  return shape;
}

std::string json_excess(const JsonShape& shape, KeyOrder order) {
  const ReadLimits limits;
  if (shape.num_keys > limits.keys) return "a JSON object of too many keys";
  if (order == KeyOrder::kKept && shape.key_steps > limits.key_steps)
    return "a JSON object of too many keys";
  if (shape.num_values > limits.values) return "JSON of too many values";
  return {};
}

bool is_modest_json(std::string_view text, size_t max_depth, KeyOrder order) {
  const JsonShape shape = json_shape(text, max_depth);
  return shape.depth <= max_depth && json_excess(shape, order).empty();
}

}  // namespace sftrun
