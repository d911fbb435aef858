#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "sftrun/core/strings.h"
#include "sftrun/reward/outside_program.h"

/// What a shell would say with exit codes 126 and 127, before the program is asked first.
namespace sftrun::reward {
namespace {

/// Words that a shell runs itself: the built-in utilities and reserved words of POSIX, and some of bash.
constexpr auto kOfShell = std::to_array<std::string_view>(
    {"!",       ".",        ":",       "[",       "alias",    "bg",        "bind",     "break",
     "builtin", "case",     "cd",      "command", "continue", "declare",   "do",       "echo",
     "enable",  "eval",     "exec",    "exit",    "export",   "false",     "fc",       "fg",
     "for",     "function", "getopts", "hash",    "if",       "jobs",      "kill",     "let",
     "local",   "mapfile",  "printf",  "pwd",     "read",     "readarray", "readonly", "return",
     "select",  "set",      "shift",   "shopt",   "source",   "test",      "time",     "times",
     "trap",    "true",     "type",    "typeset", "ulimit",   "umask",     "unalias",  "unset",
     "until",   "wait",     "while",   "{"});
constexpr auto kInterpreters = std::to_array<std::string_view>(
    {"bash", "dash", "julia", "node", "perl", "python", "python3", "Rscript", "ruby", "sh"});

/// Characters that stand for themselves in a word.
bool is_plain(std::string_view word) {
  constexpr std::string_view kOthers = "_-./+:,@%";
  return std::all_of(word.begin(), word.end(), [&](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return std::isalnum(byte) != 0 || byte > 0x7f || kOthers.find(c) != std::string_view::npos;
  });
}

bool is_file(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && !S_ISDIR(status.st_mode);
}

bool may_be_executed(const std::string& path) {
  return is_file(path) && ::access(path.c_str(), X_OK) == 0;
}

bool is_on_path(const std::string& name) {
  const char* path = std::getenv("PATH");
  if (path == nullptr) return true;  // the shell has directories of its own
  const std::vector<std::string> folders = split(path, ':');
  return std::any_of(folders.begin(), folders.end(), [&](const std::string& folder) {
    return may_be_executed((folder.empty() ? "." : folder) + "/" + name);
  });
}

template <class Names>
bool has(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string missing_first(const std::string& word) {
  const std::string shown = excerpt(word);
  if (word.find('/') == std::string::npos)
    return has(kOfShell, word) || is_on_path(word)
               ? ""
               : fmt::format("there is no {} in the directories of PATH", shown);
  if (::access(word.c_str(), F_OK) != 0) return fmt::format("{} does not exist", shown);
  if (!is_file(word)) return fmt::format("{} is a directory", shown);
  if (::access(word.c_str(), X_OK) != 0)
    return fmt::format("{} may not be executed (chmod +x {})", shown, shell_word(word));
  return {};
}

bool is_interpreter(const std::string& word) {
  std::string name = word.substr(word.rfind('/') + 1);
  if (name.starts_with("python3.")) name = "python3";
  return has(kInterpreters, name);
}

}  // namespace

std::string missing_program(const std::string& command) {
  const std::vector<std::string> lines = split(std::string(trim(command)), '\n');
  if (lines.size() != 1) return {};
  std::vector<std::string> words;
  for (const std::string& word : split(lines[0], ' '))
    if (!word.empty()) words.push_back(word);
  if (words.size() > 1 && words[0] == "exec") words.erase(words.begin());
  if (words.empty() || !is_plain(words[0])) return {};
  if (std::string why = missing_first(words[0]); !why.empty()) return why;
  const bool has_script = words.size() > 1 && is_interpreter(words[0]) && is_plain(words[1]) &&
                          !words[1].starts_with('-');
  if (!has_script || ::access(words[1].c_str(), F_OK) == 0) return {};
  return fmt::format("{} does not exist", excerpt(words[1]));
}

}  // namespace sftrun::reward
