#include "sftrun/core/build_id.h"

#include <dlfcn.h>
#include <elf.h>
#include <fmt/format.h>
#include <link.h>

#include <cstring>
#include <filesystem>

namespace sftrun {
namespace {

struct Search {
  uintptr_t address = 0;
  std::string found;
};

/// The GNU_BUILD_ID note in a segment of notes.
std::string note_in(const char* notes, size_t size) {
  while (size >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) note;
    std::memcpy(&note, notes, sizeof note);
    const auto aligned = [](size_t bytes) { return (bytes + 3) / 4 * 4; };
    const size_t whole = sizeof note + aligned(note.n_namesz) + aligned(note.n_descsz);
    if (whole > size) return {};
    const char* name = notes + sizeof note;
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && std::memcmp(name, "GNU", 4) == 0) {
      std::string id;
      for (size_t i = 0; i < note.n_descsz; ++i)
        id += fmt::format("{:02x}", static_cast<unsigned char>(name[4 + i]));
      return id;
    }
    notes += whole;
    size -= whole;
  }
  return {};
}

int look_at(dl_phdr_info* info, size_t, void* data) {
  auto& search = *static_cast<Search*>(data);
  bool is_ours = false;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& header = info->dlpi_phdr[i];
    const uintptr_t begin = info->dlpi_addr + header.p_vaddr;
    is_ours = is_ours || (header.p_type == PT_LOAD && search.address >= begin &&
                          search.address < begin + header.p_memsz);
  }
  if (!is_ours) return 0;
  for (int i = 0; i < info->dlpi_phnum && search.found.empty(); ++i) {
    const auto& header = info->dlpi_phdr[i];
    if (header.p_type != PT_NOTE) continue;
    search.found =
        // NOLINTNEXTLINE(performance-no-int-to-ptr): the addresses of the linker are integers
        note_in(reinterpret_cast<const char*>(info->dlpi_addr + header.p_vaddr), header.p_memsz);
  }
  return 1;
}

std::string file_of(const void* address) {
  Dl_info info{};
  if (dladdr(address, &info) == 0) return "unknown";
  std::error_code ignored;
  const std::filesystem::path path = info.dli_fname[0] == '/' ? info.dli_fname : "/proc/self/exe";
  return fmt::format("{} {} {}", path.string(), std::filesystem::file_size(path, ignored),
                     std::filesystem::last_write_time(path, ignored).time_since_epoch().count());
}

std::string find_build_id() {
  const void* address = reinterpret_cast<const void*>(&build_id);
  Search search{.address = reinterpret_cast<uintptr_t>(address)};
  dl_iterate_phdr(look_at, &search);
  return search.found.empty() ? file_of(address) : search.found;
}

}  // namespace

const std::string& build_id() {
  static const std::string id = find_build_id();
  return id;
}

}  // namespace sftrun
