#pragma once

#include <optional>
#include <vector>

#include "jinja/ast.h"
#include "sftrun/templates/chat_template.h"

namespace sftrun::templates {

/// The variables of a chat template for one conversation, with the table of their origins.
class ChatContext {
 public:
  /// @throws TemplateError if it is not a conversation.
  ChatContext(const jinja::SymbolTable& symbols, const Json& messages, size_t num_messages,
              const RenderOptions& options);

  /// By symbol; nullopt if a name of the template has no value.
  std::vector<std::optional<jinja::Value>> take_variables() { return std::move(variables_); }
  /// The text with its origins spelled out.
  Rendered rendered(const jinja::TaggedText& text) const;

 private:
  void set(const std::string& name, jinja::Value value);
  jinja::Value message_value(const Json& message, int32_t index);
  jinja::OriginId message_origin(int32_t message, const std::string& field);

  const jinja::SymbolTable& symbols_;
  std::vector<std::optional<jinja::Value>> variables_;
  std::vector<Origin> message_origins_;  ///< by OriginId - kFirstMessageOrigin
};

}  // namespace sftrun::templates
