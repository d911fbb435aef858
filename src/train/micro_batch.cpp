#include "sftrun/train/micro_batch.h"

namespace sftrun::train {

data::Batch micro_batch_of(const parallel::Mesh& mesh, const data::ExampleStore& examples,
                           const std::vector<data::Bin>& bins, const MicroBatchPlace& place) {
  const int64_t rank = place.is_same_on_all ? 0 : mesh.dp_rank();
  const int64_t first = (place.micro_step * mesh.dp_size() + rank) * place.size;
  return data::make_batch(examples, bins, first, place.size);
}

}  // namespace sftrun::train
