#include "sftrun/templates/ollama_template.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "chat_outline.h"
#include "jinja/unicode.h"
#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"

namespace sftrun::templates {
namespace {

namespace unicode = jinja::unicode;

// ---- Go source

/// A Go string literal with only characters that Ollama's Modelfiles preserve.
std::string go_string(std::string_view text) {
  std::string out = "\"";
  for (size_t at = 0; at < text.size();) {
    const DecodedChar decoded = decode_char_at(text, at);
    const bool is_plain =
        unicode::is_printable(decoded.code) && decoded.code != '"' && decoded.code != '\\';
    if (is_plain) {
      out += text.substr(at, decoded.num_bytes);
    } else {
      out += fmt::format("\\U{:08x}", static_cast<uint32_t>(decoded.code));
    }
    at += decoded.num_bytes;
  }
  return out + "\"";
}

/// Literal text in a template. Escapes braces, which would open actions. A Modelfile has no
/// escapes, ends at three quotes, and loses characters that Go considers unprintable, except line
/// ends.
std::string go_literal(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const DecodedChar decoded = decode_char_at(text, at);
    const std::string_view character = text.substr(at, decoded.num_bytes);
    const std::string_view rest = text.substr(at + decoded.num_bytes);
    const bool opens = decoded.code == '{' && (rest.empty() || rest.front() == '{');
    const bool ends = decoded.code == '"' && out.ends_with("\"\"");
    const bool is_kept = decoded.code == '\n' || unicode::is_printable(decoded.code);
    out += opens || ends || !is_kept ? "{{ " + go_string(character) + " }}" : character;
    at += decoded.num_bytes;
  }
  return out;
}

/// Go's templates have no function that trims, so recursive templates remove the white space of
/// str.strip one character at a time: for a text that begins with white space, the template NAME
/// calls NAME on the rest. HEAD(n) is the text's first n bytes, TAIL(n) the others.
constexpr std::string_view kTrim =
    R"({{ define "NAME" }}{{ if and . (or (and (ge HEAD(1) "\t") (le HEAD(1) "\r")) (and (ge HEAD(1) "\x1c") (le HEAD(1) " "))) }}{{ template "NAME" TAIL(1) }}
{{- else if and (ge (len .) 2) (eq HEAD(2) "\u0085" "\u00a0") }}{{ template "NAME" TAIL(2) }}
{{- else if and (ge (len .) 3) (or (eq HEAD(3) "\u1680" "\u2028" "\u2029" "\u202f" "\u205f" "\u3000") (and (ge HEAD(3) "\u2000") (le HEAD(3) "\u200a"))) }}{{ template "NAME" TAIL(3) }}
{{- else }}THEN{{ end }}{{ end -}}
)";

std::string replaced(std::string text, std::string_view old, std::string_view by) {
  for (size_t at = text.find(old); at != std::string::npos; at = text.find(old, at + by.size()))
    text.replace(at, old.size(), by);
  return text;
}

/// @param at_start which end to trim   @param then of what begins without white space
std::string go_trim(std::string_view name, bool at_start, std::string_view then) {
  std::string text = replaced(std::string(kTrim), "NAME", name);
  for (const char n : {'1', '2', '3'}) {
    const std::string to = fmt::format("(slice . 0 {})", n), from = fmt::format("(slice . {})", n);
    // `len (slice . 1)` is one less than the length.
    const std::string to_last = fmt::format("(slice . 0 (len (slice . {})))", n);
    const std::string last = fmt::format("(slice . (len (slice . {})))", n);
    text = replaced(text, fmt::format("HEAD({})", n), at_start ? to : last);
    text = replaced(text, fmt::format("TAIL({})", n), at_start ? from : to_last);
  }
  return replaced(text, "THEN", then);
}

