#include "line_reader.h"

#include <histedit.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <utility>

#include "sftrun/core/error.h"

namespace sftrun::engine {
namespace {

/// Reads past what an interrupted read has left.
LineReader::End end_of_input() {
  const bool is_interrupted = errno == EINTR;
  std::clearerr(stdin);
  if (is_interrupted) std::clearerr(stdout);  // an echo that was interrupted is no lost result
  return is_interrupted ? LineReader::End::kInterrupted : LineReader::End::kEnd;
}

void remove_line_feed(std::string& line) {
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
}

}  // namespace

struct LineReader::Editor {
  explicit Editor(std::string text)
      : prompt(std::move(text)),
        history(::history_init()),
        line(::el_init("sftrun", stdin, stdout, stderr)) {
    SFTRUN_CHECK(history != nullptr && line != nullptr);
    constexpr int kLines = 1000;
    HistEvent event{};
    ::history(history, &event, H_SETSIZE, kLines);
    ::el_set(line, EL_CLIENTDATA, this);
    ::el_set(
        line, EL_PROMPT, +[](EditLine* edit_line) {
          Editor* self = nullptr;
          ::el_get(edit_line, EL_CLIENTDATA, &self);
          return self->prompt.data();
        });
    ::el_set(line, EL_EDITOR, "emacs");
    ::el_set(line, EL_SIGNAL, 0);
    ::el_set(line, EL_HIST, ::history, history);
  }
  ~Editor() {
    ::el_end(line);
    ::history_end(history);
  }
  Editor(const Editor&) = delete;
  Editor& operator=(const Editor&) = delete;

  std::string prompt;
  History* history;
  EditLine* line;
};

LineReader::LineReader(std::string prompt) {
  if (::isatty(STDIN_FILENO) != 1 || ::isatty(STDOUT_FILENO) != 1) return;
  std::setlocale(LC_CTYPE, "");  // libedit counts characters
  editor_ = std::make_unique<Editor>(std::move(prompt));
}

LineReader::~LineReader() = default;

LineReader::End LineReader::read(std::string& line) {
  if (editor_) return read_edited(line);
  char* text = nullptr;
  size_t capacity = 0;
  errno = 0;
  const ssize_t length = ::getline(&text, &capacity, stdin);
  const std::unique_ptr<char, decltype(&std::free)> owner(text, std::free);
  if (length < 0) return end_of_input();
  line.assign(text, static_cast<size_t>(length));
  remove_line_feed(line);
  return End::kLine;
}

LineReader::End LineReader::read_edited(std::string& line) {
  int length = 0;
  // Before the prompt is shown: libedit does it after, and a key between is not edited.
  ::el_set(editor_->line, EL_PREP_TERM, 1);
  errno = 0;
  const char* text = ::el_gets(editor_->line, &length);
  if (text == nullptr || length <= 0) return end_of_input();
  line.assign(text, static_cast<size_t>(length));
  remove_line_feed(line);
  HistEvent event{};
  if (!line.empty()) ::history(editor_->history, &event, H_ENTER, line.c_str());
  return End::kLine;
}

}  // namespace sftrun::engine
