// Filters that turn a value into text.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "jinja/access.h"
#include "jinja/filters.h"
#include "jinja/format_spec.h"
#include "jinja/print.h"
#include "jinja/string_format.h"
#include "jinja/text_ops.h"
#include "sftrun/core/utf8.h"

namespace sftrun::templates::jinja {
namespace {

bool is_safe(const Value& value) {
  return value.is_string() && value.str().safe;
}

/// A filter without arguments on str(value), Markup staying Markup.
template <TaggedText (*convert)(const TaggedText&)>
Value text_filter(Runtime& runtime, const Value& value, const Args& args) {
  const Params params("filter", args, {});
  const TaggedText text = to_text(runtime, value);
  runtime.charge(text.size());
  return Value::string(convert(text), is_safe(value));
}

TaggedText lower_text(const TaggedText& text) {
  return with_case(text, unicode::Case::kLower);
}
TaggedText upper_text(const TaggedText& text) {
  return with_case(text, unicode::Case::kUpper);
}

/// jinja2's title case: words also begin after - ( { [ <.
TaggedText jinja_title(const TaggedText& text) {
  TaggedText out;
  bool at_start = true;
  for (size_t at = 0; at < text.size();) {
    const auto [code, num_bytes] = decode_char_at(text.bytes(), at);
    const bool splits = unicode::is_space(code) ||
                        (code < 0x80 && std::string_view("-({[<").find(static_cast<char>(code)) !=
                                            std::string_view::npos);
    const TaggedText character = text.slice(at, at + num_bytes);
    out.append(
        splits ? character
               : with_case(character, at_start ? unicode::Case::kUpper : unicode::Case::kLower));
    at_start = splits;
    at += num_bytes;
  }
  return out;
}

Value trim(Runtime& runtime, const Value& value, const Args& args) {
  const Params params("trim", args, {"chars"});
  const TaggedText text = to_text(runtime, value);
  runtime.charge(text.size());
  std::optional<std::string_view> chars;
  if (params.given_not_none(0)) chars = params.text(0).bytes();
  return Value::string(strip(text, chars, Side::kBoth), is_safe(value));
}

Value string(Runtime& runtime, const Value& value, const Args& args) {
  const Params params("string", args, {});
  return value.is_string() ? value : Value::string(to_text(runtime, value));
}

Value replace_filter(Runtime& runtime, const Value& value, const Args& args) {
  const Params params("replace", args, {"old", "new", "count"});
  const TaggedText text = to_text(runtime, value), old = to_text(runtime, params.required(0)),
                   with = to_text(runtime, params.required(1));
  const Int count = params.given_not_none(2) ? params.integer(2, -1) : Int{-1};
  return Value::string(
      paid_replace(runtime, text, old.bytes(), with,
                   static_cast<int64_t>(std::clamp<Int>(count, -1, Int{1} << 60))));
}

Value join_filter(Runtime& runtime, const Value& value, const Args& args) {
  const Params params("join", args, {"d", "attribute"});
  const TaggedText separator = params.given(0) ? to_text(runtime, *params[0]) : TaggedText();
  const IteratorPtr iterator = iterate_or_fail(value);
  TaggedText out;
  bool first = true;
  for (Value item; iterator->next(item); first = false) {
    if (params.given_not_none(1)) item = get_path(runtime, item, *params[1]);
    const TaggedText text = to_text(runtime, item);
    runtime.charge(text.size() + separator.size());
    if (!first) out.append(separator);
    out.append(text);
    runtime.check_size(out.size());
  }
  return Value::string(std::move(out));
}

JsonStyle json_style(const Params& params) {
  JsonStyle style;
  style.ensure_ascii = params.flag(0, false);
  if (params.given_not_none(1)) {
    const Value& indent = *params[1];
    constexpr Int kWidest = 1024;
    style.indent =
        indent.is_string()
            ? indent.bytes()
            : std::string(static_cast<size_t>(std::clamp<Int>(params.integer(1, 0), 0, kWidest)),
                          ' ');
    style.item_separator = ",";
  }
  if (params.given_not_none(2)) {
    const std::vector<Value>* pair = params[2]->is_sequence() ? &params[2]->items() : nullptr;
    if (pair == nullptr || pair->size() != 2 || !(*pair)[0].is_string() ||
        !(*pair)[1].is_string()) {
      fail("tojson: separators must be a pair of strings");
    }
    style.item_separator = (*pair)[0].bytes();
    style.key_separator = (*pair)[1].bytes();
  }
  style.sort_keys = params.flag(3, false);
  return style;
}

Value tojson(Runtime& runtime, const Value& value, const Args& args) {
  const Params params("tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"});
  return Value::string(to_json(runtime, value, json_style(params)));
}

Value safe(Runtime& runtime, const Value& value, const Args& args) {
  const Params params("safe", args, {});
  return Value::string(to_text(runtime, value), true);
}

Value escape(Runtime& runtime, const Value& value, const Args& args) {
  const Params params("escape", args, {});
  if (is_safe(value)) return value;
  return Value::string(escape_html(runtime, to_text(runtime, value)), true);
}

Value forceescape(Runtime& runtime, const Value& value, const Args& args) {
  const Params params("forceescape", args, {});
  return Value::string(escape_html(runtime, to_text(runtime, value)), true);
}

Value format(Runtime& runtime, const Value& value, const Args& args) {
  if (!args.positional.empty() && !args.named.empty()) {
    fail("can't handle positional and keyword arguments at the same time");
  }
  const Value text = Value::string(to_text(runtime, value), is_safe(value));
  if (args.named.empty()) return percent_format(runtime, text, Value::tuple(args.positional));
  Dict named;
  for (const auto& [name, argument] : args.named) named.set(Value::string(name), argument);
  return percent_format(runtime, text, Value::dict(std::move(named)));
}

Value center(Runtime& runtime, const Value& value, const Args& args) {
  const Params params("center", args, {"width"});
  const Int width = std::clamp<Int>(params.integer(0, 80), 0, 1 << 27);
  const TaggedText text = to_text(runtime, value);
  const auto missing =
      static_cast<int64_t>(width) - static_cast<int64_t>(unicode::length(text.bytes()));
  if (missing <= 0) return Value::string(text, is_safe(value));
  runtime.charge(static_cast<size_t>(missing) + text.size());
  const int64_t left =
      missing / 2 + (missing & static_cast<int64_t>(width) & 1);  // as Python's str.center
  TaggedText out(std::string(static_cast<size_t>(left), ' '));
  out.append(text);
  out.append(std::string(static_cast<size_t>(missing - left), ' '), kFromTemplate);
  return Value::string(std::move(out), is_safe(value));
}

/// The quoted form of a URL's part: everything but letters, digits and _.-~/ as %XX.
std::string url_quote(std::string_view text, bool for_query) {
  std::string out;
  for (const char c : text) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (letter || std::string_view("_.-~").find(c) != std::string_view::npos ||
        (c == '/' && !for_query)) {
      out.push_back(c);
    } else if (c == ' ' && for_query) {
      out.push_back('+');
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

Value urlencode(Runtime& runtime, const Value& value, const Args& args) {
  const Params params("urlencode", args, {});
  if (value.is_string() || !iterate(value))
    return Value::string(url_quote(to_text(runtime, value).bytes(), false));
  std::string out;
  const auto add = [&](const Value& key, const Value& item) {
    if (!out.empty()) out.push_back('&');
    out += url_quote(to_text(runtime, key).bytes(), true) + "=" +
           url_quote(to_text(runtime, item).bytes(), true);
    runtime.charge(out.size());
  };
  if (value.is_dict()) {
    for (const auto& [key, item] : value.dict().entries()) add(key, item);
    return Value::string(out);
  }
  for (const Value& pair : to_vector(runtime, value)) {
    const std::vector<Value> parts = to_vector(runtime, pair);
    if (parts.size() != 2) fail("urlencode needs pairs");
    add(parts[0], parts[1]);
  }
  return Value::string(out);
}

/// Text without tags and comments, white space between words single.
Value striptags(Runtime& runtime, const Value& value, const Args& args) {
  const Params params("striptags", args, {});
  std::string bytes = to_text(runtime, value).bytes();
  runtime.charge(bytes.size());
  const auto remove_all = [&bytes](std::string_view open, std::string_view close) {
    std::string kept;
    size_t at = 0;
    for (size_t begin = bytes.find(open); begin != std::string::npos;
         begin = bytes.find(open, at)) {
      const size_t end = bytes.find(close, begin);
      if (end == std::string::npos) break;
      kept += bytes.substr(at, begin - at);
      at = end + close.size();
    }
    bytes = kept + bytes.substr(at);
  };
  remove_all("<!--", "-->");
  remove_all("<", ">");
  std::string words;
  for (const TaggedText& word : split_on_space(TaggedText(bytes), -1, false)) {
    words += (words.empty() ? "" : " ") + word.bytes();
  }
  const std::pair<std::string_view, std::string_view> entities[] = {
      {"&lt;", "<"},    {"&gt;", ">"},  {"&#34;", "\""},
      {"&quot;", "\""}, {"&#39;", "'"}, {"&amp;", "&"}};
  TaggedText plain(words);
  for (const auto& [entity, character] : entities)
    plain = replace(plain, entity, TaggedText(std::string(character)), -1);
  return Value::string(std::move(plain));
}

Value xmlattr(Runtime& runtime, const Value& value, const Args& args) {
  const Params params("xmlattr", args, {"autospace"});
  if (!value.is_dict()) fail("'" + type_name(value) + "' object has no attribute 'items'");
  TaggedText out;
  for (const auto& [key, item] : value.dict().entries()) {
    if (item.is_none() || item.is_undefined()) continue;
    const TaggedText name = to_text(runtime, key);
    if (name.bytes().find_first_of(" \t\n\r\f\v/>=") != std::string::npos) {
      fail("Invalid character in attribute name: '" + name.bytes() + "'");
    }
    if (!out.empty() || params.flag(0, true)) out.append(" ", kFromTemplate);
    out.append(escape_html(runtime, name));
    out.append("=\"", kFromTemplate);
    const TaggedText text = to_text(runtime, item);
    out.append(is_safe(item) ? text : escape_html(runtime, text));
    out.append("\"", kFromTemplate);
    runtime.check_size(out.size());
  }
  return Value::string(std::move(out));
}

constexpr NamedFilter kTextFilters[] = {
    {"trim", trim},
    {"tojson", tojson},
    {"string", string},
    {"upper", text_filter<upper_text>},
    {"lower", text_filter<lower_text>},
    {"join", join_filter},
    {"replace", replace_filter},
    {"safe", safe},
    {"capitalize", text_filter<capitalize>},
    {"title", text_filter<jinja_title>},
    {"escape", escape},
    {"e", escape},
    {"forceescape", forceescape},
    {"format", format},
    {"center", center},
    {"urlencode", urlencode},
    {"striptags", striptags},
    {"xmlattr", xmlattr},
};

}  // namespace

Filter find_text_filter(std::string_view name) {
  const auto it = std::find_if(std::begin(kTextFilters), std::end(kTextFilters),
                               [name](const auto& f) { return f.name == name; });
  return it == std::end(kTextFilters) ? nullptr : it->filter;
}

}  // namespace sftrun::templates::jinja
