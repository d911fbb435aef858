#pragma once

#include <string>

#include "sftrun/config/run_config.h"

/// Data that data.train and data.val name on a hub.
namespace sftrun::app {

/// hf://datasets/owner/name…, or owner/name without the extension of a data file. Files here come
/// first.
bool may_be_on_hub(const std::string& path);

/// Puts the local folder or file in the place of each name on a hub: looked up in the cache, else
/// downloaded. @throws as hub::get_dataset, naming the key's place
void find_data(config::LoadedConfig& loaded, bool quiet);

}  // namespace sftrun::app
