// Modelfiles for tests/parity/ollama_parity.py: one JSON request a line in, one JSON answer a line
// out.
//
//   request: {"source": a chat template, "tokens": {bos_token, …}, "added_bos"}
//   answer:  {"template": Go's or null, "reason", "notes", "modelfile"} or {"error"}
#include <fmt/format.h>

#include <iostream>
#include <string>

#include "sftrun/core/error.h"
#include "sftrun/templates/builtin_templates.h"
#include "sftrun/templates/ollama_template.h"
#include "sftrun/weights/ollama_modelfile.h"

namespace {

using sftrun::templates::Json;

Json answer(const Json& request) {
  const sftrun::templates::ChatTemplate chat_template(request.at("source").get<std::string>());
  sftrun::templates::RenderOptions options;
  const Json& tokens = request.at("tokens");
  options.bos_token = tokens.value("bos_token", "");
  options.eos_token = tokens.value("eos_token", "");
  const sftrun::templates::OllamaTemplate made = sftrun::templates::ollama_template_of(
      chat_template, options, request.at("added_bos").get<std::string>());
  const sftrun::weights::OllamaModelfile file{.from = "./model-Q8_0.gguf",
                                              .adapter = {},
                                              .template_text = made.text,
                                              .remarks = made.notes,
                                              .stops = {options.eos_token}};
  return {{"template", made.text ? Json(*made.text) : Json()},
          {"reason", made.reason},
          {"notes", made.notes},
          {"modelfile", file.text()}};
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
      reply = answer(Json::parse(line));
    } catch (const sftrun::Error& error) {
      reply = {{"error", error.message()}};
    }
    std::cout << reply.dump() << std::endl;
  }
}
