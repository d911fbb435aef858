#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

/// Removes what names this machine from files that are published, and finds tokens in them.
namespace sftrun::app {

/// A model on the hub.
struct BaseOnHub {
  std::string name, revision;  ///< "owner/name"; the revision may be empty
};

/// The hub's name of a model that a file names: owner/name itself, or the path of a snapshot in
/// Hugging Face's cache. nullopt: a path of this machine, or nothing.
std::optional<BaseOnHub> base_on_hub(const std::string& model);

/// Texts with their new ones.
struct Replacement {
  std::string from, to;
};

/// What replaces the paths of this machine in a publication.
struct LocalPaths {
  std::string model;               ///< the base, as the adapter's files name it; empty: no path
  std::optional<BaseOnHub> known;  ///< what it is on the hub
  std::vector<Replacement> texts;  ///< longest first
};

/// @param base what a user says that it is on the hub; empty: what the files say
/// @throws ConfigError for a base that is no name on the hub
LocalPaths local_paths_of(const std::filesystem::path& folder, const std::string& base);

/// The text with `paths.texts` replaced; of adapter_config.json, sftrun_base.json and config.json also
/// the names of models that are paths.
std::string published_text(const std::string& file_name, const std::string& text,
                           const LocalPaths& paths);

/// The kind of secret that a text has ("a Hugging Face token"); empty: none was found.
/// @param token of this user; may be empty
std::string secret_in(std::string_view text, const std::string& token);

/// A path of this machine that a text still has: below the user's home directory, or a folder that
/// is private to a user on common systems. Empty: none.
std::string local_path_in(std::string_view text);

}  // namespace sftrun::app