/// The templates that `body` calls.
std::string go_definitions(const std::string& body) {
  const auto calls = [&](std::string_view name) {
    return body.find(fmt::format("{{{{ template \"{}\"", name)) != std::string::npos;
  };
  std::string text;
  if (calls("trim")) text += go_trim("trim", true, R"({{ template "trim-end" . }})");
  if (calls("trim-start")) text += go_trim("trim-start", true, "{{ . }}");
  if (calls("trim") || calls("trim-end")) text += go_trim("trim-end", false, "{{ . }}");
  return text;
}

std::string go_content(const Turn& turn) {
  const char* name = turn.trims_start ? (turn.trims_end ? "trim" : "trim-start") : "trim-end";
  if (!turn.trims_start && !turn.trims_end) return "{{ .Content }}";
  return fmt::format("{{{{ template \"{}\" .Content }}}}", name);
}

/// Empty if the turn does not exist. The last message of an assistant is left open, to be
/// continued.
std::string go_turn(Role role, const std::optional<Turn>& turn) {
  if (!turn) return {};
  std::string close = go_literal(turn->close);
  if (role == Role::kAssistant && !close.empty())
    close = "{{ if not $last }}" + close + "{{ end }}";
  return go_literal(turn->open) + go_content(*turn) + close;
}

bool differ_in_open_alone(const std::optional<Turn>& a, const std::optional<Turn>& b) {
  if (!a || !b) return false;
  Turn opened = *a;
  opened.open = b->open;
  return opened == *b;
}

/// The turns of one role, at all positions.
std::string go_turns(const ChatOutline& outline, Role role) {
  const auto& first = outline.turn(role, TurnPlace::kFirst);
  const auto& after = outline.turn(role, TurnPlace::kAfterSystem);
  const auto& later = outline.turn(role, TurnPlace::kLater);
  const bool is_system = role == Role::kSystem;  // never adjacent: Ollama joins them
  std::string of_later = go_turn(role, later);
  if (first == later && (is_system || after == later)) return of_later;
  const bool prefixes = differ_in_open_alone(first, later) && first->open.ends_with(later->open);
  if (prefixes && (is_system || after == later)) {
    const std::string_view prefix =
        std::string_view(first->open).substr(0, first->open.size() - later->open.size());
    return "{{ if eq $i 0 }}" + go_literal(prefix) + "{{ end }}" + of_later;
  }
  std::string text = "{{ if eq $i 0 }}" + go_turn(role, first);
  if (!is_system && after != later) {
    text += R"({{ else if and (eq $i 1) (eq (index $.Messages 0).Role "system") }})" +
            go_turn(role, after);
  }
  return text + (of_later.empty() ? "" : "{{ else }}" + of_later) + "{{ end }}";
}

std::string go_template_of(const ChatOutline& outline) {
  std::string body =
      R"({{ range $i, $_ := .Messages }}{{ $last := eq (len (slice $.Messages $i)) 1 }})";
  for (const Role role : kRoles) {
    body += fmt::format(R"({{{{ {} eq .Role "{}" }}}})", role == kRoles[0] ? "if" : "else if",
                        name_of(role)) +
            go_turns(outline, role);
  }
  body += "{{ end }}";
  if (!outline.generation_prompt.empty()) {
    body += R"({{ if and $last (ne .Role "assistant") }})" + go_literal(outline.generation_prompt) +
            "{{ end }}";
  }
  body += "{{ end }}";
  return go_definitions(body) + body;
}

// ---- Equality check

constexpr std::array<std::string_view, 14> kRegular = {
    "u",     "su",    "ua",     "sua",    "uau",     "suau",      "uaua",
    "suaua", "uauau", "suauau", "uauaua", "suauaua", "uauauauau", "suauauau"};
/// Conversations that Ollama may pass on, and that many templates reject.
constexpr std::array<std::string_view, 9> kIrregular = {"au",   "sau",   "aua",   "usu",  "uasu",
                                                        "usua", "suasu", "uasua", "sausu"};
