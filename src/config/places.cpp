#include "sftrun/config/places.h"

namespace sftrun::config {

std::string place_of(const Places& places, const std::string& key) {
  const auto found = places.find(key);
  return found == places.end() ? "" : found->second;
}

std::optional<Error> with_place(const Error& error, const Places& places) {
  const std::string key = error.where().substr(0, error.where().find(':')),
                    place = place_of(places, key);
  if (place.empty()) return std::nullopt;
  const bool has_key = place.starts_with(key);  // from the command line
  return Error(error.code(), error.message(),
               has_key ? place : fmt::format("{}, {}", error.where(), place), error.fix());
}

}  // namespace sftrun::config
