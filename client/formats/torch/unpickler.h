// Reads pickles of torch.save, of any protocol, and makes plain data of them (value.h). Runs nothing: a class
// or function that is not on the list of globals.h is refused by name.
//
// For any bytes it takes time and memory in proportion to their number, up to the limits, and never crashes.
// Errors name the byte; archive.h lists them. A pickle that changes an object after another one holds it is
// refused: only a cycle needs that.
#ifndef CKPTD_CLIENT_FORMATS_TORCH_UNPICKLER_H_
#define CKPTD_CLIENT_FORMATS_TORCH_UNPICKLER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/formats/data_type.h"
#include "client/formats/torch/globals.h"
#include "client/formats/torch/limits.h"
#include "client/formats/torch/opcodes.h"
#include "client/formats/torch/value.h"

namespace ckptd::torch {

// Where a storage's bytes are.
struct StoragePlace {
  int64_t file_offset = 0;
  int64_t bytes = 0;
};
// Finds the record data/<key>; nullopt if there is none.
using FindStorage = std::function<std::optional<StoragePlace>(const std::string& key)>;

struct Unpickled {
  ValueRef root;
  std::vector<StorageRef> storages;  // In the order in which the pickle names them.
};

absl::StatusOr<Unpickled> Unpickle(std::string_view pickle, const FindStorage& find, const Limits& limits);

// The state machine behind Unpickle(). It keeps the first error in error_ and does nothing more then. So its
// functions do not check each other, and their results after an error do not matter.
class Unpickler {
 public:
  Unpickler(std::string_view pickle, const FindStorage& find, const Limits& limits)
      : pickle_(pickle), find_(find), limits_(limits) {}
  absl::StatusOr<Unpickled> Run();

 private:
  struct KnownStorage {
    StorageRef storage;
    DataType dtype;  // uint8 for an untyped one, as in torch.
  };

  // unpickler.cc: input, stack, memo.
  void Step();
  bool StepNumber(Opcode opcode);
  bool StepText(Opcode opcode);
  bool StepContainer(Opcode opcode);
  bool StepStack(Opcode opcode);
  bool StepMemo(Opcode opcode);
  bool StepObject(Opcode opcode);
  void Stop();
  void Refuse(Opcode opcode);

  std::string_view Take(uint64_t bytes);
  std::string_view TakeLine();
  uint64_t TakeNumber(size_t bytes);  // Little-endian.
  uint64_t TakeIndex();

  void Push(ValueRef value);
  ValueRef Pop();
  ValueRef Top();
  std::vector<ValueRef> PopToMark();
  void PushText(std::string text);
  void PushBytes(std::string_view bytes);
  void PushUnicodeEscaped(std::string_view line);
  void PushLong(std::string_view bytes);
  void PushDecimal(std::string_view digits);
  void PushTuple(std::vector<ValueRef> items);
  void PutMemo(uint64_t index);
  void GetMemo(uint64_t index);

  // build.cc: containers and objects.
  void Append(Value& target, std::vector<ValueRef> items);
  void SetItems(Value& target, const std::vector<ValueRef>& items);
  void AddItems(Value& target, const std::vector<ValueRef>& items);
  ValueRef SetOf(const std::vector<ValueRef>& items, bool frozen);
  void PushGlobal(std::string_view module, std::string_view name);
  void PushStorage();
  void Reduce();
  void New(const ValueRef& callable, const ValueRef& arguments);
  ValueRef Call(const Global& callable, const Role role, const ValueRef& arguments);
  void CheckMember(const Tuple& arguments);
  ValueRef Carry(const Global& callable, bool by_new, const ValueRef& arguments);
  ValueRef Encode(const std::vector<ValueRef>& arguments);
  ValueRef SizeOf(const std::vector<ValueRef>& arguments);
  ValueRef TensorOf(const std::vector<ValueRef>& arguments, bool with_dtype);
  ValueRef TensorOfType(const std::vector<ValueRef>& arguments);
  ValueRef ParameterOf(const std::vector<ValueRef>& arguments, bool with_state);
  void SetAttributes(Value& tensor, const ValueRef& state);
  void Build(Value& target, const ValueRef& state);
  void BecomeReference(Value& target, Role role, const Value& state);
  std::vector<int64_t> Integers(const Value& sequence);
  const std::vector<ValueRef>* Sequence(const Value& value);
  std::optional<KnownGlobal> Known(const Value& callable);
  void CheckNoHooks(const Value& hooks);

  // Records that `parent` holds `child`: adds depth and size to it, and closes the child to changes.
  void Hold(Value& parent, const ValueRef& child);
  void CheckOpen(const Value& target);
  void CheckWhole(const Value& value);
  // Count against the limits.
  void Count(int64_t objects);
  void CountText(uint64_t bytes);

  bool ok() const { return error_.ok(); }
  void Fail(absl::StatusCode code, std::string_view reason, const std::string& why);
  void Damaged(const std::string& why);
  void TooLarge(std::string_view limit, int64_t most);
  void Unsafe(std::string_view module, std::string_view name);

  const std::string_view pickle_;
  const FindStorage& find_;
  const Limits& limits_;
  size_t at_ = 0;         // The position of the next byte in the pickle.
  size_t opcode_at_ = 0;  // The position of the current opcode.
  bool stopped_ = false;
  absl::Status error_;
  std::vector<ValueRef> stack_;
  std::vector<size_t> marks_;  // Heights of the stack.
  // Ordered maps, here and below: keys crafted to collide cost no more than others.
  std::vector<ValueRef> memo_;               // For indices without gaps, as Python numbers them.
  std::map<uint64_t, ValueRef> other_memo_;  // For all others.
  std::map<std::string, KnownStorage> storages_;
  std::vector<StorageRef> storage_order_;
  int64_t objects_ = 0;
  int64_t text_bytes_ = 0;
};

}  // namespace ckptd::torch
#endif  // CKPTD_CLIENT_FORMATS_TORCH_UNPICKLER_H_
