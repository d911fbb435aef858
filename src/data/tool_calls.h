#pragma once

#include <optional>
#include <string>

#include "sftrun/data/text_model.h"
#include "sftrun/templates/chat_template.h"

/// Tool calls of answers: `"tool_calls": [{"function": {"name", "arguments"}}]`.
namespace sftrun::data {

using templates::Json;

/// In which form a template writes the arguments of a call.
enum class ArgumentForm : uint8_t {
  kAny,     ///< the object, and a JSON string as it is
  kObject,  ///< it iterates over them, or would quote a string
  kString,  ///< it adds them to a text, or would print Python's form of the object
};

/// How a template handles calls.
struct CallSupport {
  bool writes = false;  ///< it writes them
  ArgumentForm arguments = ArgumentForm::kObject;
  bool takes_flat = true;             ///< calls without "function": {"name", "arguments"}
  bool takes_missing_content = true;  ///< of an answer with calls
  bool knows_function_call = false;   ///< OpenAI's older "function_call" of one call
};
CallSupport call_support(const TextModel& model);

/// The call with which templates are tested. Mistral's require an id of nine characters.
inline constexpr const char* kProbedName = "probed";
inline constexpr const char* kProbedId = "call00000";
/// An answer that consists of it.
Json calling_answer(Json arguments);

/// Calls need a name, and arguments that are an object or a JSON string of one; no arguments and an
/// empty string mean none.
/// @param name "messages[1]", for errors   @throws DataError, which names the field
void check_calls(const Json& message, const std::string& name, const std::string& where);

/// Brings the calls of a checked message to the form that the template reads.
void set_calls(Json& message, const CallSupport& support);

/// ShareGPT's `function_call` turn, {"name": …, "arguments": …} or a list of such, as tool_calls;
/// nullopt for other texts.
std::optional<Json> calls_of_text(const std::string& text);

}  // namespace sftrun::data
