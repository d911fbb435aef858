// Filters on the lines and words of a text.
#include <algorithm>
#include <iterator>

#include "jinja/filters.h"
#include "jinja/print.h"
#include "jinja/text_ops.h"
#include "sftrun/core/utf8.h"

namespace sftrun::templates::jinja {
namespace {

Value indent(Runtime& runtime, const Value& value, const Args& args) {
  const Params params("indent", args, {"width", "first", "blank"});
  if (!value.is_string()) fail("indent needs a string, not " + type_name(value));
  TaggedText indention(std::string(4, ' '));
  if (params.given(0) && params[0]->is_string()) {
    indention = params[0]->text();
  } else if (params.given(0)) {
    indention = TaggedText(
        std::string(static_cast<size_t>(std::clamp<Int>(params.integer(0, 4), 0, 1 << 16)), ' '));
  }
  const bool first = params.flag(1, false), blank = params.flag(2, false);
  TaggedText text = value.text();
  text.append("\n", kFromTemplate);  // keeps a newline at the end of the text
  const std::vector<TaggedText> lines = split_lines(text, false);
  runtime.charge(text.size() + lines.size() * indention.size());
  TaggedText out;
  if (first) out.append(indention);
  size_t line_end = 0;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) {
      out.append("\n", text.origin_at(std::min(line_end, text.size() - 1)));
      if (blank || !lines[i].empty()) out.append(indention);
      ++line_end;
    }
    out.append(lines[i]);
    line_end += lines[i].size();
  }
  return Value::string(std::move(out), value.str().safe);
}

Value truncate(Runtime& runtime, const Value& value, const Args& args) {
  const Params params("truncate", args, {"length", "killwords", "end", "leeway"});
  if (!value.is_string()) fail("truncate needs a string, not " + type_name(value));
  const TaggedText end = params.given(2) ? params.text(2) : TaggedText("...");
  const Int length = params.integer(0, 255),
            leeway = params.given_not_none(3) ? params.integer(3, 5) : Int{5};
  const auto end_length = static_cast<Int>(unicode::length(end.bytes()));
  if (length < end_length)
    fail("expected length >= " + print_integer(end_length) + ", got " + print_integer(length));
  if (leeway < 0) fail("expected leeway >= 0, got " + print_integer(leeway));
  runtime.charge(value.text().size());
  if (static_cast<Int>(unicode::length(value.bytes())) <= length + leeway) return value;
  TaggedText kept = value.text().slice(
      0, unicode::byte_offset(value.bytes(), static_cast<size_t>(length - end_length)));
  if (!params.flag(1, false)) {
    const size_t space = kept.bytes().rfind(' ');
    if (space != std::string::npos) kept = kept.slice(0, space);
  }
  kept.append(end);
  return Value::string(std::move(kept), value.str().safe);
}

Value wordcount(Runtime& runtime, const Value& value, const Args& args) {
  const Params params("wordcount", args, {});
  const TaggedText text = to_text(runtime, value);
  runtime.charge(text.size());
  Int words = 0;
  bool in_word = false;
  for (size_t at = 0; at < text.size();) {
    const auto [code, num_bytes] = decode_char_at(text.bytes(), at);
    const bool is_word = unicode::is_alnum(code) || code == '_';
    if (is_word && !in_word) ++words;
    in_word = is_word;
    at += num_bytes;
  }
  return Value::integer(words);
}

constexpr NamedFilter kWrappingFilters[] = {
    {"indent", indent}, {"truncate", truncate}, {"wordcount", wordcount}};

}  // namespace

Filter find_wrapping_filter(std::string_view name) {
  const auto it = std::find_if(std::begin(kWrappingFilters), std::end(kWrappingFilters),
                               [name](const auto& f) { return f.name == name; });
  return it == std::end(kWrappingFilters) ? nullptr : it->filter;
}

}  // namespace sftrun::templates::jinja
