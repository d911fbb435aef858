#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/templates/ollama_template.h"
#include "sftrun/tokenizer/tokenizer.h"
#include "sftrun/weights/checkpoint.h"
#include "sftrun/weights/gguf.h"

/// The Modelfile with which `ollama create` imports a GGUF file.
namespace sftrun::weights {

struct OllamaModelfile {
  std::string from;                          ///< path: "./mine-Q4_K_M.gguf"
  std::string adapter;                       ///< path of the adapter; empty: none
  std::optional<std::string> template_text;  ///< TEMPLATE; nullopt: Ollama's default
  std::vector<std::string> remarks;  ///< comments: whole sentences, also logged for the user
  std::vector<std::string> stops;    ///< stop sequences

  std::string text() const;
  /// Writes the file and logs the remarks.
  void write_to(const std::filesystem::path& directory) const;
};

/// The text of the token that is added before every prompt; empty: none.
std::string added_bos_of(const tokenizer::GgufVocab& vocab);
/// @throws DataError if the file has no vocabulary
std::string added_bos_of(const GgufFile& file);

/// @param chat_template replaces the base's own
/// @param variables of the chat template, which become part of TEMPLATE
/// @param added_bos from `added_bos_of`
OllamaModelfile ollama_modelfile(const Checkpoint& base,
                                 const std::optional<std::string>& chat_template,
                                 const std::string& added_bos,
                                 const templates::Json& variables = templates::Json::object());

}  // namespace sftrun::weights
