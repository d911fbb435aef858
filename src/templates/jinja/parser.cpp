#include "jinja/parser.h"

#include <fmt/format.h>

#include <algorithm>

#include "jinja/analysis.h"
#include "jinja/expression_parser.h"
#include "jinja/token_cursor.h"

namespace sftrun::templates::jinja {
namespace {

using EndTags = std::initializer_list<std::string_view>;

/// jinja2's grammar of statements: text, `{{ … }}`, and a function for each tag.
class Parser {
 public:
  Parser(std::string_view source, Template& result)
      : tokens_(tokenize(source)), expressions_(tokens_, result.symbols), template_(result) {}

  void run() { template_.body = statements({}); }

 private:
  /// Statements up to one of the tags, whose name is then the current token.
  Body statements(EndTags end_tags) {
    const TokenCursor::Nesting nesting(tokens_);
    Body body;
    while (tokens_.current().type != TokenType::kEnd) {
      const Token& token = tokens_.current();
      if (token.type == TokenType::kData) {
        auto text = statement(StatementKind::kText, token.line);
        text->text = tokens_.advance().text;
        body.push_back(std::move(text));
      } else if (token.type == TokenType::kVariableBegin) {
        auto print = statement(StatementKind::kPrint, tokens_.advance().line);
        print->expressions.push_back(expressions_.tuple());
        tokens_.expect(TokenType::kVariableEnd, "end of print statement");
        body.push_back(std::move(print));
      } else {
        tokens_.expect(TokenType::kBlockBegin, "begin of statement block");
        if (at_end_tag(end_tags)) return body;
        body.push_back(tag(end_tags));
        tokens_.expect(TokenType::kBlockEnd, "end of statement block");
      }
    }
    if (end_tags.size() > 0)
      fail(looking_for("Unexpected end of template.", end_tags), tokens_.current().line);
    return body;
  }

  bool at_end_tag(EndTags end_tags) const {
    return std::any_of(end_tags.begin(), end_tags.end(),
                       [this](auto name) { return tokens_.current().is_name(name); });
  }

  static std::string looking_for(const std::string& found, EndTags end_tags) {
    if (end_tags.size() == 0) return found;
    return fmt::format("{} The following tags were looked for: '{}'", found,
                       fmt::join(end_tags, "' or '"));
  }

  /// The body of a tag: past its `%}`, up to one of the end tags.
  Body block_body(EndTags end_tags) {
    tokens_.skip_op(":");
    tokens_.expect(TokenType::kBlockEnd, "end of statement block");
    return statements(end_tags);
  }
  Body block_body_and_end(std::string_view end_tag) {
    Body body = block_body({end_tag});
    tokens_.advance();
    return body;
  }

  static std::unique_ptr<Statement> statement(StatementKind kind, int line) {
    auto made = std::make_unique<Statement>();
    made->kind = kind;
    made->line = line;
    return made;
  }

  std::unique_ptr<Statement> tag(EndTags end_tags) {
    if (tokens_.current().type != TokenType::kName)
      fail("tag name expected", tokens_.current().line);
    const std::string name = tokens_.current().text;
    const int line = tokens_.current().line;
    tokens_.advance();
    if (name == "for") return for_tag(line);
    if (name == "if") return if_tag(line);
    if (name == "set") return set_tag(line);
    if (name == "macro") return macro_tag(line);
    if (name == "call") return call_tag(line);
    if (name == "filter") return filter_tag(line);
    if (name == "generation") return generation_tag(line);
    if (name == "with") return with_tag(line);
    if (name == "print") return print_tag(line);
    if (name == "block") return block_tag(line);
    if (name == "break" || name == "continue") {
      return statement(name == "break" ? StatementKind::kBreak : StatementKind::kContinue, line);
    }
    const bool needs_loader =
        name == "include" || name == "import" || name == "from" || name == "extends";
    if (needs_loader || name == "autoescape") {
      fail(fmt::format("{{% {} %}} is not supported in chat templates", name), line);
    }
    fail(looking_for(fmt::format("Encountered unknown tag '{}'.", name), end_tags), line);
  }

  std::unique_ptr<Statement> for_tag(int line) {
    auto loop = statement(StatementKind::kFor, line);
    loop->target = expressions_.assignment_target("in", false);
    tokens_.expect_name("in");
    loop->value = expressions_.tuple(false, "recursive");
    if (tokens_.skip_name("if")) loop->condition = expressions_.expression();
    loop->recursive = tokens_.skip_name("recursive");
    loop->body = block_body({"endfor", "else"});
    if (tokens_.advance().text == "else") loop->otherwise = block_body_and_end("endfor");
    return loop;
  }