constexpr std::array<std::string_view, 26> kTexts = {
    "Hi",
    "He said \"no\", and '''yes'''.",
    "{{ .Content }} {% if x %}{{ x }}{% endif %} {# note #} }} { }",
    "def f(x):\n    return {\"a\": [1, 2]}\n\n\n# done",
    "  two spaces in front and three behind   ",
    "\n\nlines around\n",
    "\t tab\r\n",
    "\u00a0\u3000white space of other kinds\u2003\u0085",
    "<think>\nOne and one.\n</think>\n\n2",
    "One.</think>\n\n2",
    "</think>",
    "<think>",
    "<s> </s> <bos> <eos> <|im_end|>\n<|im_start|>assistant\n",
    "[INST] a [/INST] <<SYS>> b <</SYS>>",
    "<start_of_turn>model\nx<end_of_turn> <|eot_id|> <|end|> <|endoftext|>",
    "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
    "<tool_response>\nx\n</tool_response>",
    "user",
    "assistant\n",
    "0",
    "false",
    "None",
    "Gr\u00fc\u00dfe \u4e2d\u6587 \U0001F642 \\n \\ $1 %s &amp; <b>",
    "/no_think",
    "/think What is 1 + 1?",
    "[image] <image> <|image|>",
};

/// The quoted strings in the template's source: the template can only recognise these in a text.
std::vector<std::string> quoted_in(std::string_view source) {
  std::vector<std::string> found;
  for (size_t at = source.find_first_of("'\""); at != std::string_view::npos;
       at = source.find_first_of("'\"", at)) {
    const char quote = source[at++];
    std::string text;
    for (; at < source.size() && source[at] != quote; ++at) {
      const bool is_escape = source[at] == '\\' && at + 1 < source.size();
      if (is_escape) ++at;
      text += is_escape && source[at] == 'n' ? '\n' : source[at];
    }
    ++at;
    const bool is_new = std::find(found.begin(), found.end(), text) == found.end();
    constexpr size_t kMaxBytes = 100;  // longer ones are prompts, not markers
    if (!text.empty() && text.size() <= kMaxBytes && is_new) found.push_back(text);
  }
  return found;
}

std::vector<std::string> texts_to_try(std::string_view source) {
  std::vector<std::string> texts(kTexts.begin(), kTexts.end());
  const std::vector<std::string> quoted = quoted_in(source);
  for (size_t i = 0; i < quoted.size(); ++i) {
    const std::string &one = quoted[i], &next = quoted[(i + 1) % quoted.size()];
    texts.push_back(fmt::format("{}b", one));
    texts.push_back(fmt::format("a{}", one));
    texts.push_back(fmt::format("a {} b", one));
    texts.push_back(fmt::format("{}a{}", one, next));
    texts.push_back(fmt::format("a{}b{}c", next, one));
  }
  // A text must not become empty if the template trims it.
  std::erase_if(texts, [](const std::string& text) { return trim(text).empty(); });
  return texts;
}

enum class Verdict : uint8_t { kEqual, kOther, kRefused };

Verdict compare(const ChatProbe& probe, const ChatOutline& outline,
                const Conversation& conversation) {
  try {
    return probe.prompt(conversation) == outline.render(conversation) ? Verdict::kEqual
                                                                      : Verdict::kOther;
  } catch (const TemplateWorkError&) {
    throw;
  } catch (const DataError&) {
    return Verdict::kRefused;
  }
}

bool has_system(std::string_view roles) {
  return roles.find('s') != std::string_view::npos;
}

