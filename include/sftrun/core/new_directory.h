#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

namespace sftrun {

/// What becomes of a directory that has the target's name already.
enum class Existing : uint8_t {
  kMustBeEmpty,
  kReplace,  ///< it is removed once the new one has its name
};

/// A directory that is there as a whole or not at all: `write` makes and fills one beside it,
/// which then takes its name.
/// @param target absent or empty, unless it is to be replaced
/// @param what it is, for errors: "the merged model"
/// @throws DeviceError naming the target
void write_new_directory(const std::filesystem::path& target, const std::string& what,
                         const std::function<void(const std::filesystem::path&)>& write,
                         Existing existing = Existing::kMustBeEmpty);

}  // namespace sftrun