  std::unique_ptr<Statement> if_tag(int line) {
    auto branch = statement(StatementKind::kIf, line);
    while (true) {
      branch->expressions.push_back(expressions_.tuple(false));
      branch->bodies.push_back(block_body({"elif", "else", "endif"}));
      const std::string end = tokens_.advance().text;
      if (end == "else") branch->otherwise = block_body_and_end("endif");
      if (end != "elif") return branch;
    }
  }

  std::unique_ptr<Statement> set_tag(int line) {
    auto set = statement(StatementKind::kSet, line);
    set->target = expressions_.assignment_target({}, true);
    if (tokens_.skip_op("=")) {
      set->value = expressions_.tuple();
      return set;
    }
    set->kind = StatementKind::kSetBlock;
    set->filter = expressions_.postfix().filters(nullptr, false);
    set->body = block_body_and_end("endset");
    return set;
  }

  void signature(MacroDefinition& macro) {
    tokens_.expect_op("(");
    bool any_default = false;
    while (!tokens_.current().is_op(")")) {
      if (!macro.parameters.empty()) tokens_.expect_op(",");
      Parameter parameter;
      parameter.name = tokens_.expect_identifier();
      parameter.symbol = template_.symbols.intern(parameter.name);
      if (tokens_.skip_op("=")) {
        parameter.otherwise = expressions_.expression();
        any_default = true;
      } else if (any_default) {
        fail("non-default argument follows default argument", tokens_.current().line);
      }
      macro.explicit_caller = macro.explicit_caller || parameter.name == "caller";
      macro.parameters.push_back(std::move(parameter));
    }
    tokens_.expect_op(")");
  }

  std::unique_ptr<Statement> macro_tag(int line) {
    auto macro = statement(StatementKind::kMacro, line);
    macro->macro = std::make_unique<MacroDefinition>();
    macro->macro->name = tokens_.expect_identifier();
    macro->symbol = template_.symbols.intern(macro->macro->name);
    signature(*macro->macro);
    macro->body = block_body_and_end("endmacro");
    return macro;
  }

  std::unique_ptr<Statement> call_tag(int line) {
    auto call = statement(StatementKind::kCallBlock, line);
    call->macro = std::make_unique<MacroDefinition>();
    if (tokens_.current().is_op("(")) signature(*call->macro);
    call->value = expressions_.expression();
    if (call->value->kind != ExprKind::kCall) fail("expected call", line);
    call->body = block_body_and_end("endcall");
    return call;
  }

  std::unique_ptr<Statement> filter_tag(int line) {
    auto filter = statement(StatementKind::kFilterBlock, line);
    filter->filter = expressions_.postfix().filters(nullptr, true);
    filter->body = block_body_and_end("endfilter");
    return filter;
  }

  std::unique_ptr<Statement> generation_tag(int line) {
    template_.has_generation_marks = true;
    auto generation = statement(StatementKind::kGeneration, line);
    generation->body = block_body_and_end("endgeneration");
    return generation;
  }

  std::unique_ptr<Statement> with_tag(int line) {
    auto with = statement(StatementKind::kWith, line);
    while (tokens_.current().type != TokenType::kBlockEnd) {
      if (!with->targets.empty()) tokens_.expect_op(",");
      with->targets.push_back(expressions_.assignment_target({}, false));
      tokens_.expect_op("=");
      with->expressions.push_back(expressions_.expression());
    }
    with->body = block_body_and_end("endwith");
    return with;
  }

  std::unique_ptr<Statement> print_tag(int line) {
    auto print = statement(StatementKind::kPrint, line);
    while (tokens_.current().type != TokenType::kBlockEnd) {
      if (!print->expressions.empty()) tokens_.expect_op(",");
      print->expressions.push_back(expressions_.expression());
    }
    return print;
  }

  std::unique_ptr<Statement> block_tag(int line) {
    auto block = statement(StatementKind::kBlock, line);
    const std::string name = tokens_.expect_identifier();
    block->scoped = tokens_.skip_name("scoped");
    tokens_.skip_name("required");
    block->body = block_body_and_end("endblock");
    tokens_.skip_name(name);
    return block;
  }

  TokenCursor tokens_;
  ExpressionParser expressions_;
  Template& template_;
};

}  // namespace

Template parse_template(std::string_view source) {
  Template result;
  Parser(source, result).run();
  analyse(result);
  return result;
}

}  // namespace sftrun::templates::jinja
