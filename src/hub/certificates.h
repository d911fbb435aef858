#pragma once

#include <string>

namespace sftrun::hub {

/// The file of the authorities that this system trusts, for a libcurl that knows none, as that of
/// packages, which run on systems with other files. Empty where libcurl has its own, or none is found.
std::string system_ca_bundle();

}  // namespace sftrun::hub
