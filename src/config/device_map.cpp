#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "parse_field.h"

namespace sftrun::config {
namespace {

constexpr std::array<std::string_view, 3> kRules = {"auto", "balanced", "sequential"};

bool is_device(std::string_view text) {
  const auto is_number = [](std::string_view part) {
    return !part.empty() &&
           std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
  };
  if (is_number(text)) return true;
  for (const std::string_view kind : {"cuda", "cpu"}) {
    if (!text.starts_with(kind)) continue;
    const std::string_view rest = text.substr(kind.size());
    return rest.empty() || (rest.front() == ':' && is_number(rest.substr(1)));
  }
  return false;
}

Complaint no_device(const std::string& text) {
  if (text == "disk" || text == "meta") {
    return {fmt::format("places layers on `{}`", text),
            "name GPUs; parallel.offload.base: cpu keeps frozen weights in host memory",
            /*show_takes=*/false};
  }
  return {fmt::format("has the device `{}`", excerpt(text)),
          "name a GPU by its number: 0, or cuda:0",
          /*show_takes=*/false};
}

Complaint no_rule(const std::string& text) {
  if (text == "balanced_low_0") {
    return {"is `balanced_low_0`, which is not supported in this version",
            "use balanced, or a map with fewer layers on GPU 0", /*show_takes=*/false};
  }
  const std::string near = nearest(text, std::vector<std::string>(kRules.begin(), kRules.end()));
  return {fmt::format("is `{}`", excerpt(text)),
          near.empty() ? std::string() : fmt::format("did you mean `{}`?", near)};
}

}  // namespace

std::optional<Complaint> parse_field(const Value& value, const Limits&, DeviceMap& member) {
  DeviceMap map;
  if (value.kind == Value::Kind::kScalar) {
    if (std::find(kRules.begin(), kRules.end(), value.text) != kRules.end())
      map.rule = value.text;
    else if (is_device(value.text))
      map.places[""] = value.text;
    else
      return no_rule(value.text);
  } else if (value.kind == Value::Kind::kMap && !value.items.empty()) {
    for (size_t i = 0; i < value.items.size(); ++i) {
      const Value& device = value.items[i];
      if (device.kind != Value::Kind::kScalar || !is_device(device.text))
        return no_device(device.kind == Value::Kind::kScalar ? device.text : describe(device));
      map.places[value.keys[i].text] = device.text;
    }
  } else {
    return wrong_type(value);
  }
  member = std::move(map);
  return std::nullopt;
}

}  // namespace sftrun::config
