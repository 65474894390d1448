#include "daemon/sessions/call_authenticator.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "daemon/sessions/peer_namespaces.h"
#include "daemon/sessions/peer_table.h"
#include "storage/base/errors.h"
#include "storage/base/unique_fd.h"

namespace ckptd {
namespace {

constexpr uid_t kDaemon = 900, kAlice = 1000, kBob = 1001, kOverflow = 65534;

class CallAuthenticatorTest : public ::testing::Test {
 protected:
  CallAuthenticatorTest() {
    peers_.Add(5, PeerOf(kAlice));
    peers_.Add(6, PeerOf(kBob));
    peers_.Add(7, PeerOf(0));
    peers_.Add(8, PeerOf(kDaemon));
    peers_.Add(9, PeerOf(kOverflow));
    peers_.Add(10, PeerOf(0, {PeerOrigin::kForeign, 43, "it is in another mount namespace"}));
    peers_.Add(11, PeerOf(kAlice, {PeerOrigin::kForeign, -1, "its process has ended"}));
    peers_.Add(12, PeerOf(0, {PeerOrigin::kUnknown, 0, "the daemon may not look"}));
    peers_.Add(13, PeerOf(kDaemon, {PeerOrigin::kForeign, 43, "it is in another mount namespace"}));
    alice_ =
        sessions_.Open({.user = PeerOf(kAlice).user, .pid = 1, .client_instance = "i", .client_name = "n"})
            .value();
  }
  static Peer PeerOf(uid_t uid, const PeerNamespaces& namespaces = {PeerOrigin::kHost, 0, ""}) {
    return {.user = {.uid = uid, .gid = uid, .groups = {}}, .pid = 1, .namespaces = namespaces};
  }

  PeerTable peers_;
  SessionRegistry sessions_{4};
  SessionRegistry::Opened alice_;
  CallAuthenticator authenticator_{&peers_, &sessions_, kDaemon, kOverflow};
};

TEST_F(CallAuthenticatorTest, FindsTheSessionOfAToken) {
  const auto caller = authenticator_.Find("fd:5", alice_.token, TokenRule::kRequired);
  ASSERT_TRUE(caller.ok()) << caller.status();
  EXPECT_EQ(caller->session, alice_.info.id);
  EXPECT_EQ(caller->uid, kAlice);
  EXPECT_FALSE(caller->privileged);
}

TEST_F(CallAuthenticatorTest, RefusesTheTokenOfAnotherUser) {
  EXPECT_EQ(ReasonOf(authenticator_.Find("fd:6", alice_.token, TokenRule::kRequired).status()), "WRONG_UID");
  EXPECT_EQ(ReasonOf(authenticator_.Find("fd:6", alice_.token, TokenRule::kOptional).status()), "WRONG_UID");
}

TEST_F(CallAuthenticatorTest, RequiresATokenForTrainerCalls) {
  EXPECT_EQ(ReasonOf(authenticator_.Find("fd:5", std::nullopt, TokenRule::kRequired).status()),
            "UNKNOWN_TOKEN");
  EXPECT_EQ(ReasonOf(authenticator_.Find("fd:5", "no such token", TokenRule::kOptional).status()),
            "UNKNOWN_TOKEN");
}

TEST_F(CallAuthenticatorTest, IdentifiesAnOperatorByUid) {
  const auto bob = authenticator_.Find("fd:6", std::nullopt, TokenRule::kOptional);
  ASSERT_TRUE(bob.ok()) << bob.status();
  EXPECT_EQ(bob->session, 0);
  EXPECT_EQ(bob->uid, kBob);
  EXPECT_FALSE(bob->privileged);
  EXPECT_TRUE(authenticator_.Find("fd:7", std::nullopt, TokenRule::kOptional)->privileged);
  EXPECT_TRUE(authenticator_.Find("fd:8", std::nullopt, TokenRule::kOptional)->privileged);
}

TEST_F(CallAuthenticatorTest, GivesRootOfAnotherNamespaceNoPrivilege) {
  for (const char* connection : {"fd:10", "fd:13"}) {
    const auto caller = authenticator_.Find(connection, std::nullopt, TokenRule::kOptional);
    ASSERT_TRUE(caller.ok()) << caller.status();
    EXPECT_FALSE(caller->privileged);
    EXPECT_FALSE(caller->may_name_paths);
    EXPECT_EQ(caller->tenant, 43);
  }
}

TEST_F(CallAuthenticatorTest, ForbidsPathsToUsersOfAnotherNamespace) {
  const auto caller = authenticator_.Find("fd:11", alice_.token, TokenRule::kRequired);
  ASSERT_TRUE(caller.ok()) << caller.status();
  EXPECT_FALSE(caller->may_name_paths);
  EXPECT_EQ(caller->tenant, -1);
  EXPECT_TRUE(authenticator_.Find("fd:5", alice_.token, TokenRule::kRequired)->may_name_paths);
  EXPECT_EQ(authenticator_.Find("fd:5", alice_.token, TokenRule::kRequired)->tenant, 0);
}

TEST_F(CallAuthenticatorTest, GivesRootOfUnknownNamespacesNoPrivilege) {
  const auto caller = authenticator_.Find("fd:12", std::nullopt, TokenRule::kOptional);
  ASSERT_TRUE(caller.ok()) << caller.status();
  EXPECT_FALSE(caller->privileged);
  EXPECT_FALSE(caller->may_name_paths);
  EXPECT_EQ(caller->tenant, 0);
}

TEST_F(CallAuthenticatorTest, TrustsAllNamespacesWhenConfigured) {
  const CallAuthenticator trusting(&peers_, &sessions_, kDaemon, kOverflow, true);
  for (const char* connection : {"fd:10", "fd:12", "fd:13"}) {
    const auto caller = trusting.Find(connection, std::nullopt, TokenRule::kOptional);
    ASSERT_TRUE(caller.ok()) << caller.status();
    EXPECT_TRUE(caller->privileged && caller->may_name_paths);
    EXPECT_EQ(caller->tenant, 0);
  }
}

TEST_F(CallAuthenticatorTest, RefusesTheOverflowUid) {
  EXPECT_EQ(ReasonOf(authenticator_.Find("fd:9", std::nullopt, TokenRule::kOptional).status()), "WRONG_UID");
  const CallAuthenticator as_nobody(&peers_, &sessions_, kOverflow, kOverflow);
  EXPECT_TRUE(as_nobody.Find("fd:9", std::nullopt, TokenRule::kOptional).ok());
}

TEST_F(CallAuthenticatorTest, RefusesAnUnknownConnection) {
  EXPECT_EQ(ReasonOf(authenticator_.Find("unix:", std::nullopt, TokenRule::kOptional).status()), "WRONG_UID");
}

TEST_F(CallAuthenticatorTest, ReusedNumberNamesTheNewConnection) {
  peers_.Add(7, PeerOf(kBob));
  EXPECT_EQ(authenticator_.Find("fd:7", std::nullopt, TokenRule::kOptional)->uid, kBob);
}

TEST(PeerOfSocket, FindsTheProcessAtTheOtherEnd) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd mine(ends[0]), other(ends[1]);
  const auto peer = PeerOfSocket(mine.get());
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_EQ(peer->user.uid, ::geteuid());
  EXPECT_EQ(peer->user.gid, ::getegid());
  EXPECT_EQ(peer->pid, ::getpid());
  const int groups = ::getgroups(0, nullptr);
  EXPECT_EQ(peer->user.groups.size(), static_cast<size_t>(groups));
  EXPECT_FALSE(PeerOfSocket(-1).ok());
}

}  // namespace
}  // namespace ckptd
