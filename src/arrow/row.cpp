#include <arrow/array.h>
#include <arrow/array/util.h>
#include <arrow/extension_type.h>
#include <arrow/scalar.h>
#include <arrow/type_traits.h>
#include <arrow/util/float16.h>

#include <algorithm>
#include <new>
#include <set>

#include "readers.h"
#include "sftrun/core/error.h"
#include "sftrun/core/exact_json.h"
#include "sftrun/core/json_depth.h"
#include "sftrun/core/read_limits.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/utf8.h"

namespace sftrun::arrow_readers {
namespace {

/// Reads the values of one row, column by column, as Python's to_pylist() has them.
class RowReader {
 public:
  explicit RowReader(const std::string& where) : where_(where) {}

  Json value(const arrow::Array& array, int64_t row) const {
    if (array.IsNull(row)) return nullptr;
    switch (array.type_id()) {
      case arrow::Type::BOOL:
        return static_cast<const arrow::BooleanArray&>(array).Value(row);
      case arrow::Type::STRING:
        return text(static_cast<const arrow::BinaryArray&>(array).GetView(row));
      case arrow::Type::BINARY:
        return bytes(static_cast<const arrow::BinaryArray&>(array).GetView(row));
      case arrow::Type::LARGE_STRING:
        return text(static_cast<const arrow::LargeBinaryArray&>(array).GetView(row));
      case arrow::Type::LARGE_BINARY:
        return bytes(static_cast<const arrow::LargeBinaryArray&>(array).GetView(row));
      case arrow::Type::STRING_VIEW:
        return text(static_cast<const arrow::BinaryViewArray&>(array).GetView(row));
      case arrow::Type::BINARY_VIEW:
        return bytes(static_cast<const arrow::BinaryViewArray&>(array).GetView(row));
      case arrow::Type::LIST:
        return list(*static_cast<const arrow::ListArray&>(array).value_slice(row));
      case arrow::Type::LARGE_LIST:
        return list(*static_cast<const arrow::LargeListArray&>(array).value_slice(row));
      case arrow::Type::FIXED_SIZE_LIST:
        return list(*static_cast<const arrow::FixedSizeListArray&>(array).value_slice(row));
      case arrow::Type::LIST_VIEW:
        return list(*static_cast<const arrow::ListViewArray&>(array).value_slice(row));
      case arrow::Type::LARGE_LIST_VIEW:
        return list(*static_cast<const arrow::LargeListViewArray&>(array).value_slice(row));
      case arrow::Type::STRUCT:
        return structure(static_cast<const arrow::StructArray&>(array), row);
      case arrow::Type::MAP:
        return map(static_cast<const arrow::MapArray&>(array), row);
      case arrow::Type::DICTIONARY: {
        const auto& dictionary = static_cast<const arrow::DictionaryArray&>(array);
        return value(*dictionary.dictionary(), dictionary.GetValueIndex(row));
      }
      case arrow::Type::DENSE_UNION: {
        const auto& variants = static_cast<const arrow::DenseUnionArray&>(array);
        return value(*variants.field(variants.child_id(row)), variants.value_offset(row));
      }
      case arrow::Type::SPARSE_UNION: {
        const auto& variants = static_cast<const arrow::SparseUnionArray&>(array);
        return value(*variants.field(variants.child_id(row)), row);
      }
      case arrow::Type::EXTENSION:
        return extension(static_cast<const arrow::ExtensionArray&>(array), row);
      case arrow::Type::UINT64:
        return static_cast<const arrow::UInt64Array&>(array).Value(row);
      case arrow::Type::HALF_FLOAT:
        return arrow::util::Float16::FromBits(
                   static_cast<const arrow::HalfFloatArray&>(array).Value(row))
            .ToDouble();
      case arrow::Type::FLOAT:
        return static_cast<double>(static_cast<const arrow::FloatArray&>(array).Value(row));
      case arrow::Type::DOUBLE:
        return static_cast<const arrow::DoubleArray&>(array).Value(row);
      default:
        return scalar(array, row);
    }
  }

 private:
  Json text(std::string_view bytes) const {
    if (is_valid_utf8(bytes)) return std::string(bytes);
    throw DataError("a text is not valid UTF-8", where_, "write the file again, in UTF-8");
  }

  /// Columns of bytes hold texts, or files as images.
  static Json bytes(std::string_view bytes) {
    return is_valid_utf8(bytes) ? Json(std::string(bytes)) : json_of_bytes(bytes);
  }

  Json list(const arrow::Array& items) const {
    Json json = Json::array();
    for (int64_t i = 0; i < items.length(); ++i) json.push_back(value(items, i));
    return json;
  }

