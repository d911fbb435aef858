#pragma once

#include <map>
#include <optional>
#include <string>

#include "sftrun/core/error.h"

/// Where the settings of a run were written, for errors that are found when the model and the data
/// are read.
namespace sftrun::config {

/// Key -> "run.yaml:12:3" or "train.batch_size=4 from the command line"; without keys that have
/// their defaults.
using Places = std::map<std::string, std::string>;

/// Where `key` ("data.train") was set; empty if it has its default.
std::string place_of(const Places& places, const std::string& key);

/// The error with the place of its key: "at train.optimizer" becomes "at train.optimizer,
/// run.yaml:4:14".   @return nullopt if its `where` does not begin with a key that is set
std::optional<Error> with_place(const Error& error, const Places& places);

/// What `body` returns.   @throws what `body` throws; an Error as `with_place` has it
template <typename Body>
auto with_places(const Places& places, const Body& body) {
  try {
    return body();
  } catch (const Error& error) {
    if (const auto placed = with_place(error, places)) throw Error(*placed);
    throw;
  }
}

}  // namespace sftrun::config
