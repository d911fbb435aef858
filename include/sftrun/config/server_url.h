#pragma once

#include <string>
#include <string_view>

namespace sftrun::config {

/// Whether an address may have a query ("?key=value"), or paths are put behind it.
enum class UrlEnd { kQuery, kPath };

/// What is wrong with the address of a server, in words behind it: "which names no host"; empty: nothing.
/// Names and passwords are faults, since settings stand in reports and model cards.
std::string fault_of_server_url(std::string_view url, UrlEnd end);

/// The address without a name and password in it, for messages.
std::string without_credentials(std::string_view url);

}  // namespace sftrun::config
