#include "sftrun/templates/chat_template.h"

#include <fmt/format.h>

#include <ctime>

#include "chat_context.h"
#include "jinja/interpreter.h"
#include "jinja/parser.h"
#include "sftrun/core/error.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/utf8.h"

namespace sftrun::templates {

struct ChatTemplate::Impl {
  std::string source, name;
  jinja::Template parsed;

  std::string where(int line) const { return fmt::format("{}:{}", name, line); }
};

ChatTemplate::ChatTemplate(std::string_view source, std::string name)
    : impl_(std::make_unique<Impl>()) {
  impl_->source = source;
  impl_->name = std::move(name);
  if (!is_valid_utf8(source)) throw DataError("the chat template is not valid UTF-8", impl_->name);
  constexpr size_t kMaxSourceBytes = size_t{16} << 20;
  if (source.size() > kMaxSourceBytes)
    throw DataError("the chat template is larger than 16 MiB", impl_->name);
  try {
    impl_->parsed = jinja::parse_template(source);
  } catch (const jinja::TemplateError& error) {
    throw DataError(fmt::format("the chat template cannot be parsed: {}", excerpt(error.what())),
                    impl_->where(error.line()));
  }
}

ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

bool ChatTemplate::has_generation_marks() const {
  return impl_->parsed.has_generation_marks;
}
const std::string& ChatTemplate::source() const {
  return impl_->source;
}

Rendered ChatTemplate::render(const Json& messages, const RenderOptions& options) const {
  return render_prefix(messages, messages.size(), options);
}

Rendered ChatTemplate::render_prefix(const Json& messages, size_t num_messages,
                                     const RenderOptions& options) const {
  const int64_t now =
      options.now_unix_s >= 0 ? options.now_unix_s : static_cast<int64_t>(std::time(nullptr));
  jinja::Runtime runtime(jinja::Limits{}, now);
  try {
    ChatContext context(impl_->parsed.symbols, messages, num_messages, options);
    jinja::Interpreter interpreter(impl_->parsed, runtime, context.take_variables());
    return context.rendered(interpreter.run());
  } catch (const jinja::WorkLimitError& error) {
    const int line = runtime.line();
    throw TemplateWorkError(error.what(), line > 0 ? impl_->where(line) : impl_->name);
  } catch (const jinja::TemplateError& error) {
    const int line = runtime.line();
    const std::string where =
        line > 0 ? impl_->where(error.line() > 0 ? error.line() : line) : impl_->name;
    throw DataError(excerpt(error.what()), where);
  }
}

std::optional<Rendered> ChatTemplate::render_if_accepted(const Json& messages,
                                                         const RenderOptions& options) const {
  return render_prefix_if_accepted(messages, messages.size(), options);
}

std::optional<Rendered> ChatTemplate::render_prefix_if_accepted(
    const Json& messages, size_t num_messages, const RenderOptions& options) const {
  try {
    return render_prefix(messages, num_messages, options);
  } catch (const TemplateWorkError&) {
    throw;
  } catch (const DataError&) {
    return std::nullopt;
  }
}

}  // namespace sftrun::templates
