// The unpickler on what Python writes, and on hostile pickles.
//
// Longer than 500 lines because all tests share the builders for pieces of pickles.
#include "client/formats/torch/unpickler.h"

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "client/formats/torch/limits.h"
#include "client/formats/torch/value.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "storage/base/errors.h"
#include "tests/testing/torch_archive_fixture.h"

namespace ckptd::torch {
namespace {

using ::testing::HasSubstr;

// Builders for pieces of pickles.
const std::string kBegin = "\x80\x02";
std::string Bytes8(uint64_t value, size_t width = 8) {
  std::string bytes;
  for (size_t i = 0; i < width; ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
  return bytes;
}
std::string Name(std::string_view module, std::string_view name) {
  return absl::StrCat("c", std::string(module), "\n", std::string(name), "\n");
}
std::string Text(std::string_view text) {
  return absl::StrCat("X", Bytes8(text.size(), 4), std::string(text));
}
std::string Int(int64_t number) { return absl::StrCat("\x8a\x08", Bytes8(static_cast<uint64_t>(number))); }
std::string Get(uint64_t index) { return absl::StrCat("j", Bytes8(index, 4)); }
std::string Put(uint64_t index) { return absl::StrCat("r", Bytes8(index, 4)); }
std::string Repeat(const std::string& piece, size_t times) {
  std::string all;
  for (size_t i = 0; i < times; ++i) all += piece;
  return all;
}
std::string StorageNamed(std::string_view key, std::string_view type = "FloatStorage", int64_t elements = 6,
                         std::string_view location = "cpu") {
  return absl::StrCat("(", Text("storage"), Name("torch", type), Text(key), Text(location), Int(elements),
                      "tQ");
}
std::string Ints(std::initializer_list<int64_t> numbers) {
  std::string tuple = "(";
  for (const int64_t number : numbers) tuple += Int(number);
  return tuple + "t";
}
const std::string kNoHooks = Name("collections", "OrderedDict") + ")R";
std::string TensorMade(const std::string& storage, int64_t offset, std::initializer_list<int64_t> shape,
                       std::initializer_list<int64_t> stride) {
  return absl::StrCat(Name("torch._utils", "_rebuild_tensor_v2"), "(", storage, Int(offset), Ints(shape),
                      Ints(stride), "\x89", kNoHooks, "tR");
}

// A file with one storage, "0", of 24 bytes at 1000.
absl::StatusOr<Unpickled> Read(const std::string& pickle, const Limits& limits = {}) {
  const FindStorage find = [](const std::string& key) -> std::optional<StoragePlace> {
    return key == "0" ? std::optional(StoragePlace{1000, 24}) : std::nullopt;
  };
  return Unpickle(pickle, find, limits);
}

std::string Described(const std::string& pickle) {
  const absl::StatusOr<Unpickled> read = Read(pickle);
  return read.ok() ? Describe(*read->root) : std::string(read.status().message());
}

void ExpectRefused(const std::string& pickle, absl::StatusCode code, std::string_view reason,
                   const std::string& message, const Limits& limits = {}) {
  const absl::Status status = Read(pickle, limits).status();
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_EQ(ReasonOf(status), reason) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
}
void ExpectDamaged(const std::string& pickle, const std::string& message = "data.pkl, byte ") {
  ExpectRefused(pickle, absl::StatusCode::kDataLoss, "CORRUPT_ARCHIVE", message);
}
void ExpectUnsafe(const std::string& pickle, const std::string& what) {
  ExpectRefused(pickle, absl::StatusCode::kFailedPrecondition, "UNSAFE_PICKLE", what);
}
void ExpectTooLarge(const std::string& pickle, const std::string& limit, const Limits& limits = {}) {
  ExpectRefused(pickle, absl::StatusCode::kResourceExhausted, "ARCHIVE_TOO_LARGE", limit, limits);
}

// One object, pickled by Python itself in each of its protocols.
const char* const kOneObject[] = {
    // Protocol 0.
    "63636f6c6c656374696f6e730a4f726465726564446963740a70300a28745270310a56610a70320a286c70330a49310a"
    "61492d310a61493235350a61493330300a61492d37303030300a614c323134373438333634384c0a614c2d3932323333"
    "37323033363835343737353830384c0a614c393232333337323033363835343737353830384c0a614c2d313138303539"
    "313632303731373431313330333432344c0a6146312e350a614930310a614930300a614e6156fc5c75643830300a7034"
    "0a61635f636f646563730a656e636f64650a70350a28565c7530303030ff0a70360a566c6174696e310a70370a747038"
    "0a5270390a61635f5f6275696c74696e5f5f0a62797465730a7031300a2874527031310a612874612849310a74703132"
    "0a612849310a49320a747031330a612849310a49320a49330a747031340a612849310a49320a49330a49340a74703135"
    "0a617356620a7031360a28647031370a49310a635f5f6275696c74696e5f5f0a7365740a7031380a28286c7031390a49"
    "320a61747032300a527032310a73566b0a7032320a635f5f6275696c74696e5f5f0a66726f7a656e7365740a7032330a"
    "28286c7032340a49330a61747032350a527032360a732849310a56780a7032370a747032380a28647032390a7346322e"
    "350a6731380a28286c7033300a747033310a527033320a737356630a7033330a635f5f6275696c74696e5f5f0a636f6d"
    "706c65780a7033340a2846312e300a46322e300a747033350a527033360a7356640a7033370a635f5f6275696c74696e"
    "5f5f0a6279746561727261790a7033380a2867350a2856780a7033390a67370a747034300a527034310a747034320a52"
    "7034330a7356650a7034340a63636f6c6c656374696f6e730a64656661756c74646963740a7034350a28635f5f627569"
    "6c74696e5f5f0a6c6973740a7034360a747034370a527034380a49310a286c7034390a49320a61737356660a7035300a"
    "63636f6c6c656374696f6e730a64657175650a7035310a28287449330a747035320a527035330a49310a6149320a6173"
    "56670a7035340a635f5f6275696c74696e5f5f0a7872616e67650a7035350a2849310a49390a49320a747035360a5270"
    "35370a73567368617265640a7035380a6731370a732e",
    // Protocol 1.
    "63636f6c6c656374696f6e730a4f726465726564446963740a7100295271012858010000006171025d7103284b014aff"
    "ffffff4bff4d2c014a90eefeff4c323134373438333634384c0a4c2d393232333337323033363835343737353830384c"
    "0a4c393232333337323033363835343737353830384c0a4c2d313138303539313632303731373431313330333432344c"
    "0a473ff80000000000004930310a4930300a4e5805000000c3bceda0807104635f636f646563730a656e636f64650a71"
    "0528580300000000c3bf710658060000006c6174696e317107747108527109635f5f6275696c74696e5f5f0a62797465"
    "730a710a2952710b29284b0174710c284b014b0274710d284b014b024b0374710e284b014b024b034b0474710f655801"
    "0000006271107d7111284b01635f5f6275696c74696e5f5f0a7365740a7112285d71134b026174711452711558010000"
    "006b7116635f5f6275696c74696e5f5f0a66726f7a656e7365740a7117285d71184b036174711952711a284b01580100"
    "000078711b74711c7d711d4740040000000000006812285d711e74711f527120755801000000637121635f5f6275696c"
    "74696e5f5f0a636f6d706c65780a712228473ff000000000000047400000000000000074712352712458010000006471"
    "25635f5f6275696c74696e5f5f0a6279746561727261790a712628680528580100000078712768077471285271297471"
    "2a52712b580100000065712c63636f6c6c656374696f6e730a64656661756c74646963740a712d28635f5f6275696c74"
    "696e5f5f0a6c6973740a712e74712f5271304b015d71314b026173580100000066713263636f6c6c656374696f6e730a"
    "64657175650a713328294b03747134527135284b014b02655801000000677136635f5f6275696c74696e5f5f0a787261"
    "6e67650a7137284b014b094b027471385271395806000000736861726564713a6811752e",
    // Protocol 2.
    "800263636f6c6c656374696f6e730a4f726465726564446963740a7100295271012858010000006171025d7103284b01"
    "4affffffff4bff4d2c014a90eefeff8a0500000080008a0800000000000000808a090000000000000080008a09000000"
    "0000000000c0473ff800000000000088894e5805000000c3bceda0807104635f636f646563730a656e636f64650a7105"
    "580300000000c3bf710658060000006c6174696e317107867108527109635f5f6275696c74696e5f5f0a62797465730a"
    "710a2952710b294b0185710c4b014b0286710d4b014b024b0387710e284b014b024b034b0474710f6558010000006271"
    "107d7111284b01635f5f6275696c74696e5f5f0a7365740a71125d71134b026185711452711558010000006b7116635f"
    "5f6275696c74696e5f5f0a66726f7a656e7365740a71175d71184b036185711952711a4b01580100000078711b86711c"
    "7d711d47400400000000000068125d711e85711f527120755801000000637121635f5f6275696c74696e5f5f0a636f6d"
    "706c65780a7122473ff00000000000004740000000000000008671235271245801000000647125635f5f6275696c7469"
    "6e5f5f0a6279746561727261790a712668055801000000787127680786712852712985712a52712b580100000065712c"
    "63636f6c6c656374696f6e730a64656661756c74646963740a712d635f5f6275696c74696e5f5f0a6c6973740a712e85"
    "712f5271304b015d71314b026173580100000066713263636f6c6c656374696f6e730a64657175650a7133294b038671"
    "34527135284b014b02655801000000677136635f5f6275696c74696e5f5f0a7872616e67650a71374b014b094b028771"
    "385271395806000000736861726564713a6811752e",
    // Protocol 3.
    "800363636f6c6c656374696f6e730a4f726465726564446963740a7100295271012858010000006171025d7103284b01"
    "4affffffff4bff4d2c014a90eefeff8a0500000080008a0800000000000000808a090000000000000080008a09000000"
    "0000000000c0473ff800000000000088894e5805000000c3bceda0807104430200ff710543007106294b018571074b01"
    "4b028671084b014b024b03877109284b014b024b034b0474710a65580100000062710b7d710c284b01636275696c7469"
    "6e730a7365740a710d5d710e4b026185710f52711058010000006b7111636275696c74696e730a66726f7a656e736574"
    "0a71125d71134b03618571145271154b0158010000007871168671177d7118474004000000000000680d5d711985711a"
    "52711b75580100000063711c636275696c74696e730a636f6d706c65780a711d473ff000000000000047400000000000"
    "000086711e52711f5801000000647120636275696c74696e730a6279746561727261790a712143017871228571235271"
    "24580100000065712563636f6c6c656374696f6e730a64656661756c74646963740a7126636275696c74696e730a6c69"
    "73740a71278571285271294b015d712a4b026173580100000066712b63636f6c6c656374696f6e730a64657175650a71"
    "2c294b0386712d52712e284b014b0265580100000067712f636275696c74696e730a72616e67650a71304b014b094b02"
    "87713152713258060000007368617265647133680c752e",
    // Protocol 4.
    "80049588010000000000008c0b636f6c6c656374696f6e73948c0b4f72646572656444696374949394295294288c0161"
    "945d94284b014affffffff4bff4d2c014a90eefeff8a0500000080008a0800000000000000808a090000000000000080"
    "008a090000000000000000c0473ff800000000000088894e8c05c3bceda08094430200ff94430094294b0185944b014b"
    "0286944b014b024b038794284b014b024b034b047494658c0162947d94284b018f94284b02908c016b94284b0391944b"
    "018c01789486947d944740040000000000008f94758c0163948c086275696c74696e73948c07636f6d706c6578949394"
    "473ff0000000000000474000000000000000869452948c01649468178c09627974656172726179949394430178948594"
    "52948c01659468008c0b64656661756c746469637494939468178c046c697374949394859452944b015d944b0261738c"
    "01669468008c056465717565949394294b0386945294284b014b02658c01679468178c0572616e67659493944b014b09"
    "4b02879452948c0673686172656494680e752e",
    // Protocol 5.
    "8005957b010000000000008c0b636f6c6c656374696f6e73948c0b4f72646572656444696374949394295294288c0161"
    "945d94284b014affffffff4bff4d2c014a90eefeff8a0500000080008a0800000000000000808a090000000000000080"
    "008a090000000000000000c0473ff800000000000088894e8c05c3bceda08094430200ff94430094294b0185944b014b"
    "0286944b014b024b038794284b014b024b034b047494658c0162947d94284b018f94284b02908c016b94284b0391944b"
    "018c01789486947d944740040000000000008f94758c0163948c086275696c74696e73948c07636f6d706c6578949394"
    "473ff0000000000000474000000000000000869452948c01649496010000000000000078948c01659468008c0b646566"
    "61756c746469637494939468178c046c697374949394859452944b015d944b0261738c01669468008c05646571756594"
    "9394294b0386945294284b014b02658c01679468178c0572616e67659493944b014b094b02879452948c067368617265"
    "6494680e752e",
};

TEST(UnpicklerTest, ReadsWhatPythonPicklesInEveryProtocol) {
  for (const char* hex : kOneObject) {
    EXPECT_EQ(
        Described(absl::HexStringToBytes(hex)),
        "OrderedDict{'a': [1, -1, 255, 300, -70000, 2147483648, -9223372036854775808, "
        "int:000000000000008000, "
        "int:0000000000000000c0, float:1.5, True, False, None, '\\xc3\\xbc\\xed\\xa0\\x80', b'\\x00\\xff', "
        "b'', (), (1), "
        "(1, 2), (1, 2, 3), (1, 2, 3, 4)], 'b': {1: set{2}, 'k': frozenset{3}, (1, 'x'): {}, float:2.5: "
        "set{}}, 'c': "
        "builtins.complex(float:1, float:2), 'd': builtins.bytearray(b'x'), 'e': "
        "collections.defaultdict(<builtins.list>){1: [2]}, 'f': collections.deque((), 3)[1, 2], 'g': "
        "builtins.range(1, 9, 2), 'shared': {1: set{2}, 'k': frozenset{3}, (1, 'x'): {}, float:2.5: set{}}}");
  }
}

TEST(UnpicklerTest, ReadsNumbersInDecimal) {
  EXPECT_EQ(Described("I-7\n."), "-7");
  EXPECT_EQ(Described("L9223372036854775807L\n."), "9223372036854775807");
  EXPECT_EQ(Described("L-9223372036854775808L\n."), "-9223372036854775808");
  EXPECT_EQ(Described("L-9223372036854775809L\n."), "int:ffffffffffffff7fff");
  EXPECT_EQ(Described("L0L\n."), "0");
  EXPECT_EQ(Described("F-1.5\n."), "float:-1.5");
  for (const std::string line : {"I\n.", "Ix\n.", "I-\n.", "L1 L\n.", "F1.5x\n.", "F\n.", "I1"})
    ExpectDamaged(line);
  EXPECT_TRUE(Read("L" + std::string(4300, '9') + "\n.").ok());
  ExpectDamaged("L" + std::string(4301, '9') + "\n.", "4300 digits");
}

TEST(UnpicklerTest, PreservesSharing) {
  const absl::StatusOr<Unpickled> read =
      Read(kBegin + "]q\x01(]q\x02h\x02" + Text("t") + "q\x03h\x03" + "e.");
  ASSERT_TRUE(read.ok()) << read.status();
  const List& list = *read->root->As<List>();
  EXPECT_EQ(list.items[0], list.items[1]);
  EXPECT_EQ(list.items[2], list.items[3]);
}

TEST(UnpicklerTest, ReadsTensorsOverOneStorage) {
  const absl::StatusOr<Unpickled> read =
      Read(kBegin + "(" + TensorMade(StorageNamed("0"), 0, {2, 3}, {3, 1}) +
           TensorMade(StorageNamed("0"), 4, {2}, {1}) + "t.");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(
      Describe(*read->root),
      "(tensor(float32 [2, 3] by [3, 1] at 0 of 24 on cpu), tensor(float32 [2] by [1] at 4 of 24 on cpu))");
  const Tuple& both = *read->root->As<Tuple>();
  EXPECT_EQ(both.items[0]->As<Tensor>()->storage, both.items[1]->As<Tensor>()->storage);
  ASSERT_EQ(read->storages.size(), 1u);
  EXPECT_EQ(read->storages[0]->key, "0");
  EXPECT_EQ(read->storages[0]->file_offset, 1000);
  EXPECT_EQ(both.items[1]->As<Tensor>()->file_offset(), 1016);
}

TEST(UnpicklerTest, ReadsParametersAndAttributes) {
  const std::string tensor = TensorMade(StorageNamed("0"), 0, {6}, {1});
  const std::string state = "}" + Text("tag") + Text("x") + "s";
  EXPECT_EQ(Described(kBegin + Name("torch._utils", "_rebuild_parameter") + "(" + tensor + "\x88" + kNoHooks +
                      "tR."),
            "parameter(float32 [6] by [1] at 0 of 24 on cpu requires_grad)");
  EXPECT_EQ(Described(kBegin + Name("torch._utils", "_rebuild_parameter_with_state") + "(" + tensor + "\x89" +
                      kNoHooks + state + "tR."),
            "parameter(float32 [6] by [1] at 0 of 24 on cpu attributes={'tag': 'x'})");
  const std::string arguments =
      "(" + StorageNamed("0") + Int(0) + Ints({6}) + Ints({1}) + "\x88" + kNoHooks + "t";
  EXPECT_EQ(Described(kBegin + Name("torch._tensor", "_rebuild_from_type_v2") + "(" +
                      Name("torch._utils", "_rebuild_tensor_v2") + Name("torch", "Tensor") + arguments +
                      state + "tR."),
            "tensor(float32 [6] by [1] at 0 of 24 on cpu requires_grad attributes={'tag': 'x'})");
}

TEST(UnpicklerTest, ReadsDtypesThatHaveNoStorageClass) {
  const std::string storage = "(" + Text("storage") + Name("torch.storage", "UntypedStorage") + Text("0") +
                              Text("cpu") + Int(24) + "tQ";
  EXPECT_EQ(Described(kBegin + Name("torch._utils", "_rebuild_tensor_v3") + "(" + storage + Int(1) +
                      Ints({3}) + Ints({2}) + "\x89" + kNoHooks + Name("torch", "uint32") + "tR."),
            "tensor(uint32 [3] by [2] at 1 of 24 on cpu)");
  EXPECT_EQ(Described(kBegin + storage + "."), "storage(untyped 24)");
  EXPECT_EQ(Described(kBegin + Name("torch", "float8_e4m3fn") + "."), "torch.float8_e4m3fn");
  EXPECT_EQ(Described(kBegin + Name("torch", "Size") + Ints({2, 3}) + "\x85R."), "Size(2, 3)");
}

TEST(UnpicklerTest, ReadsReferencesToTensors) {
  EXPECT_EQ(Described(kBegin + Name("torch_xla.utils.serialization", "TensorReference") + ")\x81}" +
                      Text("tid") + Int(7) + "sb."),
            "TensorReference(7)");
  EXPECT_EQ(Described(kBegin + Name("neuronx_distributed.trainer.checkpoint", "_InternalTensorReference") +
                      ")\x81}(" + Text("tid") + Int(3) + Text("shape") + "](" + Int(2) + Int(5) + "e" +
                      Text("dtype") + Name("torch", "bfloat16") + Text("expert_model_parallel") + "\x88ub."),
            "_InternalTensorReference(3, [2, 5], bfloat16, expert)");
  const std::string reference = Name("torch_xla.utils.serialization", "TensorReference") + ")\x81";
  ExpectDamaged(kBegin + reference + ".", "a TensorReference without its state");
  ExpectDamaged(kBegin + "]" + reference + "a.", "a TensorReference without its state");
  ExpectDamaged(kBegin + reference + "}b.", "without its number");
  ExpectDamaged(kBegin + reference + "}" + Text("tid") + Int(-1) + "sb.", "without its number");
  ExpectDamaged(kBegin + reference + "}" + Text("tid") + Text("../x") + "sb.", "without its number");
}

// What a pickle could do to a program that runs it.

TEST(HostilePickleTest, NamesOsSystemAndNeverRunsIt) {
  const std::string what = "the pickle asks for os.system, which ckptd does not know and never runs";
  ExpectUnsafe("cos\nsystem\n(S'echo pwned'\ntR.", what);
  ExpectUnsafe(kBegin + Name("os", "system") + Text("id") + "\x85R.", what);
  ExpectUnsafe("\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02id\x85R.", what);
  ExpectUnsafe(std::string("(") + Text("id") + "ios\nsystem\n.", what);
  ExpectUnsafe(kBegin + "]" + Name("os", "system") + "a.", what);
}

TEST(HostilePickleTest, RefusesGlobalsThatLeadToCodeByName) {
  for (const auto& [module, name] :
       std::initializer_list<std::pair<const char*, const char*>>{{"__builtin__", "eval"},
                                                                  {"builtins", "exec"},
                                                                  {"builtins", "getattr"},
                                                                  {"builtins", "__import__"},
                                                                  {"posix", "system"},
                                                                  {"nt", "system"},
                                                                  {"subprocess", "Popen"},
                                                                  {"torch", "load"},
                                                                  {"torch.hub", "load"},
                                                                  {"torch._utils", "_import_dotted_name"},
                                                                  {"operator", "attrgetter"},
                                                                  {"functools", "partial"},
                                                                  {"torch", "Size.__init__"},
                                                                  {"torch.storage", "_load_from_bytes"},
                                                                  {"webbrowser", "open"},
                                                                  {"copy_reg", "__newobj__"},
                                                                  {"collections", "namedtuple"},
                                                                  {"", ""},
                                                                  {"torch", ""}}) {
    ExpectUnsafe(kBegin + Name(module, name) + ")R.", "the pickle asks for ");
  }
}

TEST(HostilePickleTest, RunsNoGetattrAndKeepsIt) {
  const std::string member =
      Name("deepspeed.runtime.zero.config", "ZeroStageEnum") + Text("gradients") + "\x86";
  const absl::StatusOr<Unpickled> read = Read(kBegin + Name("__builtin__", "getattr") + member + "R.");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->root->As<Object>()->callable.name, "getattr");
  const std::string what = "the pickle asks for builtins.getattr";
  ExpectUnsafe(kBegin + Name("__builtin__", "getattr") + ".", what);
  ExpectUnsafe(kBegin + "]" + Name("__builtin__", "getattr") + "a.", what);
  for (const std::string& arguments :
       {Name("torch", "Tensor") + Text("backward") + "\x86",
        Name("collections", "Counter") + Text("x") + "\x86", Text("text") + Text("upper") + "\x86",
        member + "\x85", Name("deepspeed.runtime.zero.config", "ZeroStageEnum") + "\x85"}) {
    ExpectUnsafe(kBegin + Name("__builtin__", "getattr") + arguments + "R.", what);
  }
}

TEST(HostilePickleTest, DoesNotCallGlobalsKnownByNameOnly) {
  for (const auto& [module, name] :
       std::initializer_list<std::pair<const char*, const char*>>{{"__builtin__", "int"},
                                                                  {"torch", "Tensor"},
                                                                  {"torch", "FloatStorage"},
                                                                  {"torch", "float32"},
                                                                  {"numpy", "ndarray"},
                                                                  {"torch.nn.parameter", "Parameter"}}) {
    ExpectUnsafe(kBegin + Name(module, name) + ")R.", "by name only");
    ExpectDamaged(kBegin + Name(module, name) + ")\x81.");
  }
  ExpectDamaged(kBegin + Text("os.system") + ")R.", "a str is called");
  ExpectDamaged(kBegin + ")" + ")R.", "a tuple is called");
}

TEST(HostilePickleTest, EscapesAndCutsNamesInMessages) {
  const absl::Status status = Read(kBegin + Name("os\r\x1b[2J", std::string(100000, 'x')) + ".").status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("os\\r\\x1b[2J"));
  EXPECT_LT(status.message().size(), 400u);
}

TEST(HostilePickleTest, RefusesDeepNesting) {
  for (const size_t deep : {size_t{101}, size_t{100000}}) {
    ExpectTooLarge(kBegin + Repeat("(", deep + 1) + Repeat("l", deep + 1) + ".", "depth");
    ExpectTooLarge(kBegin + ")" + Repeat("\x85", deep + 1) + ".", "depth");
    ExpectTooLarge(kBegin + Repeat("]", deep + 2) + Repeat("a", deep + 1) + ".", "depth");
    ExpectTooLarge(kBegin + Repeat("}K\x01", deep + 1) + "N" + Repeat("s", deep + 1) + ".", "depth");
  }
  EXPECT_TRUE(Read(kBegin + Repeat("]", 101) + Repeat("a", 100) + ".").ok());
}

TEST(HostilePickleTest, RefusesDeepNestingByTheMemo) {
  // Each list gets its item only after another list holds it: no stack is deep, but the tree would be.
  std::string pickle = kBegin + "]" + Put(0);
  for (uint64_t i = 0; i < 100000; ++i) pickle += Get(i) + "]" + Put(i + 1) + "a0";
  ExpectDamaged(pickle + Get(0) + ".", "that another object holds");
}

TEST(HostilePickleTest, RefusesCycles) {
  ExpectDamaged(kBegin + "]q\x01h\x01" + "a.", "holds itself");
  ExpectDamaged(kBegin + "]q\x01]q\x02h\x01" + "ah\x01h\x02" + "a.", "that another object holds");
  ExpectDamaged(kBegin + "}q\x01K\x01h\x01s.", "holds itself");
  ExpectDamaged(kBegin + "]q\x01h\x01\x85q\x02" + "0h\x01h\x02" + "a.", "that another object holds");
  ExpectDamaged(kBegin + kNoHooks + "q\x01}K\x01h\x01sb.", "that another object holds");
  ExpectDamaged(kBegin + kNoHooks + "2b.", "holds itself");
  ExpectDamaged(kBegin + Name("collections", "Counter") + ")R2b.", "holds itself");
  ExpectDamaged(kBegin + Name("collections", "deque") + ")R2a.", "holds itself");
}

TEST(HostilePickleTest, RefusesHugeCountsWithoutAllocating) {
  for (const char* opcode : {"\x8d", "\x8e", "\x95", "\x96"}) {  // BINUNICODE8, BINBYTES8, FRAME, BYTEARRAY8
    for (const uint64_t count : {~uint64_t{0}, uint64_t{1} << 63, uint64_t{1} << 40, uint64_t{100}}) {
      ExpectDamaged(absl::StrCat("\x80\x04", opcode, Bytes8(count), "abc."));
    }
  }
  for (const char* opcode : {"X", "T", "B", "\x8b"}) {  // BINUNICODE, BINSTRING, BINBYTES, LONG4
    for (const uint64_t count :
         {uint64_t{0xffffffff}, uint64_t{0x80000000}, uint64_t{0x7fffffff}, uint64_t{100}}) {
      ExpectDamaged(absl::StrCat("\x80\x03", opcode, Bytes8(count, 4), "abc."), " bytes should follow");
    }
  }
  for (const char* opcode : {"\x8a", "U", "\x8c", "C"})
    ExpectDamaged(absl::StrCat("\x80\x04", opcode, "\xff", "abc."));
}

TEST(HostilePickleTest, MemoIndexDoesNotAllocate) {
  EXPECT_EQ(Described(kBegin + "K\x05" + Put(0xffffffff) + "0" + Get(0xffffffff) + "."), "5");
  EXPECT_EQ(Described("K\x05p9223372036854775807\n0g9223372036854775807\n."), "5");
  ExpectDamaged(kBegin + Get(0xffffffff) + ".", "memo 4294967295 is read");
  ExpectDamaged(kBegin + Put(0) + ".", "the stack is empty");
  // Python's own indices have no gaps. A value put at an index beyond is found until that index is put again.
  EXPECT_EQ(Described("K\x05p1\n0K\x06p0\n0K\x07p1\n0g1\ng0\n\x86."), "(7, 6)");
  EXPECT_EQ(Described("K\x05p1\n0K\x06p0\n0g1\n."), "5");
  ExpectDamaged("p99999999999999999999\n.", "not a 64-bit index");
}

TEST(HostilePickleTest, RefusesBillionLaughsByTheMemo) {
  const auto laughs = [](const std::string& first, int levels, const char* open, const char* close) {
    std::string pickle = kBegin + first + Put(0) + "0";
    for (int level = 0; level < levels; ++level) {
      pickle += open + Repeat(Get(static_cast<uint64_t>(level)), 10) + close +
                Put(static_cast<uint64_t>(level + 1)) + "0";
    }
    return pickle + Get(static_cast<uint64_t>(levels)) + ".";
  };
  ExpectTooLarge(laughs("K\x01", 9, "](", "e"), "objects, shared ones counted each time");
  ExpectTooLarge(laughs("K\x01", 9, "(", "t"), "objects, shared ones counted each time");
  ExpectTooLarge(laughs("K\x01", 90, "(", "t"), "objects, shared ones counted each time");
  ExpectTooLarge(laughs(Text(std::string(1 << 20, 'x')), 3, "(", "t"),
                 "string_bytes, shared ones counted each time");
  EXPECT_TRUE(Read(laughs("K\x01", 5, "(", "t")).ok());
}

TEST(HostilePickleTest, RefusesRepeatedWorkOnOneLargeValue) {
  const std::string large = Text(std::string(1 << 20, 'x')) + Put(0) + "0";
  // The same bytes are made, and the same key is set, a thousand times, each by a few bytes of pickle.
  ExpectTooLarge(
      kBegin + large + Repeat(Name("_codecs", "encode") + Get(0) + Text("latin1") + "\x86R0", 1000) + "N.",
      "string_bytes");
  ExpectTooLarge(kBegin + large + "}" + Repeat(Get(0) + "Ns", 1000) + ".", "string_bytes");
  Limits limits;
  limits.objects = 100000;
  const std::string list = "](" + Repeat("K\x01", 1000) + "e" + Put(0) + "0";
  ExpectTooLarge(kBegin + list + Repeat(Name("__builtin__", "set") + Get(0) + "\x85R0", 1000) + "N.",
                 "objects", limits);
  const std::string tuple = "(" + Repeat("K\x01", 1000) + "t" + Put(0) + "0";
  ExpectTooLarge(kBegin + tuple + Repeat(Name("torch", "Size") + Get(0) + "\x85R0", 1000) + "N.", "objects",
                 limits);
  ExpectTooLarge(kBegin + tuple + "}" + Repeat(Get(0) + "Ns", 1000) + ".", "objects", limits);
}

TEST(HostilePickleTest, EnforcesEveryLimit) {
  Limits limits;
  limits.objects = 10;
  EXPECT_TRUE(Read(kBegin + "(" + Repeat("N", 8) + "t.", limits).ok());
  ExpectTooLarge(kBegin + "(" + Repeat("N", 9) + "t.", "10 objects", limits);
  ExpectTooLarge(kBegin + Repeat("N0", 11) + "N.", "10 objects", limits);
  ExpectTooLarge(kBegin + "N" + Repeat("2", 11) + ".", "10 objects", limits);
  ExpectTooLarge(kBegin + Repeat("(", 11) + ".", "10 objects", limits);
  limits = {};
  limits.memo_entries = 2;
  EXPECT_TRUE(Read(kBegin + "Nq\x01q\x02.", limits).ok());
  ExpectTooLarge(kBegin + "Nq\x01q\x02q\x03.", "2 memo_entries", limits);
  limits = {};
  limits.string_bytes = 4;
  EXPECT_TRUE(Read(kBegin + Text("abcd") + ".", limits).ok());
  ExpectTooLarge(kBegin + Text("abcde") + ".", "4 string_bytes", limits);
  ExpectTooLarge(kBegin + "\x8a\x09" + std::string(8, '\0') + "\x01.", "4 string_bytes", limits);
  limits = {};
  limits.pickle_bytes = 3;
  ExpectTooLarge(kBegin + "N.", "3 pickle_bytes", limits);
  limits = {};
  limits.depth = 1;
  EXPECT_TRUE(Read(kBegin + "N\x85.", limits).ok());
  ExpectTooLarge(kBegin + "N\x85\x85.", "1 depth", limits);
}

TEST(HostilePickleTest, RefusesAnEmptyStackAndOpenMarks) {
  for (const char opcode : std::string_view("012aebsuRtldQ\x81\x85\x86\x87\x90\x91\x92\x93\x94")) {
    ExpectDamaged(kBegin + opcode + ".");
    // Values below a mark are out of reach. POP_MARK removes the mark.
    if (opcode != '1') ExpectDamaged(kBegin + "N(" + opcode + ".");
  }
  ExpectDamaged(kBegin + "N(N\x86t.", "the stack is empty");
  ExpectDamaged(kBegin + ".", "0 values and 0 open marks");
  ExpectDamaged(kBegin + "N(.", "1 values and 1 open marks");
  ExpectDamaged(kBegin + "(N.", "1 values and 1 open marks");
  ExpectDamaged(kBegin + "NN.", "2 values and 0 open marks");
  ExpectDamaged(kBegin + "N.N", "1 bytes follow");
  ExpectDamaged(kBegin + "N");
  ExpectDamaged("");
  ExpectDamaged(kBegin + "}(K\x01u.", "a key without a value");
}

TEST(HostilePickleTest, RefusesOpcodesThatTorchDoesNotWrite) {
  for (const std::string opcode : {"\x82\x01", "\x83\x01\x02", "\x84\x01\x02\x03\x04", "P0\n", "o", "S'x'\n",
                                   "\x97", "\x98", "\xff", "\x01", "\x99"}) {
    ExpectDamaged(kBegin + "(N" + opcode + ".", "which torch.save does not write");
  }
  ExpectDamaged(std::string("\x80\x06N."), "protocol 6");
}

TEST(HostilePickleTest, RefusesOddStates) {
  for (const std::string target : {"]", "}", "N", "K\x01", "(t"})
    ExpectDamaged(kBegin + target + "}b.", "the state of a");
  ExpectDamaged(kBegin + kNoHooks + "Nb.", "the state of a OrderedDict");
  ExpectDamaged(kBegin + kNoHooks + "}b}b.", "the state of a OrderedDict");
  ExpectDamaged(kBegin + TensorMade(StorageNamed("0"), 0, {6}, {1}) + "}b.", "the state of a tensor");
  ExpectDamaged(kBegin + "}]K\x01s.", "a list as the key of a dict");
  ExpectDamaged(kBegin + "NNa.", "appended to a None");
  ExpectDamaged(kBegin + "]NNs.", "set in a list");
  ExpectDamaged(kBegin + "](N\x90.", "added to a list");
  ExpectDamaged(kBegin + Text("\xff") + ".", "not UTF-8");
}

TEST(HostilePickleTest, RefusesATensorBeyondItsStorage) {
  ExpectDamaged(kBegin + TensorMade(StorageNamed("0"), 0, {7}, {1}) + ".",
                "ends at byte 28 of a storage of 24");
  ExpectDamaged(kBegin + TensorMade(StorageNamed("0"), 1, {6}, {1}) + ".", "ends at byte 28");
  ExpectDamaged(kBegin + TensorMade(StorageNamed("0"), -1, {2}, {1}) + ".", "offset is -1");
  ExpectDamaged(kBegin + TensorMade(StorageNamed("0"), 5, {2}, {-1}) + ".", "stride of -1");
  ExpectDamaged(kBegin + TensorMade(StorageNamed("0"), 0, {-2}, {1}) + ".", "dimension of -2");
  ExpectDamaged(kBegin + TensorMade(StorageNamed("0"), int64_t{1} << 62, {1}, {1}) + ".", "2^63");
  ExpectDamaged(kBegin + TensorMade(StorageNamed("0"), 0, {int64_t{1} << 40, int64_t{1} << 40}, {0, 0}) + ".",
                "more than 2^63 bytes");
  ExpectDamaged(kBegin + TensorMade(StorageNamed("0"), 0, {2, 3}, {1}) + ".", "2 dimensions with 1 strides");
}

TEST(HostilePickleTest, RefusesAStorageThatDiffersFromItsRecord) {
  ExpectDamaged(kBegin + StorageNamed("1") + ".", "storage 1 has no record");
  ExpectDamaged(kBegin + StorageNamed("0", "FloatStorage", 7) + ".", "has 28 bytes, and its record 24");
  ExpectDamaged(kBegin + StorageNamed("0", "FloatStorage", 5) + ".", "has 20 bytes, and its record 24");
  // Half an element is left over; no tensor has it.
  EXPECT_EQ(Described(kBegin + StorageNamed("0", "ComplexDoubleStorage", 1) + "."), "storage(complex128 16)");
  ExpectDamaged(kBegin + "(" + StorageNamed("0", "ComplexDoubleStorage", 1) +
                    StorageNamed("0", "ComplexDoubleStorage", 0) + "t.",
                "has 0 bytes, and 16 elsewhere");
  ExpectDamaged(kBegin + StorageNamed("0", "FloatStorage", -1) + ".", "of -1 elements");
  ExpectDamaged(kBegin + StorageNamed("0", "DoubleStorage", int64_t{1} << 61) + ".", "elements");
  ExpectDamaged(kBegin + "(" + StorageNamed("0") + StorageNamed("0", "IntStorage") + "t.", "named twice");
  ExpectDamaged(kBegin + "(" + StorageNamed("0") + StorageNamed("0", "FloatStorage", 6, "cuda:0") + "t.",
                "named twice");
  ExpectDamaged(kBegin + StorageNamed("0", "float32") + ".", "not named as torch names it");
  ExpectDamaged(kBegin + StorageNamed("0", "Tensor") + ".", "a storage of class torch.Tensor");
  ExpectDamaged(kBegin + "NQ.", "not named as torch names it");
  ExpectDamaged(kBegin + Ints({1, 2, 3, 4, 5}) + "Q.", "not named as torch names it");
}

}  // namespace
}  // namespace ckptd::torch
