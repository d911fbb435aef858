#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "sftrun/hub/upload.h"

/// Which files of a run are published, and what is written in place of what names this machine.
namespace sftrun::app {

/// What to publish, as the command line says it.
struct PublicationAsked {
  std::filesystem::path run;   ///< a run directory, an adapter, a model, a folder or file of merge
  std::string what = "auto";   ///< adapter, merged, gguf; auto: the run's result
  std::filesystem::path from;  ///< what `sftrun merge` wrote; empty: merged/ in the run
  std::string base;            ///< the base model's name on the hub; empty: as the adapter says
};

struct Publication {
  std::string what;  ///< adapter, model, merged, gguf
  std::string name;  ///< for the repository, from the run's name
  std::filesystem::path source;
  std::vector<hub::LocalFile> files;
  std::vector<std::string> left_out;  ///< entries of `source` that are not published, sorted
  std::vector<std::string> warnings;  ///< what a user should know before it is public
};

/// Reads the small files, and the sizes of others.
/// @throws DataError  no such result, a link that leads out of it, a file that has a token
/// @throws ConfigError  flags that do not fit what is there
Publication find_publication(const PublicationAsked& asked);

}  // namespace sftrun::app
