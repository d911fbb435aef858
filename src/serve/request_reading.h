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

/// Keys that every request may have and that change nothing, and "model".
class Parameters;
void ignore_common(Parameters& parameters);

/// Whether a list is one prompt of token ids, and not a list of prompts.
bool is_token_list(const Json& prompt);
/// @param key of the request, for errors   @throws ApiError
std::vector<int32_t> tokens_of(const Json& prompt, const char* key, const ServedModel& model);
/// Features are in files, which are not read for who asks.   @throws ApiError
void refuse_features(const Json& messages);
/// OpenAI's name for system messages; templates know only the older one.
Json with_known_roles(Json messages);

}  // namespace sftrun::serve
