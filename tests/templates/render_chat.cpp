// Renders conversations for tests/parity/templates_parity.py: one JSON request a line in, one JSON
// answer a line out.
//
//   request: {"template": path} or {"source": text}, "messages", "tools", "kwargs", "tokens"
//   {bos_token, …},
//            "add_generation_prompt", "now", "labels" (whether to find them)
//   answer:  {"text", "origins": [[begin, end, kind, message, field, in_generation]], "runs":
//   [[begin, end, message]]}
//            or {"error", "where"}
#include <fmt/format.h>

#include <iostream>
#include <map>
#include <string>

#include "label_runs.h"
#include "sftrun/core/error.h"
#include "sftrun/core/exact_json.h"
#include "sftrun/core/file.h"
#include "sftrun/templates/builtin_templates.h"

namespace {

using sftrun::templates::ChatTemplate;
using sftrun::templates::Json;
using sftrun::tokenizer::ByteSpan;

/// Stands in for a tokenizer: what special tokens of the stock families look like.
std::vector<sftrun::tokenizer::ByteSpan> marker_spans(std::string_view text) {
  constexpr std::string_view kWords[] = {
      "<s>", "</s>", "<eos>", "<bos>", "<end_of_turn>", "<start_of_turn>", "<end_of_utterance>"};
  std::vector<sftrun::tokenizer::ByteSpan> spans;
  for (size_t at = text.find('<'); at != std::string_view::npos; at = text.find('<', at + 1)) {
    const size_t close = text.find('>', at);
    if (close == std::string_view::npos) break;
    const std::string_view marker = text.substr(at, close + 1 - at);
    const bool one_word = marker.find_first_of(" \n", 1) == std::string_view::npos &&
                          marker.find('<', 1) == std::string_view::npos;
    const std::string_view inside = marker.substr(1, marker.size() - 2);
    const bool barred =
        inside.starts_with("|") || inside.ends_with("|") || inside.starts_with("\xEF\xBD\x9C");
    const bool known = std::find(std::begin(kWords), std::end(kWords), marker) != std::end(kWords);
    if (one_word && (barred || known))
      spans.push_back({static_cast<uint32_t>(at), static_cast<uint32_t>(close + 1)});
  }
  return spans;
}

const ChatTemplate& template_of(const Json& request) {
  static std::map<std::string, ChatTemplate> known;
  const bool from_file = request.contains("template");
  const std::string key = request.at(from_file ? "template" : "source");
  const auto it = known.find(key);
  if (it != known.end()) return it->second;
  ChatTemplate made(from_file ? sftrun::read_text_file(key) : key);
  return known.emplace(key, std::move(made)).first->second;
}

Json answer(const Json& request) {
  const ChatTemplate& chat_template = template_of(request);
  sftrun::templates::RenderOptions options;
  options.add_generation_prompt = request.value("add_generation_prompt", false);
  options.tools = request.value("tools", Json());
  options.kwargs = request.value("kwargs", Json::object());
  options.now_unix_s = request.value("now", int64_t{-1});
  const Json tokens = request.value("tokens", Json::object());
  options.bos_token = tokens.value("bos_token", "");
  options.eos_token = tokens.value("eos_token", "");
  options.unk_token = tokens.value("unk_token", "");
  options.pad_token = tokens.value("pad_token", "");
  sftrun::templates::LabelledConversation conversation;
  if (request.value("labels", false)) {
    conversation =
        sftrun::templates::label_with_specials(chat_template, request.at("messages"), options,
                                               sftrun::templates::LossOn::kAssistant, marker_spans);
  } else {
    conversation.rendered = chat_template.render(request.at("messages"), options);
  }
  Json origins = Json::array(), runs = Json::array();
  for (const auto& span : conversation.rendered.origins) {
    const auto& o = span.origin;
    origins.push_back(
        {span.begin, span.end, static_cast<int>(o.kind), o.message, o.field, o.in_generation});
  }
  for (const auto& run : conversation.runs)
    runs.push_back({run.span.begin, run.span.end, run.message});
  return {{"text", conversation.rendered.text}, {"origins", origins}, {"runs", runs}};
}

}  // namespace

/// With `--builtin` the templates that the program brings, by name.
int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "--builtin") {
    Json sources;
    for (const std::string& name : sftrun::templates::builtin_template_names())
      sources[name] = sftrun::templates::builtin_template(name);
    std::cout << sources.dump() << std::endl;
    return 0;
  }
  for (std::string line; std::getline(std::cin, line);) {
    Json reply;
    try {
      Json request = sftrun::parse_exact_json(line);
      sftrun::round_fractions(request);
      reply = answer(request);
    } catch (const sftrun::Error& error) {
      reply = {{"error", error.message()}, {"where", error.where()}};
    }
    std::cout << reply.dump() << std::endl;
  }
}
