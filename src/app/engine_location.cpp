#include "engine_location.h"

#include <elf.h>

#include <cstdlib>
#include <cstring>

#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"

namespace sftrun::app {
namespace {

constexpr const char* kEngineName = "libsftrun_engine.so";

/// Bounds-checked reads from an ELF file (System V ABI, chapters 4 and 5).
class ElfFile {
 public:
  explicit ElfFile(const std::filesystem::path& path) : file_(path) {}

  /// The RPATH and RUNPATH entries, colon-separated as stored.
  std::vector<std::string> run_paths() const {
    std::vector<std::string> found;
    Elf64_Ehdr header;
    if (!read(0, header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
        header.e_ident[EI_CLASS] != ELFCLASS64) {
      return found;
    }
    for (int i = 0; i < header.e_shnum; ++i) {
      Elf64_Shdr section, strings;
      if (!read(header.e_shoff + static_cast<uint64_t>(i) * sizeof section, section)) return found;
      if (section.sh_type != SHT_DYNAMIC) continue;
      if (!read(header.e_shoff + static_cast<uint64_t>(section.sh_link) * sizeof strings, strings))
        return found;
      collect(section, strings, found);
    }
    return found;
  }

 private:
  void collect(const Elf64_Shdr& section, const Elf64_Shdr& strings,
               std::vector<std::string>& found) const {
    for (uint64_t at = 0; at + sizeof(Elf64_Dyn) <= section.sh_size; at += sizeof(Elf64_Dyn)) {
      Elf64_Dyn entry;
      if (!read(section.sh_offset + at, entry) || entry.d_tag == DT_NULL) return;
      if (entry.d_tag != DT_RUNPATH && entry.d_tag != DT_RPATH) continue;
      found.push_back(text_at(strings.sh_offset + entry.d_un.d_val));
    }
  }

  template <class T>
  bool read(uint64_t offset, T& value) const {
    const auto bytes = file_.bytes();
    if (offset > bytes.size() || bytes.size() - offset < sizeof(T)) return false;
    std::memcpy(&value, bytes.data() + offset, sizeof(T));
    return true;
  }

  std::string text_at(uint64_t offset) const {
    const auto bytes = file_.bytes();
    if (offset >= bytes.size()) return {};
    const char* begin = reinterpret_cast<const char*>(bytes.data() + offset);
    return {begin, strnlen(begin, bytes.size() - offset)};
  }

  MappedFile file_;
};

void add_paths(const std::string& list, const std::filesystem::path& origin,
               std::vector<std::filesystem::path>& paths) {
  for (std::string path : split(list, ':')) {
    for (const std::string token : {"$ORIGIN", "${ORIGIN}"}) {
      if (const size_t at = path.find(token); at != std::string::npos)
        path.replace(at, token.size(), origin.string());
    }
    if (!path.empty()) paths.emplace_back(path);
  }
}

}  // namespace

std::filesystem::path executable_path() {
  std::error_code failure;
  const std::filesystem::path path = std::filesystem::read_symlink("/proc/self/exe", failure);
  if (failure)
    throw DeviceError("cannot find this program's own file", "/proc/self/exe", "mount /proc");
  return path;
}

std::vector<std::filesystem::path> engine_candidates() {
  if (const char* given = std::getenv("SFTRUN_ENGINE"); given != nullptr && *given != '\0')
    return {given};
  const std::filesystem::path directory = executable_path().parent_path();
  return {(directory.parent_path() / "lib" / kEngineName), directory / kEngineName};
}

std::optional<std::filesystem::path> find_engine() {
  for (const std::filesystem::path& candidate : engine_candidates()) {
    if (leads_to_file(candidate)) return candidate;
  }
  return std::nullopt;
}

bool has_cuda_kernels() {
  const auto engine = find_engine();
  return engine && leads_to_file(engine->parent_path() / "libsftrun_cuda.so");
}

std::vector<std::filesystem::path> library_directories(const std::filesystem::path& library) {
  std::vector<std::filesystem::path> paths;
  const std::filesystem::path origin = absolute_path(library).parent_path();
  if (const char* list = std::getenv("LD_LIBRARY_PATH")) add_paths(list, origin, paths);
  for (const std::string& list : ElfFile(library).run_paths()) add_paths(list, origin, paths);
  return paths;
}

}  // namespace sftrun::app
