#include "client/ckptctl/debug/redact.h"

#include <gtest/gtest.h>

namespace ckptd::ctl {
namespace {

TEST(RedactTest, LeavesOutKnownSecretsWhereverTheyAre) {
  Redactor redactor;
  redactor.Add("hunter2-long\n");
  redactor.Add("hunter2");
  redactor.Add("abc");  // Would be found in ordinary words.
  EXPECT_EQ(redactor.Clean("say hunter2-long, hunter2 and abc"), "say (left out), (left out) and abc");
}

TEST(RedactTest, LearnsSecretsFromTheEnvironmentAndFromCredentials) {
  Redactor redactor;
  redactor.AddEnvironment({"AWS_SECRET_ACCESS_KEY=s3cr3t=", "HOME=/root", "TOKEN", "AWS_PROFILE=train"});
  redactor.AddSettings("[default]\naws_session_token = sess10n\nregion = eu-west-1\n");
  EXPECT_EQ(redactor.Clean("s3cr3t= sess10n /root train eu-west-1"),
            "(left out) (left out) /root train eu-west-1");
}

TEST(RedactTest, LeavesOutWhatLooksLikeASecret) {
  const Redactor redactor;
  const std::pair<const char*, const char*> cases[] = {
      {"https://me:pw@host:2379/a https://t0ken@host",
       "https://(left out)@host:2379/a https://(left out)@host"},
      {"password=pw, x=1", "password=(left out), x=1"},
      {"etcd_password: \"p \\\" w\" next", "etcd_password: (left out) next"},
      {"{\"token\": \"abcd\", \"n\": 1}", "{\"token\": (left out), \"n\": 1}"},
      {"Authorization: Bearer abcd.efgh\n", "Authorization: Bearer (left out)\n"},
      {"sent Bearer abcd", "sent Bearer (left out)"},
      {"GET /?token=abcd&x=1", "GET /?token=(left out)&x=1"},
      {"X-Amz-Signature=abcd&X-Amz-Credential=AKIA/x",
       "X-Amz-Signature=(left out)&X-Amz-Credential=(left out)"},
      {"rw,user=a,pass=abcd,vers=3", "rw,user=a,pass=(left out),vers=3"},
      {"a\n-----BEGIN EC PRIVATE KEY-----\nMHcC\n-----END EC PRIVATE KEY-----\nb",
       "a\n(a private key is left out)\nb"},
  };
  for (const auto& [text, clean] : cases) EXPECT_EQ(redactor.Clean(text), clean);
}

TEST(RedactTest, LeavesOtherTextAsItIs) {
  const Redactor redactor;
  for (const char* text : {
           "metrics { token_file: \"/etc/ckptd/token\" }",
           "etcd_password_file=/etc/ckptd/password",
           "AWS_SHARED_CREDENTIALS_FILE=/root/.aws/credentials",
           "limits.etcd_keys_per_uid: 1000",
           "see https://host/a@b and mail me@host",
           "the password is wrong",
           "a basic, b",
           "key=step_7 tag=latest",
           "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
       })
    EXPECT_EQ(redactor.Clean(text), text);
}

}  // namespace
}  // namespace ckptd::ctl
