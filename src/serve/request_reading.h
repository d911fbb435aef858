#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sftrun/core/error.h"
#include "sftrun/data/record_error.h"
#include "sftrun/serve/completion_request.h"

/// What requests for text and for scores read alike.
namespace sftrun::serve {

inline constexpr size_t kMaxPrompts = 2048;

[[noreturn]] void throw_as_api_error(const DataError& error);

/// What is thrown for data is the request's fault.   @return what `read` returns
/// @throws ApiError
template <class Read>
auto reading(Read&& read) {
  try {
    return read();
  } catch (const data::RecordError& error) {  // who asks has no settings of a run
    throw_as_api_error(error.without_settings());
  } catch (const DataError& error) {
    throw_as_api_error(error);
  }
}

class Parameters;

/// Keys that every request may have and that change nothing, and "model".
void ignore_common(Parameters& parameters);

/// Whether a list is one prompt of token ids, and not a list of prompts.
bool is_token_list(const Json& prompt);
/// @param key of the request, for errors   @throws ApiError
std::vector<int32_t> tokens_of(const Json& prompt, const char* key, const ServedModel& model);
/// Takes "messages", "tools" and "chat_template_kwargs" out of the body: they may be large.
/// @param instead what a model without a chat template takes: "use /v1/completions"
/// @return the record that they are   @throws ApiError
Json take_conversation(Parameters& parameters, Json& body, const ServedModel& model,
                       const char* instead);

}  // namespace sftrun::serve
