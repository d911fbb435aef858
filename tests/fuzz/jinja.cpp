#include "fuzz.h"
#include "sftrun/templates/chat_labels.h"
#include "sftrun/templates/chat_template.h"

namespace {

using sftrun::templates::Json;

const Json& messages() {
  static const Json parsed = Json::parse(R"([
    {"role": "system", "content": " S "}, {"role": "user", "content": "q1 <b>"},
    {"role": "assistant", "content": "<think>t</think>a1", "tool_calls":
      [{"type": "function", "function": {"name": "f", "arguments": {"k": [1, 2.5, null, true]}}}]},
    {"role": "tool", "content": "r"}, {"role": "assistant", "content": "a2"}])");
  return parsed;
}

}  // namespace

/// The bytes are the template. What it renders has an origin for every byte.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sftrun;
  fuzz::expecting_errors([&] {
    const templates::ChatTemplate chat_template(fuzz::text_of(data, size));
    templates::RenderOptions options;
    options.bos_token = "<s>";
    options.now_unix_s = 0;
    const templates::Rendered rendered = chat_template.render(messages(), options);
    size_t covered = 0;
    for (const templates::OriginSpan& span : rendered.origins) {
      if (span.begin != covered || span.end <= span.begin) __builtin_trap();
      covered = span.end;
    }
    if (covered != rendered.text.size()) __builtin_trap();
  });
  return 0;
}
