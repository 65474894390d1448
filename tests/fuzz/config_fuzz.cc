// The text of a configuration. An accepted one has every value in range, and stays the same when it is
// printed and read again.
#include "daemon/config/config.h"
#include "google/protobuf/text_format.h"
#include "google/protobuf/util/message_differencer.h"
#include "tests/fuzz/fuzz.h"

namespace ckptd {
namespace {

constexpr int64_t kMemory = int64_t{64} << 30;

void Load(std::string_view text) {
  const LoadedConfig loaded = LoadConfig(text, "fuzz", {}, kMemory);
  for (const std::string& problem : loaded.problems) FUZZ_CHECK(!problem.empty());
  if (!loaded.problems.empty()) return;
  const config::v1::DaemonConfig& config = loaded.config;
  FUZZ_CHECK(config.pool().bytes() >= 8 << 20 && config.pool().bytes() <= kMemory);
  FUZZ_CHECK(config.pool().segment_bytes() > 0 && config.pool().segment_bytes() <= config.pool().bytes() / 4);
  FUZZ_CHECK(config.io().chunk_bytes() > 0 && config.io().depth() > 0 && config.io().checksum_threads() > 0);
  FUZZ_CHECK(config.max_sessions() > 0 && config.socket_path().size() <= 99);
  FUZZ_CHECK(SocketMode(config.socket_mode()) <= 0777);
  std::string printed;
  FUZZ_CHECK(google::protobuf::TextFormat::PrintToString(config, &printed));
  const LoadedConfig again = LoadConfig(printed, "printed", {}, kMemory);
  FUZZ_CHECK(again.problems.empty());
  FUZZ_CHECK(google::protobuf::util::MessageDifferencer::Equals(config, again.config));
}

}  // namespace
}  // namespace ckptd

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ckptd::Load({reinterpret_cast<const char*>(data), size});
  return 0;
}
