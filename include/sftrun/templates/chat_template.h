#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/core/error.h"

/// Chat templates: Jinja as in transformers (ImmutableSandboxedEnvironment, trim_blocks,
/// lstrip_blocks, loop controls, tojson with ensure_ascii off, raise_exception, strftime_now, {%
/// generation %}), with the origin of every byte.
namespace sftrun::templates {

/// Keeps the order of keys, like Python's dictionaries, because templates iterate over them and
/// print them.
using Json = nlohmann::ordered_json;

/// The origin of a run of output bytes.
struct Origin {
  enum class Kind : uint8_t {
    kTemplate,  ///< literal text of the template, or a computed value
    kMessage,   ///< a field of a message, possibly through filters that keep characters (trim,
                ///< slices, split, …)
    kOther,     ///< another variable (tools, bos_token, kwargs)
  };
  Kind kind = Kind::kTemplate;
  int32_t message = -1;        ///< index into messages for kMessage
  std::string field;           ///< "content", "reasoning_content", "tool_calls", …
  bool in_generation = false;  ///< inside {% generation %} … {% endgeneration %}
  bool operator==(const Origin&) const = default;
};
struct OriginSpan {
  uint32_t begin = 0, end = 0;  ///< bytes of the rendered text
  Origin origin;
};

struct Rendered {
  std::string text;
  std::vector<OriginSpan> origins;  ///< in order, covering the text without gaps
};

struct RenderOptions {
  bool add_generation_prompt = false;
  Json tools;                    ///< null or array
  Json kwargs = Json::object();  ///< chat_template_kwargs, visible as variables
  std::string bos_token, eos_token, unk_token,
      pad_token;            ///< empty: undefined in the template
  int64_t now_unix_s = -1;  ///< time for strftime_now; -1: now (local time)
};

/// The template ran into the limit of the work that one render may take, which takes seconds.
struct TemplateWorkError : DataError {
  using DataError::DataError;
};

/// Immutable; `render` is safe to call from several threads.
class ChatTemplate {
 public:
  /// @throws DataError with the template line and the problem.
  explicit ChatTemplate(std::string_view source, std::string name = "chat template");
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  /// @param messages array of {"role", "content", …}; where one of reasoning_content, thinking and
  /// reasoning is given, the template gets the first two, as in transformers
  /// @throws DataError with the text of raise_exception, or the template line of a run-time error.
  /// @throws TemplateWorkError at the limit of work.
  Rendered render(const Json& messages, const RenderOptions& options) const;
  /// The same for the first `num_messages` messages.
  Rendered render_prefix(const Json& messages, size_t num_messages,
                         const RenderOptions& options) const;
  /// The same where a conversation only asks what the template does with it; nullopt if the template
  /// rejects it.
  /// @throws TemplateWorkError: further questions would take as long.
  std::optional<Rendered> render_if_accepted(const Json& messages,
                                             const RenderOptions& options) const;
  std::optional<Rendered> render_prefix_if_accepted(const Json& messages, size_t num_messages,
                                                    const RenderOptions& options) const;
  /// Whether the template has {% generation %} marks.
  bool has_generation_marks() const;
  const std::string& source() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sftrun::templates
