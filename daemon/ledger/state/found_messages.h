// Parses the values of keys that were found in etcd.
#ifndef CKPTD_DAEMON_LEDGER_STATE_FOUND_MESSAGES_H_
#define CKPTD_DAEMON_LEDGER_STATE_FOUND_MESSAGES_H_

#include <map>
#include <string>
#include <vector>

#include "etcd/messages.pb.h"

namespace ckptd {

// "node1" of "votes/1/node1".
inline std::string LastPartOf(const std::string& key) { return key.substr(key.rfind('/') + 1); }

// The messages by the last part of their keys, which is the name of a node.
template <typename Message>
std::map<std::string, Message> ByLastPart(const std::vector<etcdserverpb::KeyValue>& found) {
  std::map<std::string, Message> by_node;
  for (const etcdserverpb::KeyValue& key : found) by_node[LastPartOf(key.key())].ParseFromString(key.value());
  return by_node;
}

// The message of a range of one key; an empty message if the key does not exist.
template <typename Message>
Message FirstOf(const std::vector<etcdserverpb::KeyValue>& found) {
  Message message;
  if (!found.empty()) message.ParseFromString(found[0].value());
  return message;
}

}  // namespace ckptd
#endif  // CKPTD_DAEMON_LEDGER_STATE_FOUND_MESSAGES_H_
