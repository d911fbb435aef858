#pragma once

#include <filesystem>
#include <functional>
#include <string>

namespace sftrun {

/// A directory that is there as a whole or not at all: `write` makes and fills one beside it,
/// which then takes its name.
/// @param target absent or empty   @param what it is, for errors: "the merged model"
/// @throws DeviceError naming the target
void write_new_directory(const std::filesystem::path& target, const std::string& what,
                         const std::function<void(const std::filesystem::path&)>& write);

}  // namespace sftrun