  Json structure(const arrow::StructArray& array, int64_t row) const {
    Json json = Json::object();
    for (int i = 0; i < array.num_fields(); ++i) {
      if (Json item = value(*array.field(i), row); !item.is_null())
        json[array.struct_type()->field(i)->name()] = std::move(item);
    }
    return json;
  }

  Json map(const arrow::MapArray& array, int64_t row) const {
    Json json = Json::object();
    for (int64_t i = array.value_offset(row); i < array.value_offset(row + 1); ++i) {
      const Json key = value(*array.keys(), i);
      json[key.is_string() ? key.get<std::string>() : to_json_text(key)] = value(*array.items(), i);
    }
    return json;
  }

  Json extension(const arrow::ExtensionArray& array, int64_t row) const {
    const std::string name =
        static_cast<const arrow::ExtensionType&>(*array.type()).extension_name();
    Json stored = value(*array.storage(), row);
    if (name == "arrow.bool8" && stored.is_number()) return stored != 0;
    const bool is_json = name == "arrow.json" && stored.is_string();
    return is_json ? parsed(stored.get_ref<const std::string&>()) : stored;
  }

  Json parsed(const std::string& text) const {
    constexpr size_t kMaxDepth = 512;  // as of JSON lines
    const bool is_modest = text.find('\0') == std::string::npos && is_modest_json(text, kMaxDepth);
    try {
      if (is_modest) return parse_exact_json(text);
    } catch (const Json::exception&) {  // the error below says more
    }
    throw DataError("a value of the type JSON cannot be read: " + excerpt(text), where_,
                    "write the file again");
  }

  /// Integers and decimals become numbers; times and similar types become strings as Arrow prints
  /// them.
  Json scalar(const arrow::Array& array, int64_t row) const {
    const auto found = array.GetScalar(row);
    if (!found.ok()) throw DataError(found.status().message(), where_);
    if (array.type_id() == arrow::Type::RUN_END_ENCODED) {
      const auto& run = *static_cast<const arrow::RunEndEncodedScalar&>(**found).value;
      return value(**arrow::MakeArrayFromScalar(run, 1), 0);
    }
    const std::string printed = (*found)->ToString();
    const bool is_number = arrow::is_integer(array.type_id()) || arrow::is_decimal(array.type_id());
    return is_number ? exact_number(printed) : text(printed);  // bytes are printed as they are
  }

  const std::string& where_;
};

/// Rows of a batch, and bad rows among them.
class TableBlock final : public data::RecordBlock {
 public:
  /// @param bad in order; with the batch's rows their numbers are consecutive
  TableBlock(std::shared_ptr<arrow::RecordBatch> batch, int64_t first_number,
             std::vector<BadRow> bad)
      : batch_(std::move(batch)), first_number_(first_number), bad_(std::move(bad)) {}
  size_t size() const override {
    return bad_.size() + (batch_ ? static_cast<size_t>(batch_->num_rows()) : 0);
  }
  int64_t number(size_t index) const override {
    return first_number_ + static_cast<int64_t>(index);
  }
  Json parse(size_t index, const std::string& where) const override {
    const int64_t wanted = number(index);
    const auto next =
        std::lower_bound(bad_.begin(), bad_.end(), wanted,
                         [](const BadRow& row, int64_t number) { return row.number < number; });
    if (next != bad_.end() && next->number == wanted) {
      throw DataError(next->message, where, kQuoteFix);
    }
    return row_of(*batch_, static_cast<int64_t>(index) - (next - bad_.begin()), where);
  }

 private:
  std::shared_ptr<arrow::RecordBatch> batch_;  // null: bad rows alone
  int64_t first_number_;
  std::vector<BadRow> bad_;
};

class TableReader final : public data::RecordReader {
 public:
  explicit TableReader(TableSource source) : source_(std::move(source)) {}

  std::unique_ptr<data::RecordBlock> next() override {
    constexpr int64_t kBlockRows = 2048;
    while (!batch_ || offset_ == batch_->num_rows()) {
      batch_ = read_batch();
      offset_ = 0;
      if (!batch_) return bad_.empty() ? nullptr : block_of(nullptr);
    }
    auto slice = batch_->Slice(offset_, kBlockRows);
    offset_ += slice->num_rows();
    return block_of(std::move(slice));
  }
  bool is_table() const override { return true; }
  bool has_text_cells() const override { return source_.has_text_cells; }
  uint64_t file_position() const override { return source_.file_position(); }

