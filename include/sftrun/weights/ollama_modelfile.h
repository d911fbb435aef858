#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/text/ollama_template.h"
#include "sftrun/text/tokenizer.h"
#include "sftrun/weights/checkpoint.h"
#include "sftrun/weights/gguf.h"

/// The Modelfile that `ollama create` takes beside a GGUF file.
namespace sftrun::weights {

struct OllamaModelfile {
  std::string from;                          ///< as a path: "./mine-Q4_K_M.gguf"
  std::string adapter;                       ///< likewise; empty: none
  std::optional<std::string> template_text;  ///< TEMPLATE; none: Ollama chooses one
  std::vector<std::string> remarks;          ///< whole sentences, for the user, too
  std::vector<std::string> stops;            ///< texts that end an answer

  std::string text() const;
  /// And says the remarks in the log.
  void write_to(const std::filesystem::path& directory) const;
};

/// The text of the token that readers put before every prompt; empty: none.
std::string added_bos_of(const text::GgufVocab& vocab);
/// @throws DataError if the file holds no vocabulary
std::string added_bos_of(const GgufFile& file);

/// @param chat_template in the place of the base's own
/// @param added_bos as of `added_bos_of`
OllamaModelfile ollama_modelfile(const Checkpoint& base,
                                 const std::optional<std::string>& chat_template,
                                 const std::string& added_bos);

}  // namespace sftrun::weights
