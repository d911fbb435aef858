#include <arrow/extension/bool8.h>
#include <arrow/extension/json.h>

#include <arrow/array/array_run_end.h>
#include <arrow/array/builder_binary.h>
#include <arrow/type.h>

#include "arrow_files.h"
#include "sftrun/core/read_limits.h"

namespace sftrun::arrow_readers {
namespace {

/// The values of a column; "-" where the record has none.
std::vector<std::string> values_of(const std::shared_ptr<arrow::Array>& array) {
  const auto batch = batch_of({{"v", array}});
  std::vector<std::string> values;
  for (int64_t row = 0; row < batch->num_rows(); ++row) {
    const Json record = row_of(*batch, row, "here");
    values.push_back(record.contains("v") ? to_json_text(record.at("v")) : "-");
  }
  return values;
}
std::vector<std::string> values_of(const std::shared_ptr<arrow::DataType>& type,
                                   const std::string& values) {
  return values_of(array_of(type, values));
}
using Values = std::vector<std::string>;

TEST(Row, NumbersAreWhatTheFileSays) {
  EXPECT_EQ(values_of(arrow::boolean(), "[true, false, null]"), (Values{"true", "false", "-"}));
  EXPECT_EQ(values_of(arrow::int8(), "[-128, 127]"), (Values{"-128", "127"}));
  EXPECT_EQ(values_of(arrow::int64(), "[-9223372036854775808, 9223372036854775807]"),
            (Values{"-9223372036854775808", "9223372036854775807"}));
  EXPECT_EQ(values_of(arrow::uint64(), "[18446744073709551615, 0]"),
            (Values{"18446744073709551615", "0"}));
  EXPECT_EQ(values_of(arrow::float64(), "[0.1, 3, 1e22, -0.0]"),
            (Values{"0.1", "3.0", "1e+22", "-0.0"}));
  EXPECT_EQ(values_of(arrow::float32(), "[0.5, 3]"), (Values{"0.5", "3.0"}));
  EXPECT_EQ(values_of(arrow::float16(), "[0.5, 65504]"), (Values{"0.5", "65504.0"}));
  EXPECT_EQ(values_of(arrow::decimal128(10, 2), R"(["1.50", "-0.05"])"), (Values{"1.50", "-0.05"}));
  EXPECT_EQ(values_of(arrow::decimal256(40, 0), R"(["1234567890123456789012345678901234567890"])"),
            (Values{"1234567890123456789012345678901234567890"}));
}

// In rows without images `<image>` in a text stands for one that is missing.
TEST(Row, ColumnsOfImagesStayWhereTheyAreNull) {
  const auto none = array_of(arrow::utf8(), "[null]");
  const auto batch = batch_of({{"image", none}, {"images", none}, {"other", none}});
  EXPECT_EQ(to_json_text(row_of(*batch, 0, "here")), R"({"image":null,"images":null})");
}

TEST(Row, TextsOfEveryKindOfColumn) {
  for (const auto& type : {arrow::utf8(), arrow::large_utf8(), arrow::utf8_view(), arrow::binary(),
                           arrow::large_binary(), arrow::binary_view()})
    EXPECT_EQ(values_of(type, R"(["a", "", null, "日本, longer than twelve"])"),
              (Values{"\"a\"", "\"\"", "-", "\"日本, longer than twelve\""}))
        << type->ToString();
  EXPECT_EQ(values_of(arrow::fixed_size_binary(2), R"(["ab"])"), (Values{"\"ab\""}));
}

TEST(Row, TextsThatAreNotUtf8AreAnErrorAtTheirRow) {
  arrow::StringBuilder builder;
  ok(builder.Append(std::string("\xFF\x00", 2)));
  const auto batch = batch_of({{"v", ok(builder.Finish())}});
  const DataError error = failure_of([&] { row_of(*batch, 0, "a.parquet, row 1"); });
  EXPECT_EQ(error.message(), "a text is not valid UTF-8");
  EXPECT_EQ(error.where(), "a.parquet, row 1");
  EXPECT_EQ(error.fix(), "write the file again, in UTF-8");
}

TEST(Row, BytesThatAreNoTextStayBytes) {
  const std::string bytes("\xFF\x00", 2);
  arrow::BinaryBuilder builder;
  ok(builder.Append(bytes));
  const auto batch = batch_of({{"v", ok(builder.Finish())}});
  const auto record = row_of(*batch, 0, "a.parquet, row 1");
  ASSERT_TRUE(is_bytes(record.at("v")));
  EXPECT_EQ(sftrun::bytes_of(record.at("v")), bytes);
}

TEST(Row, ListsKeepTheirNulls) {
  const auto item = arrow::int32();
  for (const auto& type : {arrow::list(item), arrow::large_list(item), arrow::list_view(item),
                           arrow::large_list_view(item)})
    EXPECT_EQ(values_of(type, "[[1, null, 3], [], null]"), (Values{"[1,null,3]", "[]", "-"}))
        << type->ToString();
  EXPECT_EQ(values_of(arrow::fixed_size_list(item, 2), "[[1, 2], null]"), (Values{"[1,2]", "-"}));
}

TEST(Row, StructuresLeaveOutTheirNulls) {
  const auto inner = arrow::struct_({arrow::field("z", arrow::int32())});
  const auto type = arrow::struct_({arrow::field("x", arrow::utf8()), arrow::field("y", inner)});
  EXPECT_EQ(values_of(type, R"([{"x": "a", "y": {"z": null}}, {"x": null, "y": null}, null])"),
            (Values{R"({"x":"a","y":{}})", "{}", "-"}));
  EXPECT_EQ(values_of(arrow::list(inner), R"([[{"z": 1}, null]])"), (Values{R"([{"z":1},null])"}));
}

TEST(Row, MapsAreObjectsByTheTextOfTheirKeys) {
  EXPECT_EQ(values_of(arrow::map(arrow::utf8(), arrow::float64()),
                      R"([[["a", 1], ["b", null]], [], null])"),
            (Values{R"({"a":1.0,"b":null})", "{}", "-"}));
  EXPECT_EQ(
      values_of(arrow::map(arrow::int64(), arrow::utf8()), R"([[[7, "x"]], [[8, "y"], [9, "z"]]])"),
      (Values{R"({"7":"x"})", R"({"8":"y","9":"z"})"}));
}

TEST(Row, EncodedColumnsHaveTheirValues) {
  EXPECT_EQ(values_of(arrow::dictionary(arrow::int8(), arrow::utf8()), R"(["x", null, "y", "x"])"),
            (Values{"\"x\"", "-", "\"y\"", "\"x\""}));
  const auto runs = ok(arrow::RunEndEncodedArray::Make(
      4, array_of(arrow::int32(), "[1, 3, 4]"), array_of(arrow::utf8(), R"(["a", null, "b"])")));
  EXPECT_EQ(values_of(runs), (Values{"\"a\"", "-", "-", "\"b\""}));
  const arrow::FieldVector variants = {arrow::field("n", arrow::int32()),
                                       arrow::field("s", arrow::utf8())};
  for (const auto& type : {arrow::dense_union(variants), arrow::sparse_union(variants)})
    EXPECT_EQ(values_of(type, R"([[0, 5], [1, "a"], [0, null], [1, "b"]])"),
              (Values{"5", "\"a\"", "-", "\"b\""}))
        << type->ToString();
  EXPECT_EQ(values_of(arrow::null(), "[null]"), (Values{"-"}));
}

TEST(Row, TimesAreTextsAsArrowPrintsThem) {
  EXPECT_EQ(values_of(arrow::timestamp(arrow::TimeUnit::SECOND), "[0]"),
            (Values{"\"1970-01-01 00:00:00\""}));
  EXPECT_EQ(values_of(arrow::timestamp(arrow::TimeUnit::MICRO, "UTC"), "[1000001]"),
            (Values{"\"1970-01-01 00:00:01.000001Z\""}));
  EXPECT_EQ(values_of(arrow::date32(), "[365]"), (Values{"\"1971-01-01\""}));
  EXPECT_EQ(values_of(arrow::time32(arrow::TimeUnit::SECOND), "[61]"), (Values{"\"00:01:01\""}));
}

TEST(Row, ExtensionTypesHaveTheValuesThatTheyStandFor) {
  const auto json = arrow::ExtensionType::WrapArray(
      arrow::extension::json(), array_of(arrow::utf8(), R"(["{\"a\": [1, 2.50]}", null])"));
  EXPECT_EQ(values_of(json), (Values{R"({"a":[1,2.50]})", "-"}));
  const auto flags = arrow::ExtensionType::WrapArray(arrow::extension::bool8(),
                                                     array_of(arrow::int8(), "[0, 1, 2, null]"));
  EXPECT_EQ(values_of(flags), (Values{"false", "true", "true", "-"}));
  const auto broken = arrow::ExtensionType::WrapArray(arrow::extension::json(),
                                                      array_of(arrow::utf8(), R"(["{\"a\": "])"));
  const auto batch = batch_of({{"v", broken}});
  const DataError error = failure_of([&] { row_of(*batch, 0, "here"); });
  EXPECT_EQ(error.message(), "a value of the type JSON cannot be read: {\"a\": ");
  EXPECT_EQ(error.where(), "here");
}

Rows rows_of_batch(const std::shared_ptr<arrow::RecordBatch>& batch) {
  bool is_given = false;
  const auto reader =
      read_batches({.file = "a.arrow",
                    .next = [&]() -> arrow::Result<std::shared_ptr<arrow::RecordBatch>> {
                      return std::exchange(is_given, true) ? nullptr : batch;
                    },
                    .file_position = [] { return uint64_t{0}; }});
  return rows_of(*reader);
}

TEST(Table, NamesThatAreThereTwiceAreRefused) {
  const auto one = array_of(arrow::int32(), "[1]");
  const auto refused = [](const std::shared_ptr<arrow::Array>& array) {
    return failure_of([&] { rows_of_batch(batch_of({{"v", array}})); }).message();
  };
  EXPECT_EQ(failure_of([&] {
              rows_of_batch(batch_of({{"a", one}, {"b", one}, {"a", one}}));
            }).message(),
            "two columns are named `a`");
  EXPECT_EQ(rows_of_batch(batch_of({{"", one}, {"", one}})).size(), 1U) << "cells without a name";
  const auto twice =
      arrow::struct_({arrow::field("f", arrow::int32()), arrow::field("f", arrow::int32())});
  EXPECT_EQ(refused(array_of(twice, "[[1, 2]]")), "two fields of the column `v` are named `f`");
  EXPECT_EQ(refused(array_of(arrow::list(twice), "[[]]")),
            "two fields of the column `v` are named `f`");
  const auto outer = arrow::struct_({arrow::field("g", twice)});
  EXPECT_EQ(refused(array_of(outer, "[null]")), "two fields of the column `v.g` are named `f`");
}

TEST(Table, ColumnsWithTheirFieldsAreLimited) {
  const auto with_fields = [](size_t count) {
    arrow::FieldVector fields;
    for (size_t i = 0; i < count; ++i)
      fields.push_back(arrow::field(std::to_string(i), arrow::null()));
    return batch_of({{"v", ok(arrow::MakeArrayOfNull(arrow::struct_(fields), 1))}});
  };
  const size_t most = ReadLimits().columns;
  EXPECT_EQ(rows_of_batch(with_fields(most - 1)), (Rows{{1, "{}"}}));
  const DataError error = failure_of([&] { rows_of_batch(with_fields(most)); });
  EXPECT_EQ(error.message(), "the table has more than 10000 columns");
  EXPECT_EQ(error.where(), "a.arrow");
}

TEST(Table, ArraysThatPointOutsideThemselvesAreErrors) {
  auto data = array_of(arrow::utf8(), R"(["abc"])")->data()->Copy();
  const int32_t offsets[] = {0, 1 << 20};
  data->buffers[1] = arrow::Buffer::FromString(
      std::string(reinterpret_cast<const char*>(offsets), sizeof offsets));
  const DataError error = failure_of([&] {
    rows_of_batch(batch_of({{"v", arrow::MakeArray(data)}}));
  });
  EXPECT_TRUE(error.message().starts_with("cannot read: ")) << error.message();
  EXPECT_EQ(error.where(), "a.arrow");
}

TEST(Messages, AreOneLineOfLimitedLengthInUtf8) {
  EXPECT_EQ(one_line("a\r\nb\xE9"), "a  b?");
  EXPECT_EQ(one_line("日本\n"), "日本 ");
  EXPECT_EQ(one_line(std::string(300, 'a')), std::string(300, 'a'));
  EXPECT_EQ(one_line(std::string(301, 'a')), std::string(300, 'a') + " …");
  EXPECT_EQ(one_line(std::string(299, 'a') + "日本"), std::string(299, 'a') + " …")
      << "between characters";
}

}  // namespace
}  // namespace sftrun::arrow_readers
