#include "sftrun/templates/builtin_templates.h"

#include <array>

#include "sftrun/core/error.h"

namespace sftrun::templates {
namespace {

struct BuiltinTemplate {
  std::string_view name, source;
};

// If a format has no place for a system message, the message is written before the first question.
// If a format has no end-of-turn token, turns end with the end-of-text token. Content may be null
// if there are tool calls.
constexpr std::array kTemplates = {
    BuiltinTemplate{"chatml", R"({%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\n' + (message.content or '') + '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif -%})"},
    BuiltinTemplate{"llama3", R"({{- bos_token -}}
{%- for message in messages -%}
{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + (message.content or '') | trim + '<|eot_id|>' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif -%})"},
    BuiltinTemplate{"llama2", R"({%- set ns = namespace(system='') -%}
{%- for message in messages -%}
{%- if message.role == 'system' -%}
{%- set ns.system = '<<SYS>>\n' + (message.content or '') + '\n<</SYS>>\n\n' -%}
{%- elif message.role == 'user' -%}
{{ (bos_token or '') + '[INST] ' + ns.system + (message.content or '') + ' [/INST]' }}{%- set ns.system = '' -%}
{%- elif message.role == 'assistant' -%}
{{ ' ' + (message.content or '') + ' ' + eos_token }}
{%- else -%}
{{ raise_exception('the format llama2 has no place for the role ' + message.role) }}
{%- endif -%}
{%- endfor -%})"},
    BuiltinTemplate{"mistral", R"({%- set ns = namespace(system='') -%}
{{- bos_token -}}
{%- for message in messages -%}
{%- if message.role == 'system' -%}
{%- set ns.system = (message.content or '') + '\n\n' -%}
{%- elif message.role == 'user' -%}
{{ '[INST] ' + ns.system + (message.content or '') + ' [/INST]' }}{%- set ns.system = '' -%}
{%- elif message.role == 'assistant' -%}
{{ ' ' + (message.content or '') + eos_token }}
{%- else -%}
{{ raise_exception('the format mistral has no place for the role ' + message.role) }}
{%- endif -%}
{%- endfor -%})"},
    BuiltinTemplate{"gemma", R"({%- set ns = namespace(system='') -%}
{{- bos_token -}}
{%- for message in messages -%}
{%- if message.role == 'system' -%}
{%- set ns.system = (message.content or '') + '\n\n' -%}
{%- elif message.role in ['user', 'assistant'] -%}
{{ '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\n' + ns.system + (message.content or '') | trim + '<end_of_turn>\n' }}
{%- set ns.system = '' -%}
{%- else -%}
{{ raise_exception('the format gemma has no place for the role ' + message.role) }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif -%})"},
    BuiltinTemplate{"phi3", R"({%- for message in messages -%}
{%- if message.role not in ['system', 'user', 'assistant'] -%}
{{ raise_exception('the format phi3 has no place for the role ' + message.role) }}
{%- endif -%}
{{ '<|' + message.role + '|>\n' + (message.content or '') + '<|end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif -%})"},
    BuiltinTemplate{"zephyr", R"({%- for message in messages -%}
{%- if message.role not in ['system', 'user', 'assistant'] -%}
{{ raise_exception('the format zephyr has no place for the role ' + message.role) }}
{%- endif -%}
{{ '<|' + message.role + '|>\n' + (message.content or '') + eos_token + '\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif -%})"},
    BuiltinTemplate{"vicuna", R"({{- bos_token -}}
{%- for message in messages -%}
{%- if message.role == 'system' -%}
{{ (message.content or '') + '\n\n' }}
{%- elif message.role == 'user' -%}
{{ 'USER: ' + (message.content or '') + ' ASSISTANT:' }}
{%- elif message.role == 'assistant' -%}
{{ ' ' + (message.content or '') + eos_token }}
{%- else -%}
{{ raise_exception('the format vicuna has no place for the role ' + message.role) }}
{%- endif -%}
{%- endfor -%})"},
    BuiltinTemplate{"alpaca", R"({{- bos_token -}}
{%- for message in messages -%}
{%- if message.role == 'system' -%}
{{ (message.content or '') + '\n\n' }}
{%- elif message.role == 'user' -%}
{{ '### Instruction:\n' + (message.content or '') + '\n\n### Response:\n' }}
{%- elif message.role == 'assistant' -%}
{{ (message.content or '') + eos_token + '\n\n' }}
{%- else -%}
{{ raise_exception('the format alpaca has no place for the role ' + message.role) }}
{%- endif -%}
{%- endfor -%})"},
};

constexpr std::string_view kContent = "(message.content or '')";

/// A string in single quotes, as Jinja reads it.
std::string quoted(std::string_view text) {
  std::string result = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') result += '\\';
    if (c == '\n')
      result += "\\n";
    else
      result += c;
  }
  return result + "'";
}

/// `text_of`, which writes content of both forms.
std::string content_macro(std::string_view image, std::string_view video) {
  return "{%- macro text_of(content) -%}{%- if content is string -%}{{ content }}{%- else -%}"
         "{%- for part in content or [] -%}{%- if part.type == 'image' -%}{{ " +
         quoted(image) + " }}{%- elif part.type == 'video' -%}{{ " + quoted(video) +
         " }}{%- else -%}{{ part.text }}{%- endif -%}{%- endfor -%}{%- endif -%}{%- endmacro -%}\n";
}

}  // namespace

std::string builtin_template_with_images(std::string_view name, std::string_view image,
                                         std::string_view video) {
  constexpr std::string_view kBoth = "text_of(message.content)";
  std::string source(builtin_template(name));
  SFTRUN_CHECK(!source.empty());
  for (size_t at = source.find(kContent); at != std::string::npos;
       at = source.find(kContent, at + kBoth.size()))
    source.replace(at, kContent.size(), kBoth);
  return content_macro(image, video) + source;
}

std::string builtin_template_name(std::string_view source) {
  for (const BuiltinTemplate& known : kTemplates)
    if (known.source == source) return std::string(known.name);
  return {};
}

std::string_view builtin_template(std::string_view name) {
  for (const BuiltinTemplate& known : kTemplates) {
    if (known.name == name) return known.source;
  }
  return {};
}

std::vector<std::string> builtin_template_names() {
  std::vector<std::string> names;
  for (const BuiltinTemplate& known : kTemplates) names.emplace_back(known.name);
  return names;
}

}  // namespace sftrun::templates
