#pragma once

#include "sftrun/config/named_files.h"

namespace sftrun::foreign {

/// Of config::ForeignFiles.
config::NamedFiles read_named_files(
    const config::AssignmentLayers& layers,
    const std::function<std::filesystem::path(const std::string&)>& located,
    config::Problems& problems);

}  // namespace sftrun::foreign
