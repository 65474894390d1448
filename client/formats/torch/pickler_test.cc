#include "client/formats/torch/pickler.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "client/formats/data_type.h"
#include "client/formats/torch/limits.h"
#include "client/formats/torch/unpickler.h"
#include "client/formats/torch/value.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/errors.h"
#include "tests/testing/torch_archive_fixture.h"

namespace ckptd::torch {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();

Dict DictOf(std::vector<std::pair<std::string, ValueRef>> entries) {
  Dict dict;
  for (auto& [key, value] : entries) dict.Set(key, std::move(value));
  return dict;
}

Object ObjectOf(std::string module, std::string name, std::vector<ValueRef> arguments) {
  Object object;
  object.callable = {std::move(module), std::move(name)};
  object.arguments = Make(Tuple{std::move(arguments)});
  return object;
}

// Reads what was written.
absl::StatusOr<Unpickled> ThereAndBack(const Value& value) {
  absl::StatusOr<Pickled> pickled = Pickle(value, {});
  if (!pickled.ok()) return pickled.status();
  const FindStorage find = [&](const std::string& key) -> std::optional<StoragePlace> {
    for (size_t i = 0; i < pickled->storages.size(); ++i) {
      if (absl::StrCat(i) == key)
        return StoragePlace{static_cast<int64_t>(i) * 1000, pickled->storages[i]->bytes};
    }
    return std::nullopt;
  };
  return Unpickle(pickled->bytes, find, {});
}

void ExpectThereAndBack(const ValueRef& value) {
  const absl::StatusOr<Unpickled> read = ThereAndBack(*value);
  ASSERT_TRUE(read.ok()) << read.status() << " of " << Describe(*value);
  EXPECT_EQ(Describe(*read->root), Describe(*value));
}

void ExpectInvalid(const ValueRef& value, const std::string& message) {
  const absl::Status status = Pickle(*value, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(ReasonOf(status), "INVALID_ARGUMENT");
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
}

TEST(PicklerTest, WritesTheBytesThatPythonWrites) {
  // pickle.dumps(OrderedDict([("w", [1, 300, -5, 2**40, 0.5, None, True]), ("t", ("a", "a", b"\xff")), ("s",
  // {7})]), 2)
  Dict dict = DictOf({{"w", Make(List{{MakeInt(1), MakeInt(300), MakeInt(-5), MakeInt(int64_t{1} << 40),
                                       Make(0.5), Make(None()), Make(true)}})},
                      {"t", Make(Tuple{{MakeString("a"), MakeString("a"), Make(Bytes{"\xff"})}})},
                      {"s", Make(Set{{MakeInt(7)}})}});
  dict.ordered = true;
  const absl::StatusOr<Pickled> pickled = Pickle(*Make(std::move(dict)), {});
  ASSERT_TRUE(pickled.ok()) << pickled.status();
  EXPECT_EQ(absl::BytesToHexString(pickled->bytes),
            "800263636f6c6c656374696f6e730a4f726465726564446963740a7100295271012858010000007771025d7103284b01"
            "4d2c014afbffff"
            "ff8a06000000000001473fe00000000000004e8865580100000074710458010000006171056805635f636f646563730a"
            "656e636f64650a"
            "71065802000000c3bf710758060000006c6174696e31710886710952710a87710b580100000073710c635f5f6275696c"
            "74696e5f5f0a73"
            "65740a710d5d710e4b076185710f527110752e");
}

TEST(PicklerTest, RoundTripsEveryKindOfValue) {
  for (const int64_t number :
       {int64_t{0}, int64_t{255}, int64_t{256}, int64_t{65535}, int64_t{65536}, int64_t{-1},
        int64_t{0x7fffffff}, int64_t{0x80000000}, -int64_t{0x80000000}, -int64_t{0x80000001},
        int64_t{1} << 47, -(int64_t{1} << 47), kMost, kLeast, int64_t{128} << 8, int64_t{-32769}}) {
    ExpectThereAndBack(MakeInt(number));
  }
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all.push_back(static_cast<char>(byte));
  Dict ordered = DictOf({{"a", MakeInt(1)}});
  ordered.ordered = true;
  ordered.attributes = Make(DictOf({{"_metadata", Make(Dict())}}));
  Object defaultdict = ObjectOf("collections", "defaultdict", {Make(Global{"builtins", "list"})});
  defaultdict.entries.emplace_back(MakeInt(1), Make(List()));
  Object deque = ObjectOf("collections", "deque", {Make(Tuple()), MakeInt(3)});
  deque.items = {MakeInt(1), MakeInt(2)};
  Object array = ObjectOf("numpy.core.multiarray", "_reconstruct",
                          {Make(Global{"numpy", "ndarray"}), Make(Tuple{{MakeInt(0)}}), Make(Bytes{"b"})});
  array.state = Make(Tuple{{MakeInt(1)}});
  Object made = ObjectOf("builtins", "complex", {});
  made.by_new = true;
  for (const ValueRef& value : {Make(None()),
                                Make(true),
                                Make(false),
                                Make(1.5),
                                Make(-0.0),
                                Make(std::numeric_limits<double>::infinity()),
                                Make(BigInt{std::string("\0\0\0\0\0\0\0\0\x80\0", 10)}),
                                Make(BigInt{std::string(300, '\x77')}),
                                MakeString(""),
                                MakeString("\xc3\xbc\xed\xa0\x80"),
                                MakeString(std::string(100000, 'x')),
                                Make(Bytes{""}),
                                Make(Bytes{all}),
                                Make(List()),
                                Make(Tuple()),
                                Make(Set()),
                                Make(Set{{MakeInt(1), MakeString("a")}, true}),
                                Make(Dict()),
                                Make(Size{{2, 3}}),
                                Make(Size()),
                                Make(DataType::kBFloat16),
                                Make(DataType::kFloat8E8M0Fnu),
                                Make(TensorReference{5}),
                                Make(InternalTensorReference{5, {2, 3}, DataType::kFloat16, true}),
                                Make(InternalTensorReference{0, {}, DataType::kFloat32, false}),
                                Make(std::move(ordered)),
                                Make(Global{"builtins", "int"}),
                                Make(std::move(defaultdict)),
                                Make(std::move(deque)),
                                Make(std::move(array)),
                                Make(std::move(made))}) {
    ExpectThereAndBack(value);
  }
}

TEST(PicklerTest, RoundTripsContainersOfAnySize) {
  for (const size_t size :
       {size_t{1}, size_t{2}, size_t{3}, size_t{4}, size_t{999}, size_t{1000}, size_t{1001}, size_t{2001}}) {
    List list;
    Tuple tuple;
    Dict dict;
    Set set;
    for (size_t i = 0; i < size; ++i) {
      const auto number = static_cast<int64_t>(i);
      list.items.push_back(MakeInt(number));
      tuple.items.push_back(MakeString(absl::StrCat("item ", i)));
      dict.Set(number, MakeInt(-number));
      set.items.push_back(MakeInt(number));
    }
    ExpectThereAndBack(Make(std::move(list)));
    ExpectThereAndBack(Make(std::move(tuple)));
    ExpectThereAndBack(Make(std::move(dict)));
    ExpectThereAndBack(Make(std::move(set)));
  }
}

TEST(PicklerTest, RoundTripsTensorsOfEveryDtype) {
  for (const DataTypeInfo& info : AllDataTypes()) {
    Tensor tensor = NewTensor(info.type, {2, 3});
    ExpectThereAndBack(Make(tensor));
    tensor.requires_grad = true;
    tensor.storage->location = "cuda:1";
    ExpectThereAndBack(Make(tensor));
    tensor.parameter = true;
    ExpectThereAndBack(Make(tensor));
    tensor.attributes = Make(DictOf({{"sequence_parallel", Make(true)}}));
    ExpectThereAndBack(Make(tensor));
    tensor.parameter = false;
    tensor.math_bits = Make(DictOf({{"conj", Make(true)}}));
    ExpectThereAndBack(Make(tensor));
    tensor.attributes = nullptr;
    ExpectThereAndBack(Make(tensor));
    if (!info.storage_class.empty()) ExpectThereAndBack(Make(BareStorage{tensor.storage, info.type}));
    ExpectThereAndBack(Make(BareStorage{tensor.storage, std::nullopt}));
  }
  ExpectThereAndBack(Make(NewTensor(DataType::kFloat32, {})));
  ExpectThereAndBack(Make(NewTensor(DataType::kFloat32, {3, 0})));
  Tensor expanded = NewTensor(DataType::kFloat32, {1});
  expanded.shape = {1000, 5};
  expanded.stride = {0, 0};
  ExpectThereAndBack(Make(expanded));
}

TEST(PicklerTest, PreservesSharing) {
  const ValueRef list = Make(List{{MakeInt(1)}});
  const ValueRef tuple = Make(Tuple{{list}});
  const Tensor tensor = NewTensor(DataType::kFloat32, {4});
  Tensor view = tensor;
  view.offset = 2;
  view.shape = {2};
  const ValueRef held = Make(tensor);
  const absl::StatusOr<Unpickled> read = ThereAndBack(*Make(
      List{{list, list, tuple, tuple, held, held, Make(view), Make(NewTensor(DataType::kFloat32, {4}))}}));
  ASSERT_TRUE(read.ok()) << read.status();
  const std::vector<ValueRef>& items = read->root->As<List>()->items;
  EXPECT_EQ(items[0], items[1]);
  EXPECT_EQ(items[2], items[3]);
  EXPECT_EQ(items[2]->As<Tuple>()->items[0], items[0]);
  EXPECT_EQ(items[4], items[5]);
  EXPECT_EQ(items[4]->As<Tensor>()->storage, items[6]->As<Tensor>()->storage);
  EXPECT_NE(items[4]->As<Tensor>()->storage, items[7]->As<Tensor>()->storage);
  EXPECT_EQ(read->storages.size(), 2u);
}

TEST(PicklerTest, RefusesCycles) {
  const ValueRef list = Make(List());
  list->As<List>()->items.push_back(Make(Tuple{{list}}));
  ExpectInvalid(list, "that holds itself");
  list->As<List>()->items.clear();  // Otherwise it would never be freed.
  const ValueRef dict = Make(Dict());
  dict->As<Dict>()->Set("self", dict);
  ExpectInvalid(Make(List{{dict}}), "that holds itself");
  dict->As<Dict>()->Replace(0, Make(None()));
}

TEST(PicklerTest, DoesNotWriteWhatCannotBeRead) {
  Tensor tensor = NewTensor(DataType::kFloat32, {4});
  Tensor beyond = tensor;
  beyond.shape = {5};
  ExpectInvalid(Make(beyond), "ends at byte 20 of a storage of 16");
  Tensor odd = tensor;
  odd.storage = std::make_shared<Storage>(Storage{18, "cpu", "", -1});
  ExpectInvalid(Make(odd), "a storage of 18 bytes that end within a float32");
  Tensor other = tensor;
  other.dtype = DataType::kInt32;
  ExpectInvalid(Make(List{{Make(tensor), Make(other)}}), "tensors of float32 and int32 in one storage");
  ExpectInvalid(Make(List{{Make(BareStorage{tensor.storage, std::nullopt}), Make(tensor)}}),
                "in one storage");
  ExpectInvalid(Make(BareStorage{tensor.storage, DataType::kUInt16}),
                "a storage that torch has no class for");
  ExpectInvalid(Make(BareStorage{nullptr, DataType::kUInt8}), "a storage that torch has no class for");
  ExpectInvalid(Make(Global{"os", "system"}), "os.system is not among what ckptd writes");
  ExpectInvalid(Make(ObjectOf("os", "system", {})), "os.system, which is not among what ckptd writes");
  ExpectInvalid(Make(ObjectOf("collections", "OrderedDict", {})), "not among what ckptd writes");
  ExpectInvalid(Make(List{{nullptr}}), "a value that is null");
  ExpectInvalid(MakeString("\xff"), "text that is not UTF-8");
  Dict plain;
  plain.attributes = Make(Dict());
  ExpectInvalid(Make(std::move(plain)), "a plain dict with attributes");
}

TEST(PicklerTest, UntypedAndUint8StoragesAreEqual) {
  Tensor bytes = NewTensor(DataType::kUInt8, {4});
  Tensor numbers = bytes;
  numbers.dtype = DataType::kUInt16;
  numbers.shape = {2};
  ExpectThereAndBack(
      Make(List{{Make(bytes), Make(numbers), Make(BareStorage{bytes.storage, std::nullopt})}}));
}

TEST(PicklerTest, EnforcesEveryLimit) {
  Limits limits;
  limits.depth = 3;
  ValueRef nested = Make(None());
  for (int i = 0; i < 3; ++i) nested = Make(List{{nested}});
  EXPECT_TRUE(Pickle(*nested, limits).ok());
  EXPECT_EQ(ReasonOf(Pickle(*Make(List{{nested}}), limits).status()), "ARCHIVE_TOO_LARGE");
  limits = {};
  limits.objects = 4;
  EXPECT_TRUE(Pickle(*nested, limits).ok());
  EXPECT_EQ(ReasonOf(Pickle(*Make(List{{nested}}), limits).status()), "ARCHIVE_TOO_LARGE");
  limits = {};
  limits.pickle_bytes = 100;
  EXPECT_EQ(ReasonOf(Pickle(*Make(List{{MakeString(std::string(200, 'x')), MakeInt(1)}}), limits).status()),
            "ARCHIVE_TOO_LARGE");
}

}  // namespace
}  // namespace ckptd::torch
