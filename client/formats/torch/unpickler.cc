// The unpickler's input, stack, memo and opcodes. build.cc makes containers and objects.
//
// Longer than 500 lines because it is one switch over all opcodes, in groups.
#include "client/formats/torch/unpickler.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/formats/text.h"
#include "storage/base/errors.h"

namespace ckptd::torch {
namespace {

constexpr uint64_t kNewestProtocol = 5;
constexpr size_t kMaxDigits = 4300;  // Of a decimal int, as in Python: reading more takes long.
constexpr size_t kShownBytes = 100;  // Of a name in a message.

std::string Shown(std::string_view name) {
  return absl::CHexEscape(std::string(name.substr(0, kShownBytes))) +
         (name.size() > kShownBytes ? "..." : "");
}

// The shortest form of a little-endian number in two's complement.
std::string_view WithoutSignBytes(std::string_view bytes) {
  const auto is_sign = [&](size_t i) {
    const auto below = static_cast<uint8_t>(bytes[i - 1]);
    return static_cast<uint8_t>(bytes[i]) == (below >= 0x80 ? 0xff : 0);
  };
  while (bytes.size() > 1 && is_sign(bytes.size() - 1)) bytes.remove_suffix(1);
  return bytes;
}

// Converts a decimal number to two's complement, little-endian.
std::string TwosComplement(std::string_view digits, bool negative) {
  std::string bytes;
  for (const char digit : digits) {
    int carry = digit - '0';
    for (char& byte : bytes) {
      carry += static_cast<uint8_t>(byte) * 10;
      byte = static_cast<char>(carry);
      carry >>= 8;
    }
    if (carry > 0) bytes.push_back(static_cast<char>(carry));
  }
  bytes.push_back('\0');
  int carry = negative ? 1 : 0;
  for (char& byte : bytes) {
    carry += static_cast<uint8_t>(negative ? ~byte : byte);
    byte = static_cast<char>(carry);
    carry >>= 8;
  }
  return bytes;
}

}  // namespace

absl::StatusOr<Unpickled> Unpickle(std::string_view pickle, const FindStorage& find, const Limits& limits) {
  return Unpickler(pickle, find, limits).Run();
}

absl::StatusOr<Unpickled> Unpickler::Run() {
  if (static_cast<int64_t>(pickle_.size()) > limits_.pickle_bytes)
    TooLarge("pickle_bytes", limits_.pickle_bytes);
  while (ok() && !stopped_) Step();
  if (!ok()) return error_;
  return Unpickled{std::move(stack_.front()), std::move(storage_order_)};
}

void Unpickler::Step() {
  opcode_at_ = at_;
  const std::string_view byte = Take(1);
  if (!ok()) return;
  const auto opcode = static_cast<Opcode>(byte[0]);
  if (StepNumber(opcode) || StepText(opcode) || StepContainer(opcode) || StepStack(opcode) ||
      StepMemo(opcode))
    return;
  if (!StepObject(opcode)) Refuse(opcode);
}

void Unpickler::Stop() {
  stopped_ = true;
  if (at_ != pickle_.size()) {
    Damaged(absl::StrCat("STOP, but ", pickle_.size() - at_, " bytes follow"));
  } else if (stack_.size() != 1 || !marks_.empty()) {
    Damaged(absl::StrCat("it ends with ", stack_.size(), " values and ", marks_.size(),
                         " open marks, not one value"));
  } else {
    CheckWhole(*stack_.front());
  }
}

void Unpickler::Refuse(Opcode opcode) {
  Damaged(absl::StrCat("opcode 0x", absl::Hex(static_cast<uint8_t>(opcode), absl::kZeroPad2),
                       ", which torch.save does not write"));
}

bool Unpickler::StepNumber(Opcode opcode) {
  switch (opcode) {
    case Opcode::kNone:
      return Push(Make(None())), true;
    case Opcode::kNewTrue:
      return Push(Make(true)), true;
    case Opcode::kNewFalse:
      return Push(Make(false)), true;
    case Opcode::kBinInt:
      return Push(MakeInt(static_cast<int32_t>(TakeNumber(4)))), true;
    case Opcode::kBinInt1:
      return Push(MakeInt(static_cast<int64_t>(TakeNumber(1)))), true;
    case Opcode::kBinInt2:
      return Push(MakeInt(static_cast<int64_t>(TakeNumber(2)))), true;
    case Opcode::kLong1:
      return PushLong(Take(TakeNumber(1))), true;
    case Opcode::kLong4:  // For a negative length Take() finds too few bytes.
      return PushLong(Take(TakeNumber(4))), true;
    case Opcode::kBinFloat:
      return Push(Make(std::bit_cast<double>(__builtin_bswap64(TakeNumber(8))))), true;
    case Opcode::kInt: {
      const std::string_view line = pickle_.substr(at_, 3);
      if (line == "00\n" || line == "01\n") {
        TakeLine();
        return Push(Make(line[1] == '1')), true;
      }
      return PushDecimal(TakeLine()), true;
    }
    case Opcode::kLong: {
      std::string_view line = TakeLine();
      if (line.ends_with('L')) line.remove_suffix(1);
      return PushDecimal(line), true;
    }
    case Opcode::kFloat: {
      double number = 0;
      const std::string line(TakeLine());
      if (ok() && !absl::SimpleAtod(line, &number)) Damaged(absl::StrCat("no number: ", Shown(line)));
      return Push(Make(number)), true;
    }
    default:
      return false;
  }
}

bool Unpickler::StepText(Opcode opcode) {
  const auto ascii = [this](std::string_view text) {  // A str of Python 2.
    if (std::ranges::any_of(text, [](char c) { return static_cast<uint8_t>(c) >= 0x80; })) {
      Damaged("a string of Python 2 that is not ASCII");
    }
    PushText(std::string(text));
  };
  switch (opcode) {
    case Opcode::kBinUnicode:
      return PushText(std::string(Take(TakeNumber(4)))), true;
    case Opcode::kShortBinUnicode:
      return PushText(std::string(Take(TakeNumber(1)))), true;
    case Opcode::kBinUnicode8:
      return PushText(std::string(Take(TakeNumber(8)))), true;
    case Opcode::kUnicode:
      return PushUnicodeEscaped(TakeLine()), true;
    case Opcode::kBinString:
      return ascii(Take(TakeNumber(4))), true;
    case Opcode::kShortBinString:
      return ascii(Take(TakeNumber(1))), true;
    case Opcode::kBinBytes:
      return PushBytes(Take(TakeNumber(4))), true;
    case Opcode::kShortBinBytes:
      return PushBytes(Take(TakeNumber(1))), true;
    case Opcode::kBinBytes8:
      return PushBytes(Take(TakeNumber(8))), true;
    case Opcode::kByteArray8: {
      PushBytes(Take(TakeNumber(8)));
      PushTuple({Pop()});
      return Push(Carry({"builtins", "bytearray"}, false, Pop())), true;
    }
    default:
      return false;
  }
}

bool Unpickler::StepContainer(Opcode opcode) {
  switch (opcode) {
    case Opcode::kEmptyList:
      return Push(Make(List())), true;
    case Opcode::kEmptyDict:
      return Push(Make(Dict())), true;
    case Opcode::kEmptySet:
      return Push(Make(Set())), true;
    case Opcode::kEmptyTuple:
      return Push(Make(Tuple())), true;
    case Opcode::kList: {
      std::vector<ValueRef> items = PopToMark();
      Push(Make(List()));
      return Append(*Top(), std::move(items)), true;
    }
    case Opcode::kDict: {
      const std::vector<ValueRef> items = PopToMark();
      Push(Make(Dict()));
      return SetItems(*Top(), items), true;
    }
    case Opcode::kFrozenSet:
      return Push(SetOf(PopToMark(), true)), true;
    case Opcode::kTuple:
      return PushTuple(PopToMark()), true;
    case Opcode::kTuple1:
    case Opcode::kTuple2:
    case Opcode::kTuple3: {
      std::vector<ValueRef> items(static_cast<size_t>(opcode) - static_cast<size_t>(Opcode::kTuple1) + 1);
      for (size_t i = items.size(); i-- > 0;) items[i] = Pop();
      return PushTuple(std::move(items)), true;
    }
    case Opcode::kAppend: {
      ValueRef item = Pop();
      return Append(*Top(), {std::move(item)}), true;
    }
    case Opcode::kAppends: {
      std::vector<ValueRef> items = PopToMark();
      return Append(*Top(), std::move(items)), true;
    }
    case Opcode::kSetItem: {
      ValueRef value = Pop();
      ValueRef key = Pop();
      return SetItems(*Top(), {std::move(key), std::move(value)}), true;
    }
    case Opcode::kSetItems: {
      const std::vector<ValueRef> items = PopToMark();
      return SetItems(*Top(), items), true;
    }
    case Opcode::kAddItems: {
      const std::vector<ValueRef> items = PopToMark();
      return AddItems(*Top(), items), true;
    }
    default:
      return false;
  }
}

bool Unpickler::StepStack(Opcode opcode) {
  switch (opcode) {
    case Opcode::kProto:
      if (const uint64_t protocol = TakeNumber(1); protocol > kNewestProtocol) {
        Damaged(absl::StrCat("protocol ", protocol, "; ckptd reads up to ", kNewestProtocol));
      }
      return true;
    case Opcode::kFrame:  // A hint for readers of a stream; the bytes simply follow.
      if (const uint64_t bytes = TakeNumber(8); ok() && bytes > pickle_.size() - at_) {
        Damaged(absl::StrCat("a frame of ", bytes, " bytes, but only ", pickle_.size() - at_, " are left"));
      }
      return true;
    case Opcode::kMark:
      Count(1);
      return marks_.push_back(stack_.size()), true;
    case Opcode::kPop:
      return Pop(), true;
    case Opcode::kPopMark:
      return PopToMark(), true;
    case Opcode::kDup:
      return Push(Top()), true;
    case Opcode::kStop:
      return Stop(), true;
    default:
      return false;
  }
}

bool Unpickler::StepMemo(Opcode opcode) {
  switch (opcode) {
    case Opcode::kBinGet:
      return GetMemo(TakeNumber(1)), true;
    case Opcode::kLongBinGet:
      return GetMemo(TakeNumber(4)), true;
    case Opcode::kGet:
      return GetMemo(TakeIndex()), true;
    case Opcode::kBinPut:
      return PutMemo(TakeNumber(1)), true;
    case Opcode::kLongBinPut:
      return PutMemo(TakeNumber(4)), true;
    case Opcode::kPut:
      return PutMemo(TakeIndex()), true;
    case Opcode::kMemoize:
      return PutMemo(memo_.size() + other_memo_.size()), true;
    default:
      return false;
  }
}

bool Unpickler::StepObject(Opcode opcode) {
  switch (opcode) {
    case Opcode::kGlobal:
    case Opcode::kInst: {
      const std::string_view module = TakeLine();
      const std::string_view name = TakeLine();
      PushGlobal(module, name);
      if (opcode == Opcode::kInst) Refuse(opcode);
      return true;
    }
    case Opcode::kStackGlobal: {
      const ValueRef name = Pop();
      const ValueRef module = Pop();
      const auto* name_text = name->As<std::string>();
      const auto* module_text = module->As<std::string>();
      if (name_text == nullptr || module_text == nullptr)
        return Damaged("a global whose name is not a string"), true;
      return PushGlobal(*module_text, *name_text), true;
    }
    case Opcode::kReduce:
      return Reduce(), true;
    case Opcode::kNewObj: {
      const ValueRef arguments = Pop();
      return New(Pop(), arguments), true;
    }
    case Opcode::kNewObjEx: {
      const ValueRef keywords = Pop();
      const ValueRef arguments = Pop();
      const Dict* named = keywords->As<Dict>();
      if (named == nullptr || !named->empty()) Damaged("an object made with named arguments");
      return New(Pop(), arguments), true;
    }
    case Opcode::kBuild: {
      const ValueRef state = Pop();
      return Build(*Top(), state), true;
    }
    case Opcode::kBinPersId:
      return PushStorage(), true;
    default:
      return false;
  }
}

std::string_view Unpickler::Take(uint64_t bytes) {
  if (!ok()) return {};
  if (bytes > pickle_.size() - at_) {
    Damaged(absl::StrCat(bytes, " bytes should follow, but only ", pickle_.size() - at_, " are left"));
    return {};
  }
  const std::string_view taken = pickle_.substr(at_, bytes);
  at_ += bytes;
  return taken;
}

std::string_view Unpickler::TakeLine() {
  const size_t end = pickle_.find('\n', at_);
  if (end == std::string_view::npos) {
    Damaged("a line without a newline");
    return {};
  }
  const std::string_view line = Take(end + 1 - at_);
  return line.substr(0, line.size() - (line.empty() ? 0 : 1));
}

uint64_t Unpickler::TakeNumber(size_t bytes) {
  const std::string_view taken = Take(bytes);
  uint64_t number = 0;
  for (size_t i = taken.size(); i-- > 0;) number = number << 8 | static_cast<uint8_t>(taken[i]);
  return number;
}

uint64_t Unpickler::TakeIndex() {
  const std::string_view line = TakeLine();
  uint64_t number = 0;
  const auto [rest, error] = std::from_chars(line.data(), line.data() + line.size(), number);
  if (ok() && (error != std::errc() || rest != line.data() + line.size())) {
    Damaged(absl::StrCat("not a 64-bit index: ", Shown(line)));
  }
  return number;
}

void Unpickler::Push(ValueRef value) {
  Count(1);
  stack_.push_back(std::move(value));
}

// Values below the last mark are out of reach, as in Python.
ValueRef Unpickler::Top() {
  if (stack_.size() > (marks_.empty() ? 0 : marks_.back())) return stack_.back();
  Damaged("the opcode needs a value, but the stack is empty");
  return Make(None());
}

ValueRef Unpickler::Pop() {
  ValueRef value = Top();
  if (ok()) stack_.pop_back();
  return value;
}

std::vector<ValueRef> Unpickler::PopToMark() {
  if (marks_.empty()) {
    Damaged("the opcode needs a mark, but there is none");
    return {};
  }
  const auto first = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
  std::vector<ValueRef> items(std::make_move_iterator(first), std::make_move_iterator(stack_.end()));
  stack_.erase(first, stack_.end());
  marks_.pop_back();
  return items;
}

void Unpickler::PushText(std::string text) {
  if (!IsPythonText(text)) Damaged("a string that is not UTF-8");
  CountText(text.size());
  const auto bytes = static_cast<int64_t>(text.size());
  ValueRef value = Make(std::move(text));
  value->string_bytes_ = bytes;
  Push(std::move(value));
}

void Unpickler::PushBytes(std::string_view bytes) {
  CountText(bytes.size());
  ValueRef value = Make(Bytes{std::string(bytes)});
  value->string_bytes_ = static_cast<int64_t>(bytes.size());
  Push(std::move(value));
}

void Unpickler::PushUnicodeEscaped(std::string_view line) {
  std::optional<std::string> text = FromRawUnicodeEscape(line);
  if (!text) Damaged("a string with a broken \\u");
  PushText(std::move(text).value_or(""));
}

void Unpickler::PushLong(std::string_view bytes) {
  if (bytes.empty()) return Push(MakeInt(0));
  const std::string_view number = WithoutSignBytes(bytes);
  if (number.size() > sizeof(int64_t)) {
    CountText(number.size());
    ValueRef value = Make(BigInt{std::string(number)});
    value->string_bytes_ = static_cast<int64_t>(number.size());
    return Push(std::move(value));
  }
  uint64_t value = static_cast<uint8_t>(number.back()) >= 0x80 ? ~uint64_t{0} : 0;
  for (size_t i = number.size(); i-- > 0;) value = value << 8 | static_cast<uint8_t>(number[i]);
  Push(MakeInt(static_cast<int64_t>(value)));
}

void Unpickler::PushDecimal(std::string_view line) {
  const bool negative = line.starts_with('-');
  const std::string_view digits = line.substr(negative ? 1 : 0);
  const bool good = std::ranges::all_of(digits, [](char c) { return c >= '0' && c <= '9'; });
  if (ok() && (digits.empty() || digits.size() > kMaxDigits || !good)) {
    Damaged(absl::StrCat("not a number of at most ", kMaxDigits, " digits: ", Shown(line)));
  }
  if (ok()) PushLong(TwosComplement(digits, negative));
}

void Unpickler::PushTuple(std::vector<ValueRef> items) {
  ValueRef tuple = Make(Tuple());
  for (const ValueRef& item : items) Hold(*tuple, item);
  tuple->As<Tuple>()->items = std::move(items);
  Push(std::move(tuple));
}

void Unpickler::PutMemo(uint64_t index) {
  const ValueRef value = Top();
  if (!ok()) return;
  if (static_cast<int64_t>(memo_.size() + other_memo_.size()) >= limits_.memo_entries) {
    return TooLarge("memo_entries", limits_.memo_entries);
  }
  if (index < memo_.size()) {
    memo_[index] = value;
  } else if (index == memo_.size()) {
    other_memo_.erase(index);
    memo_.push_back(value);
  } else {
    other_memo_[index] = value;
  }
}

void Unpickler::GetMemo(uint64_t index) {
  if (index < memo_.size()) return Push(memo_[index]);
  const auto found = other_memo_.find(index);
  if (found == other_memo_.end()) {
    return Damaged(absl::StrCat("memo ", index, " is read but was never written"));
  }
  Push(found->second);
}

void Unpickler::Count(int64_t objects) {
  objects_ += std::min(objects, limits_.objects + 1);
  if (objects_ > limits_.objects) TooLarge("objects", limits_.objects);
}

void Unpickler::CountText(uint64_t bytes) {
  text_bytes_ += static_cast<int64_t>(std::min(bytes, static_cast<uint64_t>(limits_.string_bytes) + 1));
  if (text_bytes_ > limits_.string_bytes) TooLarge("string_bytes", limits_.string_bytes);
}

void Unpickler::Fail(absl::StatusCode code, std::string_view reason, const std::string& why) {
  if (ok()) error_ = MakeError(code, reason, absl::StrCat("data.pkl, byte ", opcode_at_, ": ", why));
}

void Unpickler::Damaged(const std::string& why) { Fail(absl::StatusCode::kDataLoss, "CORRUPT_ARCHIVE", why); }

void Unpickler::TooLarge(std::string_view limit, int64_t most) {
  Fail(absl::StatusCode::kResourceExhausted, "ARCHIVE_TOO_LARGE",
       absl::StrCat("it asks for more than the limit of ", most, " ", std::string(limit)));
}

void Unpickler::Unsafe(std::string_view module, std::string_view name) {
  Fail(absl::StatusCode::kFailedPrecondition, "UNSAFE_PICKLE",
       absl::StrCat("the pickle asks for ", Shown(module), ".", Shown(name),
                    ", which ckptd does not know and never runs"));
}

}  // namespace ckptd::torch
