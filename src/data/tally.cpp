#include "tally.h"

#include "sftrun/core/strings.h"

namespace sftrun::data {

void Tally::add(int64_t number, const std::string& place) {
  if (number == 0) return;
  count_ += number;
  if (!places_.empty() && places_.back() == place) return;
  if (places_.size() < kShown)
    places_.push_back(place);
  else
    more_ = true;
}

std::string Tally::places() const {
  return join(places_, ", ") + (more_ ? ", …" : "");
}

}  // namespace sftrun::data