/// Tries every text in every message.
void require_equal_texts(const ChatProbe& probe, const ChatOutline& outline, std::string_view roles,
                         const std::vector<std::string>& texts) {
  const Conversation plain =
      conversation_of(roles, [](size_t i) { return fmt::format("It is number {}.", i); });
  const bool is_regular = std::find(kRegular.begin(), kRegular.end(), roles) != kRegular.end();
  const Verdict verdict = compare(probe, outline, plain);
  if (verdict == Verdict::kRefused && (!is_regular || has_system(roles))) return;
  if (verdict == Verdict::kRefused)
    throw NoOutline{"it rejects conversations of alternating user and assistant messages"};
  if (verdict == Verdict::kOther) {
    throw NoOutline{is_regular ? "its output depends on more than the roles of the messages"
                               : "system messages inside a conversation change its output"};
  }
  for (size_t i = 0; i < texts.size(); ++i) {
    constexpr size_t kStride = 5;
    const Conversation odd = conversation_of(
        roles, [&](size_t message) { return texts[(i + message * kStride) % texts.size()]; });
    if (compare(probe, outline, odd) != Verdict::kEqual)
      throw NoOutline{"it changes the content of some messages, like templates of thinking models"};
  }
}

void require_equal_everywhere(const ChatProbe& probe, const ChatOutline& outline,
                              std::string_view source) {
  const std::vector<std::string> texts = texts_to_try(source);
  for (const std::string_view roles : kRegular) require_equal_texts(probe, outline, roles, texts);
  for (const std::string_view roles : kIrregular) require_equal_texts(probe, outline, roles, texts);
}

/// The template must render the same at two different times.
void require_timeless(const ChatTemplate& chat_template, const RenderOptions& options) {
  const auto at = [&](int64_t now) {
    RenderOptions then = options;
    then.now_unix_s = now;
    return ChatProbe(chat_template, then)
        .render(conversation_of("u", [](size_t) { return "Hi"; }), true);
  };
  constexpr int64_t kNow = 1'700'000'000, kLater = 1'733'123'456;
  if (at(kNow) != at(kLater)) throw NoOutline{"it prints the current date"};
}

/// Removes BOS from the beginning of conversations, because the runner adds it. @return whether it
/// was at the beginning of all
bool drop_bos(ChatOutline& outline, std::string_view bos) {
  bool is_everywhere = true;
  for (const Role role : kRoles) {
    std::optional<Turn>& turn = outline.turn(role, TurnPlace::kFirst);
    if (!turn) continue;
    const bool is_there = turn->open.starts_with(bos);
    if (is_there) turn->open.erase(0, bos.size());
    // If the template rejects an assistant message at the beginning, it is written like a later
    // one.
    is_everywhere = is_everywhere && (is_there || role == Role::kAssistant);
  }
  return is_everywhere;
}

std::vector<std::string> notes_of(const ChatOutline& outline, const std::string& source) {
  std::vector<std::string> notes;
  if (!outline.turn(Role::kSystem, TurnPlace::kFirst))
    notes.emplace_back("The chat template does not support system messages: TEMPLATE omits them.");
  if (source.find("tools") != std::string::npos)
    notes.emplace_back(
        "TEMPLATE has no tools: Ollama before 0.30 rejects requests with tools, and later versions "
        "use the GGUF file's chat template instead.");
  return notes;
}

}  // namespace

OllamaTemplate ollama_template_of(const ChatTemplate& chat_template, const RenderOptions& options,
                                  std::string_view added_bos) {
  OllamaTemplate made;
  try {
    require_timeless(chat_template, options);
    const ChatProbe probe(chat_template, options);
    ChatOutline outline = derive_outline(probe);
    require_equal_everywhere(probe, outline, chat_template.source());
    made.notes = notes_of(outline, chat_template.source());
    if (!drop_bos(outline, added_bos)) {
      made.notes.push_back(
          fmt::format("Ollama adds {} before every prompt (tokenizer.ggml.add_bos_token), but the "
                      "chat template "
                      "does not, so the model was not trained with it.",
                      added_bos));
    }
    made.text = go_template_of(outline);
  } catch (const NoOutline& none) {
    made.reason = none.reason;
  } catch (const DataError& error) {
    made.reason = fmt::format("it rejects a plain conversation ({})", error.message());
  }
  return made;
}

}  // namespace sftrun::templates
