#include "sftrun/train/lost_media.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "sftrun/core/log.h"
#include "sftrun/core/strings.h"

namespace sftrun::train {
namespace {

using Json = nlohmann::ordered_json;

/// The example of a document by its key.
int64_t example_of_document(const MediaRecords& records, int64_t document) {
  for (const data::Bin& bin : records.bins) {
    if (document < std::ssize(bin)) return bin[static_cast<size_t>(document)];
    document -= std::ssize(bin);
  }
  invariant_failed(__FILE__, __LINE__, "no such document");
}

bool has_media(const MediaRecords& records) {
  for (const data::Bin& bin : records.bins)
    for (const int64_t example : bin)
      if (records.examples.stored(example).num_media > 0) return true;
  return false;
}

Json to_json(const std::vector<data::MediaError>& errors) {
  Json list = Json::array();
  for (const data::MediaError& error : errors)
    list.push_back({error.document(), error.message(), error.where(), error.fix()});
  return list;
}

/// Of all ranks, in the order of documents; ranks with the same documents may differ.
std::vector<data::MediaError> exchanged(parallel::Communicator& comm,
                                        const std::vector<data::MediaError>& own) {
  if (comm.world_size() == 1) return own;
  const auto counts = comm.all_gather({static_cast<double>(own.size())});
  const auto has_any = [](const std::vector<double>& of_rank) { return of_rank[0] > 0; };
  if (std::none_of(counts.begin(), counts.end(), has_any)) return {};
  std::vector<data::MediaError> all;
  for (const std::string& text :
       comm.all_gather_texts(to_json(own).dump(-1, ' ', false, Json::error_handler_t::replace)))
    for (const Json& error : Json::parse(text))
      all.emplace_back(DataError(error.at(1).get<std::string>(), error.at(2).get<std::string>(),
                                 error.at(3).get<std::string>()),
                       error.at(0).get<int64_t>());
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.document() < b.document(); });
  return all;
}

/// Adds examples to those that are lost; the batch may have each several times.
void lose(const MediaRecords& records, std::set<int64_t> examples) {
  std::erase_if(examples, [&](int64_t example) { return records.lost.contains(example); });
  if (records.label_tokens != nullptr)
    *records.label_tokens -=
        data::counts_among(records.examples, records.bins, examples).label_tokens;
  records.lost.merge(examples);
}

}  // namespace

DataError LostMedia::error_of(const data::MediaError& error, const MediaRecords& records) const {
  const int64_t example = example_of_document(records, error.document());
  return data::error_in_record(error, records.place_of(example), !is_tolerant_);
}

std::set<int64_t> LostMedia::known_of(const MediaRecords& records) const {
  std::set<int64_t> examples;
  if (known_.empty()) return examples;
  for (const data::Bin& bin : records.bins)
    for (const int64_t example : bin)
      if (records.examples.stored(example).num_media > 0 &&
          known_.contains(records.place_of(example)))
        examples.insert(example);
  return examples;
}

void LostMedia::add_known(const MediaRecords& records) const {
  lose(records, known_of(records));
}

void LostMedia::warn(const data::MediaError& error, const std::string& place,
                     const std::string& when) {
  const std::string file = error.where() == data::kBytesInRecord ? place : error.where();
  if (!said_.insert(file).second || comm_.rank() != 0) return;
  log::warn(
      "{}: {}: {}, {}; something blank stands in its place, and no token of the record is trained "
      "on (data.bad_records: skip)",
      when, excerpt(error.message()), place, error.where());
}

/// A disk that is gone is no reason to train on nothing.
void LostMedia::count_in_a_row(const MediaRecords& records) {
  constexpr int64_t kHopelessInARow = 100;
  int64_t with_media = 0, lost = 0;
  for (const data::Bin& bin : records.bins) {
    for (const int64_t example : bin) {
      if (records.examples.stored(example).num_media == 0) continue;
      ++with_media;
      lost += records.lost.contains(example) ? 1 : 0;
    }
  }
  num_in_a_row_ = lost == with_media ? num_in_a_row_ + lost : 0;
  if (num_in_a_row_ < kHopelessInARow || !first_) return;
  throw DataError(fmt::format("none of the last {} records with images or features can be used; "
                              "for one of them: {}",
                              num_in_a_row_, first_->message()),
                  first_->where(), first_->fix());
}

bool LostMedia::agree(const MediaRecords& records, const std::string& when) {
  if (!is_tolerant_ || !has_media(records)) return false;
  const std::vector<data::MediaError> errors = exchanged(comm_, faults_.take());
  for (const data::MediaError& error : errors) {
    const std::string place = records.place_of(example_of_document(records, error.document()));
    known_.insert(place);
    first_ = error_of(error, records);
    warn(error, place, when);
  }
  if (errors.empty()) {
    count_in_a_row(records);
    return false;
  }
  std::set<int64_t> examples = known_of(records);
  // Not every sequence of a record with images has one.
  for (const data::MediaError& error : errors)
    examples.insert(example_of_document(records, error.document()));
  lose(records, std::move(examples));
  return true;
}

}  // namespace sftrun::train
