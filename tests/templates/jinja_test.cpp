#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "sftrun/core/error.h"
#include "sftrun/core/exact_json.h"
#include "sftrun/core/file.h"
#include "sftrun/templates/chat_template.h"

namespace sftrun::templates {
namespace {

std::string line_of(const DataError& error) {
  const size_t colon = error.where().rfind(':');
  return colon == std::string::npos ? "" : error.where().substr(colon + 1);
}

/// Every case of scripts/fixtures/make_jinja.py: the text jinja2 made, or an error on the same
/// line.
TEST(Jinja, EqualsPython) {
  const Json fixture =
      parse_exact_json(read_text_file(std::string(SFTRUN_TEST_DATA) + "/text/jinja_cases.json"));
  Json variables = fixture.at("vars");
  const Json messages = variables.at("messages");
  variables.erase("messages");
  RenderOptions options;
  options.kwargs = variables;
  ASSERT_GE(fixture.at("cases").size(), 450U);
  for (const Json& test_case : fixture.at("cases")) {
    const std::string source = test_case.at("source");
    SCOPED_TRACE(source + "\nregenerate with scripts/fixtures/make_jinja.py");
    const bool fails = test_case.contains("error");
    try {
      const Rendered rendered = ChatTemplate(source).render(messages, options);
      if (fails) {
        ADD_FAILURE() << "rendered '" << rendered.text << "', Python raises "
                      << test_case.at("error");
      } else {
        EXPECT_EQ(rendered.text, test_case.at("text").get<std::string>());
      }
    } catch (const DataError& error) {
      if (!fails) {
        ADD_FAILURE() << error.what();
      } else if (!test_case.at("line").is_null()) {
        EXPECT_EQ(line_of(error), std::to_string(test_case.at("line").get<int>())) << error.what();
      }
    }
  }
}

/// The origins as text: T, O or message.field, and G inside marks, each with its bytes.
std::string origins_of(const Rendered& rendered) {
  std::string out;
  for (const OriginSpan& span : rendered.origins) {
    const Origin& origin = span.origin;
    const std::string name = origin.kind == Origin::Kind::kTemplate ? "T"
                             : origin.kind == Origin::Kind::kOther
                                 ? "O"
                                 : std::to_string(origin.message) + "." + origin.field;
    out += "[" + name + (origin.in_generation ? "/G" : "") + "|" +
           rendered.text.substr(span.begin, span.end - span.begin) + "]";
  }
  return out;
}

std::string origins(const std::string& source, const Json& messages, Json kwargs = Json::object()) {
  RenderOptions options;
  options.kwargs = std::move(kwargs);
  options.bos_token = "<s>";
  return origins_of(ChatTemplate(source).render(messages, options));
}

struct OriginCase {
  const char* source;
  const char* expected;
};

TEST(Provenance, FollowsTextThroughEveryOperationThatKeepsCharacters) {
  const Json messages = Json::parse(R"([
    {"role": "user", "content": "  ab,cd  "},
    {"role": "assistant", "content": "x<y>\"q\"", "reasoning": "why", "n": 5,
     "tool_calls": [{"function": {"name": "f", "arguments": {"k": ["v", 1]}}}]}])");
  const OriginCase cases[] = {
      {"{{ bos_token }}a{{ messages[0].content }}", "[O|<s>][T|a][0.content|  ab,cd  ]"},
      {"{{ '<' + messages[0]['content'] | trim + '>' }}", "[T|<][0.content|ab,cd][T|>]"},
      {"{{ messages[0].content.strip().split(',')[1] }}", "[0.content|cd]"},
      {"{{ messages[0].content[2:4] ~ '-' ~ messages[0].content[::-1]|trim }}",
       "[0.content|ab][T|-][0.content|dc,ba]"},
      {"{{ messages[0].content|trim|replace(',', ';') }}", "[0.content|ab][T|;][0.content|cd]"},
      {"{{ messages[0].content.strip().upper().lstrip('A') }}", "[0.content|B,CD]"},
      {"{{ messages[0].content|trim|title }}{{ messages[0].content|trim|capitalize }}",
       "[0.content|Ab,cdAb,cd]"},
      {"{{ messages|map(attribute='content')|map('trim')|join('+') }}",
       "[0.content|ab,cd][T|+][1.content|x<y>\"q\"]"},
      {"{{ '%s:%s' % (messages[0].role, messages[1].n) }}", "[0.role|user][T|:][1.n|5]"},
      {"{{ '{}/{}'.format(messages[1].n, 'z') }}", "[1.n|5][T|/z]"},
      {"{{ messages[1].content|tojson }}", "[1.content|\"x<y>\\\"q\\\"\"]"},
      {"{{ messages[1].tool_calls[0].function.arguments|tojson }}",
       "[1.tool_calls|{\"k\": [\"v\", 1]}]"},
      {"{{ messages[1].tool_calls }}",
       "[1.tool_calls|[{'function': {'name': 'f', 'arguments': {'k': ['v', 1]}}}]]"},
      {"{% for k, v in messages[1].tool_calls[0].function.arguments.items() %}{{ k }}={{ v[0] }}{% "
       "endfor %}",
       "[1.tool_calls|k][T|=][1.tool_calls|v]"},
      {"{{ messages[1].reasoning_content }}{{ messages[1].thinking }}{{ messages[1].reasoning }}",
       "[1.reasoning|whywhywhy]"},
      {"{{ messages[1].content|e }}", "[1.content|x&lt;y&gt;&#34;q&#34;]"},
      {"{% set x %}[{{ messages[0].content|trim }}]{% endset %}{{ x[1:3] }}{{ x|length }}",
       "[0.content|ab][T|7]"},
      {"{% macro m(t) %}<{{ t }}>{% endmacro %}{{ m(messages[1].n) }}", "[T|<][1.n|5][T|>]"},
      {"{% set ns = namespace(s='') %}{% for m in messages %}{% set ns.s = ns.s + m.role[0] %}{% "
       "endfor %}{{ ns.s }}",
       "[0.role|u][1.role|a]"},
      {"{{ messages[0].content|indent(1, true) }}", "[T| ][0.content|  ab,cd  ]"},
      {"{{ messages[0].content.strip().center(9, '*') }}", "[T|**][0.content|ab,cd][T|**]"},
      {"{{ who }}{{ [who, messages[1].n] }}", "[O|me][T|[][O|'me'][T|, ][1.n|5][T|]]"},
      {"{{ messages[1].n + 1 }}{{ messages[0].content|length }}", "[T|69]"},
      {"{% filter upper %}a{{ messages[0].role }}{% endfilter %}", "[T|A][0.role|USER]"},
      {"a{% generation %}b{{ messages[1].n }}{% endgeneration %}c", "[T|a][T/G|b][1.n/G|5][T|c]"},
      {"{% macro m() %}{% generation %}{{ messages[1].n }}{% endgeneration %}{% endmacro %}{% set "
       "x = m() %}-{{ x }}-",
       "[T|-][1.n/G|5][T|-]"},
  };
  for (const OriginCase& test_case : cases) {
    EXPECT_EQ(origins(test_case.source, messages, {{"who", "me"}}), test_case.expected)
        << test_case.source;
  }
}

std::string message_of(const std::string& source, const Json& messages = Json::array()) {
  try {
    return "rendered " + std::to_string(ChatTemplate(source).render(messages, {}).text.size()) +
           " bytes";
  } catch (const DataError& error) {
    return error.message();
  }
}

TEST(JinjaLimits, HostileTemplatesEndInAnError) {
  const auto repeated = [](const std::string& piece, int times) {
    std::string out;
    for (int i = 0; i < times; ++i) out += piece;
    return out;
  };
  const auto expect_error = [](const std::string& source, const std::string& part) {
    const std::string message = message_of(source);
    EXPECT_NE(message.find(part), std::string::npos) << source.substr(0, 120) << "\n" << message;
  };
  expect_error("{{ " + repeated("(", 100'000) + "1", "nested too deeply");
  expect_error("{{ " + repeated("[", 100'000), "nested too deeply");
  expect_error("{{ " + repeated("not ", 100'000) + "1 }}", "nested too deeply");
  expect_error("{{ " + repeated("-", 100'000) + "1 }}", "nested too deeply");
  expect_error("{{ 1" + repeated(" + 1", 100'000) + " }}", "nested too deeply or too long");
  expect_error("{{ x" + repeated(".a", 100'000) + " }}", "nested too deeply or too long");
  expect_error("{{ x" + repeated("|f", 100'000) + " }}", "nested too deeply or too long");
  expect_error("{{ 1" + repeated(" if 1 else 1", 100'000) + " }}", "nested too deeply");
  expect_error(repeated("{% if 1 %}", 100'000), "nested too deeply");
  expect_error(repeated("{% for i in x %}", 100'000), "nested too deeply");
  expect_error("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recurses too deeply");
  expect_error(
      "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}",
      "recurses too deeply");
  expect_error("{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}", "recurses too deeply");
  expect_error("{{ range(1000000000000)|list }}", "Range too big");
  expect_error("{{ 'x' * 1000000000000 }}", "more than 64 MiB");
  expect_error("{{ [1] * 100000000000000000000 }}", "more than 64 MiB");
  expect_error("{{ 'x'.center(1000000000) }}", "more than 64 MiB");
  expect_error("{{ '%1000000000d' % 1 }}", "width too big");
  expect_error("{{ '{:>1000000000}'.format(1) }}", "too large");
  expect_error(
      "{% set ns = namespace(s='x') %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% "
      "endfor %}",
      "more than 64 MiB");
  expect_error(
      "{% set ns = namespace(l=[1]) %}{% for i in range(100) %}{% set ns.l = ns.l + ns.l %}{% "
      "endfor %}",
      "more than 64 MiB");
  expect_error(
      "{% set ns = namespace(l=[]) %}{% for i in range(100000) %}{% set ns.l = [ns.l] %}{% endfor "
      "%}",
      "nested too deeply");
  expect_error(
      "{% set ns = namespace(l=[1]) %}{% for i in range(100) %}{% set ns.l = [ns.l, ns.l] %}{% "
      "endfor %}",
      "contains too many values");
  expect_error(
      "{% set ns = namespace(g=[]) %}{% for i in range(100000) %}{% set ns.g = ns.g|map('upper') "
      "%}{% endfor %}",
      "nested too deeply");
  expect_error("{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}",
               "nests or recurses too deeply");
  expect_error(
      "{% for a in range(100000) %}{% for b in range(100000) %}{{ b }}{% endfor %}{% endfor %}",
      "too many steps");
  expect_error("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
               "too many steps");
  // A search costs as much as the text is long; a text is found in one pass.
  expect_error("{% set a = 'a' * 4000000 %}{% for i in range(1000) %}{{ 'b' in a }}{% endfor %}",
               "too many steps");
  expect_error("{% set a = 'a' * 4000000 %}{{ a.rfind('b' + 'a' * 2000000) }}", "too many steps");
  expect_error("{% set a = 'a' * 4000000 %}{{ a.rpartition('b' + 'a' * 2000000) }}",
               "too many steps");
  expect_error("{{ ('a ' * 30000000).split() }}", "too many steps");
  expect_error("{{ ('\\n' * 60000000).splitlines() }}", "too many steps");
  std::string variables;
  for (int i = 0; i < 100'000; ++i) {
    const std::string name = std::to_string(i);
    variables += "{% set v" + name + " = " + name + " %}";
  }
  std::string branches = "{% if false %}";
  for (int i = 0; i < 5'000; ++i) {
    const std::string name = std::to_string(i);
    branches += "{% elif x" + name + " %}{% set v" + name + " = 1 %}";
  }
  expect_error(branches + "{% endif %}", "too many branches and variables");
  expect_error(variables + "{{ v99999 }}", "too many steps");
  expect_error("{{ 10 ** 100 }}", "integer is too large");
  expect_error("{{ 99999999999999999999999999999999999999999999 }}", "integer is too large");
  expect_error("{{ 2 ** 119 * 2 ** 119 }}", "integer is too large");
}

// A question to a template has the answer "rejected". Out of work is no answer: each further question
// would take as long.
TEST(JinjaLimits, QuestionsEndWithTheWork) {
  const Json messages = {{{"role", "user"}, {"content", "q"}}};
  const ChatTemplate plain("{{ messages[0].content }}");
  EXPECT_EQ(plain.render_if_accepted(messages, {}).value().text, "q");
  EXPECT_FALSE(plain.render_prefix_if_accepted(messages, 0, {}).has_value());
  const ChatTemplate endless("{% set a = 'a' * 4000000 %}{{ a.rfind('b' + 'a' * 2000000) }}");
  EXPECT_THROW(endless.render_if_accepted(messages, {}), TemplateWorkError);
  EXPECT_THROW(endless.render(messages, {}), DataError);
}

// What once took a time that grew with the square of the text's length.
TEST(JinjaLimits, LongTextsAreSearchedInOnePass) {
  const std::string set = "{% set a = 'a' * 4000000 %}{% set b = 'a' * 2000000 + 'b' %}";
  EXPECT_EQ(message_of(set + "{{ b in a }}{{ a.find(b) }}{{ a.count(b) }}"), "rendered 8 bytes");
  EXPECT_EQ(message_of(set + "{{ a.replace(b, '')|length }},{{ a.split(b)|length }}"),
            "rendered 9 bytes");
  EXPECT_EQ(message_of("{{ ('ab ' * 500000).split()|length }}"), "rendered 6 bytes");
  EXPECT_EQ(message_of("{{ ('ab ' * 500000).rsplit()|length }}"), "rendered 6 bytes");
}

TEST(JinjaLimits, CyclesAndClosuresAreFreed) {
  // (The leak checker of the sanitizer build judges these.)
  EXPECT_EQ(
      message_of(
          "{% set ns = namespace() %}{% set ns.me = [ns] %}{% set ns.l = namespace(o=ns) %}x"),
      "rendered 1 bytes");
  EXPECT_EQ(
      message_of(
          "{% set ns = namespace() %}{% macro m() %}{{ ns.x }}{% endmacro %}{% set ns.m = m %}x"),
      "rendered 1 bytes");
  EXPECT_EQ(message_of("{% set ns = namespace() %}{% for i in [1, 2] %}{% set ns.l = loop %}{% set "
                       "ns.c = loop.cycle %}"
                       "{% if loop.changed(loop) %}{% endif %}{% endfor %}{{ ns.c('a', 'b') }}"),
            "rendered 1 bytes");
}

TEST(ChatTemplate, NamesTemplateAndLineInErrors) {
  try {
    ChatTemplate("a\n\n{% if %}", "my.jinja");
    FAIL() << "parsed";
  } catch (const DataError& error) {
    EXPECT_EQ(error.where(), "my.jinja:3");
    EXPECT_NE(error.message().find("Expected an expression"), std::string::npos) << error.message();
  }
  const ChatTemplate refusing("a\n{{ raise_exception('Roles must alternate') }}", "my.jinja");
  try {
    refusing.render(Json::array(), {});
    FAIL() << "rendered";
  } catch (const DataError& error) {
    EXPECT_EQ(error.message(), "the template raised an error: Roles must alternate");
    EXPECT_EQ(error.where(), "my.jinja:2");
  }
  EXPECT_THROW(ChatTemplate("\xff{{ x }}"), DataError);
  EXPECT_THROW(ChatTemplate("x").render(Json::object(), {}), DataError);
  EXPECT_THROW(ChatTemplate("{{ messages }}").render(Json::array({5}), {}), DataError);
}

TEST(ChatTemplate, GivesTemplatesTheVariablesTheyExpect) {
  RenderOptions options;
  options.bos_token = "<s>";
  options.tools = Json::parse(R"([{"name": "f"}])");
  options.kwargs = {{"enable_thinking", false}};
  options.add_generation_prompt = true;
  options.now_unix_s = 86400 * 365;
  const ChatTemplate shows(
      "{{ bos_token }}{{ eos_token is defined }}{{ tools[0].name }}{{ enable_thinking }}"
      "{{ add_generation_prompt }}{{ strftime_now('%Y') }}{{ documents }}");
  EXPECT_EQ(shows.render(Json::array(), options).text, "<s>FalsefFalseTrue1971None");
  const Json messages =
      Json::parse(R"([{"role": "user", "content": 12345678901234567890}, {"role": "x"}])");
  EXPECT_EQ(ChatTemplate("{{ messages|length }}{{ messages[0].content }}")
                .render_prefix(messages, 1, {})
                .text,
            "112345678901234567890");
}

TEST(ChatTemplate, SaysWhetherItMarksTheAssistantItself) {
  EXPECT_TRUE(ChatTemplate("{% generation %}x{% endgeneration %}").has_generation_marks());
  EXPECT_FALSE(ChatTemplate("{% raw %}{% generation %}{% endraw %}").has_generation_marks());
}

}  // namespace
}  // namespace sftrun::templates
