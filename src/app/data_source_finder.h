#pragma once

#include <string>

#include "sftrun/config/run_config.h"
#include "sftrun/core/data_splits.h"

/// Data sets on a hub that data.train and data.val name.
namespace sftrun::app {

/// hf://datasets/owner/name…, or owner/name without the extension of a data file. Local files come
/// first.
bool may_be_on_hub(const std::string& path);

/// Replaces a name on a hub by the local folder or file: from the cache, or downloaded.
/// @param where what names it, for errors   @throws as hub::get_dataset
void find_data_source(config::DataSource& source, SplitRole role, const std::string& where,
                      bool quiet);
/// Replaces each name on a hub by the local folder or file: from the cache, or downloaded. @throws
/// as hub::get_dataset, naming the key's place
void find_data(config::LoadedConfig& loaded, bool quiet);

}  // namespace sftrun::app