 private:
  /// The next rows, with the bad ones before and between them; without rows, those that are left.
  std::unique_ptr<TableBlock> block_of(std::shared_ptr<arrow::RecordBatch> rows) {
    const int64_t first = num_rows_ + 1;
    int64_t end = first + (rows ? rows->num_rows() : 0);
    size_t count = 0;
    for (; count < bad_.size() && (!rows || bad_[count].number < end); ++count, ++end) {
      const int64_t next = first + static_cast<int64_t>(count);
      bad_[count].number = rows ? std::max(bad_[count].number, next) : next;
    }
    const auto behind = bad_.begin() + static_cast<ptrdiff_t>(count);
    std::vector<BadRow> among(bad_.begin(), behind);
    bad_.erase(bad_.begin(), behind);
    num_rows_ = end - 1;
    return std::make_unique<TableBlock>(std::move(rows), first, std::move(among));
  }

  std::shared_ptr<arrow::RecordBatch> read_batch() {
    try {
      auto batch = value_of(source_.next(), source_.file);
      if (source_.take_bad_rows) {
        for (BadRow& row : source_.take_bad_rows()) bad_.push_back(std::move(row));
      }
      if (!batch) return nullptr;
      if (num_rows_ == 0) require_fields(*batch->schema());
      // Arrow does not validate the lengths and indices in a file, which may point outside it.
      check(batch->ValidateFull(), source_.file);
      return batch;
    } catch (const Error&) {
      throw;
    } catch (const std::bad_alloc&) {
      fail_for_memory(source_.file);
    } catch (const std::exception& error) {  // parquet::ParquetException
      fail(error.what(), source_.file);
    }
  }

  void require_fields(const arrow::Schema& schema) const {
    const size_t most = ReadLimits().columns;
    if (count_names(schema.fields()) > most)
      throw DataError(fmt::format("the table has more than {} columns", most),
                      source_.file.string(), "keep those that data.fields or the format names");
    require_different_names(schema.fields(), "");
  }

  /// Which of two columns is meant nobody can know; datasets refuses them, too. Those without a name
  /// are empty cells of a spreadsheet's header.
  /// @param above the column that has these fields; empty: they are the columns
  void require_different_names(const arrow::FieldVector& fields, const std::string& above) const {
    std::set<std::string_view> seen;
    for (const auto& field : fields) {
      const std::string& name = field->name();
      const bool is_new = seen.insert(name).second;
      if (!is_new && !name.empty()) refuse_two(name, above);
      require_different_fields(*field->type(), above.empty() ? name : above + "." + name);
    }
  }

  /// Of the structures in a column's values.
  void require_different_fields(const arrow::DataType& type, const std::string& column) const {
    if (type.id() == arrow::Type::STRUCT) return require_different_names(type.fields(), column);
    if (type.id() == arrow::Type::EXTENSION)
      return require_different_fields(
          *static_cast<const arrow::ExtensionType&>(type).storage_type(), column);
    if (type.id() == arrow::Type::DICTIONARY)
      return require_different_fields(*static_cast<const arrow::DictionaryType&>(type).value_type(),
                                      column);
    for (const auto& field : type.fields()) require_different_fields(*field->type(), column);
  }

  [[noreturn]] void refuse_two(const std::string& name, const std::string& above) const {
    throw DataError(above.empty() ? fmt::format("two columns are named `{}`", excerpt(name))
                                  : fmt::format("two fields of the column `{}` are named `{}`",
                                                excerpt(above), excerpt(name)),
                    source_.file.string(), "rename one of them, or remove it");
  }

  /// Number of columns and of fields nested in them.
  size_t count_names(const arrow::FieldVector& fields) const {
    size_t count = fields.size();
    for (const auto& field : fields) {
      if (!is_valid_utf8(field->name())) fail("a column's name is not valid UTF8", source_.file);
      count += count_names(field->type()->fields());
    }
    return count;
  }

  TableSource source_;
  std::shared_ptr<arrow::RecordBatch> batch_;
  std::vector<BadRow> bad_;  // that stand behind the rows given out
  int64_t offset_ = 0, num_rows_ = 0;
};

}  // namespace

Json row_of(const arrow::RecordBatch& batch, int64_t row, const std::string& where) {
  const RowReader reader(where);
  Json record = Json::object();
  for (int i = 0; i < batch.num_columns(); ++i) {
    Json value = reader.value(*batch.column(i), row);
    const std::string& name = batch.column_name(i);
    // A column of images says that `<image>` stands for one, also in a row without images.
    if (!value.is_null() || name == "images" || name == "image") record[name] = std::move(value);
  }
  return record;
}

std::unique_ptr<data::RecordReader> read_batches(TableSource source) {
  return std::make_unique<TableReader>(std::move(source));
}

}  // namespace sftrun::arrow_readers
