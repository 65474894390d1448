// What the objects of ckptd/client.h hold, and how they are made from those of client/cpp.
#ifndef CKPTD_CLIENT_SDK_OBJECTS_H_
#define CKPTD_CLIENT_SDK_OBJECTS_H_

#include <exception>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "client/cpp/client.h"
#include "client/sdk/arguments.h"
#include "client/sdk/client.h"

namespace ckptd::inline abi0::internal {

namespace core = ::ckptd::client;

struct StatusData {
  Code code = Code::kOk;
  std::string reason;
  std::string message;
  std::map<std::string, std::string> details;
};
struct InfoData {
  core::CheckpointInfo info;
  std::vector<FileInfo> files;
};
struct MapData {
  core::MappedFile file;
};
struct SaveData {
  core::Save save;
};
struct PartData {
  core::Part part;
};
struct CheckpointData {
  core::Checkpoint checkpoint;
};
struct RunData {
  core::Run run;
};
struct ClientData {
  core::Client client;
};

struct Access {
  static Status ToStatus(const absl::Status& status);
  static CheckpointInfo ToInfo(const core::CheckpointInfo& info);

  // An object of this library's header around one of client/cpp.
  template <typename Object, typename Data, typename Inner>
  static Object Wrap(Inner inner) {
    return Object(std::make_shared<Data>(Data{std::move(inner)}));
  }
  static const ArgumentsData& Of(const Arguments& arguments) { return *arguments.data_; }
};

Status FromException(const std::exception* error);

// Runs `work`, which returns a Status or a Result. An exception does not leave the library: the program may
// be built with another compiler. What throws is the lack of memory.
template <typename Work>
auto Guard(Work work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::exception& error) {
    return FromException(&error);
  } catch (...) {
    return FromException(nullptr);
  }
}

}  // namespace ckptd::inline abi0::internal
#endif  // CKPTD_CLIENT_SDK_OBJECTS_H_
