// A program that has its own protobuf and Abseil, and uses ckptd's library as well.
#include <absl/status/status.h>
#include <ckptd/client.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/timestamp.pb.h>

#include <chrono>
#include <iostream>

int main() {
  const auto* pool = google::protobuf::DescriptorPool::generated_pool();
  google::protobuf::Timestamp::descriptor();
  std::cout << pool->FindFileByName("google/protobuf/timestamp.proto")->name() << "\n";
  // Both of these use protobuf and Abseil in the library.
  const auto none =
      ckptd::Client::Connect("unix:/nonexistent/ckptd.sock", {.connect_timeout = std::chrono::seconds(0)});
  std::cout << none.status().ToString().substr(0, none.status().ToString().find(':')) << "\n";
  std::cout << absl::StatusCodeToString(absl::InvalidArgumentError("").code()) << "\n";
  return 0;
}
